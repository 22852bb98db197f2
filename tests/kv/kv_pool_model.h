// A KvPool with sessions on it and the bytes that it would manage. A row is a hash of the tokens up
// to and including its own, as K/V rows depend on all of them: a row that was overwritten, given
// away too early, shared wrongly or copied from elsewhere is a hash that does not fit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kv/kv_pool.h"

namespace kd {

using Tokens = std::vector<int32_t>;

constexpr uint64_t kNothingYet = 0x9e3779b97f4a7c15;

inline uint64_t next_hash(uint64_t hash, int32_t token) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0xff51afd7ed558ccd + 1;
    return hash ^ (hash >> 29);
}

struct ModelSession {
    explicit ModelSession(KvPool& pool) : table(pool) {}

    PageTable table;
    Tokens tokens;
    std::vector<uint64_t> hashes;  // [tokens]
    int32_t rows = 0;              // computed
    int32_t needed = 0;            // asked for last
    std::vector<int32_t> held;     // pages when it was held

    void append(std::span<const int32_t> more) {
        for (const int32_t token : more) {
            tokens.push_back(token);
            hashes.push_back(next_hash(hashes.empty() ? kNothingYet : hashes.back(), token));
        }
    }
};

inline Fragmentation fragmentation_of(std::span<const int32_t> slots) {
    Fragmentation sum;
    const auto tokens = static_cast<int32_t>(slots.size());
    sum.sessions = tokens > 0 ? 1 : 0;
    sum.tokens = tokens;
    bool whole = true;
    for (int32_t i = 0; i < tokens; ++i) {
        const auto at = static_cast<size_t>(i);
        const bool goes_on = i > 0 && slots[at] == slots[at - 1] + 1;
        sum.runs += goes_on ? 0 : 1;
        whole = i % kTileTokens == 0 || (whole && goes_on);
        if (i % kTileTokens == kTileTokens - 1) {
            sum.tiles += 1;
            sum.whole_tiles += whole ? 1 : 0;
        }
    }
    return sum;
}

class KvPoolModel {
  public:
    explicit KvPoolModel(const KvPoolOptions& options)
        : pool(options),
          memory_(static_cast<size_t>(pool.total())),
          owners_(static_cast<size_t>(pool.free_pages().total())) {}

    /// A test that failed may leave tables held.
    ~KvPoolModel() {
        for (const auto& session : sessions) {
            while (session->table.held()) session->table.release();
        }
    }
    KvPoolModel(const KvPoolModel&) = delete;
    KvPoolModel& operator=(const KvPoolModel&) = delete;

    KvPool pool;
    std::vector<std::unique_ptr<ModelSession>> sessions;

    void copy(std::span<const int32_t> from, std::span<const int32_t> to) {
        ASSERT_EQ(from.size(), to.size());
        std::vector<uint64_t> rows;
        for (const int32_t slot : from) rows.push_back(memory_[static_cast<size_t>(slot)]);
        for (size_t i = 0; i < to.size(); ++i) memory_[static_cast<size_t>(to[i])] = rows[i];
    }
    /// The forward of the next `count` rows.
    void compute(ModelSession& session, int32_t count) {
        for (; count > 0; --count, ++session.rows) {
            const auto row = static_cast<size_t>(session.rows);
            ASSERT_GE(session.rows, session.table.shared_pages() * pool.page_size());
            ASSERT_LT(session.rows, session.table.tokens());
            memory_[slot_of(session, row)] = session.hashes[row];
        }
    }
    /// Uses what a table has beyond the rows, as padding and rejected nodes may.
    void scribble(const ModelSession& session) {
        const auto tokens = static_cast<size_t>(session.table.tokens());
        for (auto row = static_cast<size_t>(session.rows); row < tokens; ++row) {
            memory_[slot_of(session, row)] = ~memory_[slot_of(session, row)];
        }
    }

    /// Tokens that the index could serve, by looking at all that it holds.
    int32_t longest_cached(std::span<const int32_t> tokens) const {
        int32_t longest = 0;
        walk([&](const PrefixIndex::Node&, std::span<const int32_t> path, size_t) {
            const auto end = std::ranges::mismatch(path, tokens);
            longest = std::max(longest, static_cast<int32_t>(end.in1 - path.begin()));
        });
        return longest;
    }
    /// Pages that an allocation for `asking` may end up with, what it has included.
    int32_t reach_pages(const ModelSession& asking) const {
        int32_t pages = static_cast<int32_t>(asking.table.pages().size());
        pages += pool.free_pages().count();
        walk([&](const PrefixIndex::Node& node, std::span<const int32_t>, size_t) {
            pages += node.locks == 0 ? static_cast<int32_t>(node.pages.size()) : 0;
        });
        for (const auto& session : sessions) {
            if (session.get() == &asking || session->table.held()) continue;
            const int32_t needed =
                std::max((session->needed + pool.page_size() - 1) / pool.page_size(),
                         session->table.shared_pages());
            pages += std::max(static_cast<int32_t>(session->table.pages().size()) - needed, 0);
        }
        return pages;
    }

    /// Every row that anybody counts on, every page's owner, every counter.
    void check() {
        std::ranges::fill(owners_, 0);
        int32_t cached = 0;
        walk([&](const PrefixIndex::Node& node, std::span<const int32_t> path, size_t first_page) {
            check_cached(node, path, first_page);
            cached += static_cast<int32_t>(node.pages.size());
        });
        Fragmentation sum;
        int32_t used = 0;
        size_t tables = 0;
        for (const auto& session : sessions) {
            check_session(*session);
            used +=
                static_cast<int32_t>(session->table.pages().size()) - session->table.shared_pages();
            sum += session->table.fragmentation();
            tables += session->table.tokens() > 0 ? 1u : 0u;
        }
        int32_t free = 0;
        for (int32_t page = 0; page < pool.free_pages().total(); ++page) {
            const int32_t is_free = pool.free_pages().is_free(page) ? 1 : 0;
            free += is_free;
            ASSERT_EQ(owners_[static_cast<size_t>(page)] + is_free, 1) << "page " << page;
        }
        ASSERT_EQ(pool.tables().size(), tables);
        ASSERT_EQ(pool.free(), free * pool.page_size());
        ASSERT_EQ(pool.used(), used * pool.page_size());
        ASSERT_EQ(pool.cached(), cached * pool.page_size());
        expect_same(pool.fragmentation(), sum);
    }

  private:
    size_t slot_of(const ModelSession& session, size_t row) const {
        return static_cast<size_t>(session.table.slots()[row]);
    }
    static void expect_same(const Fragmentation& a, const Fragmentation& b) {
        ASSERT_EQ(a.sessions, b.sessions);
        ASSERT_EQ(a.tokens, b.tokens);
        ASSERT_EQ(a.runs, b.runs);
        ASSERT_EQ(a.tiles, b.tiles);
        ASSERT_EQ(a.whole_tiles, b.whole_tiles);
    }

    /// visit(node, the tokens from the root to its end, pages before it) for every node but the
    /// root.
    template <typename Visit>
    void walk(const Visit& visit) const {
        Tokens path;
        walk(PrefixIndex::kRoot, path, visit);
    }
    template <typename Visit>
    void walk(PrefixIndex::NodeId id, Tokens& path, const Visit& visit) const {
        const PrefixIndex::Node& node = pool.index().node(id);
        const size_t before = path.size();
        path.insert(path.end(), node.tokens.begin(), node.tokens.end());
        if (id != PrefixIndex::kRoot) {
            visit(node, path, before / static_cast<size_t>(pool.page_size()));
        }
        for (const PrefixIndex::NodeId child : node.children) walk(child, path, visit);
        path.resize(before);
    }
    void check_cached(const PrefixIndex::Node& node, std::span<const int32_t> path,
                      size_t first_page) {
        const auto page_tokens = static_cast<size_t>(pool.page_size());
        uint64_t hash = kNothingYet;
        for (size_t i = 0; i < path.size(); ++i) {
            hash = next_hash(hash, path[i]);
            if (i < first_page * page_tokens) continue;
            const int32_t page = node.pages[i / page_tokens - first_page];
            if (i % page_tokens == 0) owners_[static_cast<size_t>(page)] += 1;
            ASSERT_EQ(memory_[static_cast<size_t>(page) * page_tokens + i % page_tokens], hash)
                << "page " << page << " of the index, row " << i;
        }
    }
    void check_session(const ModelSession& session) {
        const PageTable& table = session.table;
        const auto page_tokens = static_cast<size_t>(pool.page_size());
        ASSERT_GE(table.tokens(), session.needed);
        ASSERT_GE(table.tokens(), session.rows);
        ASSERT_EQ(table.slots().size(), table.pages().size() * page_tokens);
        for (size_t i = 0; i < table.slots().size(); ++i) {
            ASSERT_EQ(static_cast<size_t>(table.slots()[i]),
                      static_cast<size_t>(table.pages()[i / page_tokens]) * page_tokens +
                          i % page_tokens);
        }
        for (size_t row = 0; row < static_cast<size_t>(session.rows); ++row) {
            ASSERT_EQ(memory_[slot_of(session, row)], session.hashes[row])
                << "row " << row << " of " << session.rows;
        }
        for (size_t i = 0; i < table.pages().size(); ++i) {
            const auto page = static_cast<size_t>(table.pages()[i]);
            if (i < static_cast<size_t>(table.shared_pages())) {
                ASSERT_EQ(owners_[page], 1) << "shared page " << page << " is not in the index";
            } else {
                owners_[page] += 1;
            }
        }
        if (table.held()) {
            ASSERT_GE(table.pages().size(), session.held.size());
            ASSERT_TRUE(std::ranges::equal(session.held, table.pages().first(session.held.size())));
        }
        const auto needed = std::min(
            (static_cast<size_t>(session.needed) + page_tokens - 1) / page_tokens * page_tokens,
            table.slots().size());
        expect_same(table.fragmentation(), fragmentation_of(table.slots().first(needed)));
    }

    std::vector<uint64_t> memory_;  // [slots]
    std::vector<int32_t> owners_;   // [pages] scratch of check()
};

}  // namespace kd
