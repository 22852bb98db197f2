// PrefixIndex against a map from each cached page's path, all tokens from the root to its end.
#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace kd {
namespace {

constexpr uint32_t kSeed = 20240613;
#ifdef __SANITIZE_ADDRESS__
constexpr int kScale = 5;  // sanitizers: shorter paths, fewer of the same operations
#else
constexpr int kScale = 1;
#endif

using Tokens = std::vector<int32_t>;
using Pages = std::vector<int32_t>;
using NodeId = PrefixIndex::NodeId;

struct CachedPage {
    int32_t page = -1;
    uint64_t used = 0;
    int32_t locks = 0;
    bool ends = false;  // its node

    bool operator==(const CachedPage&) const = default;
};

bool begins_with(const Tokens& path, std::span<const int32_t> prefix) {
    return path.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

int32_t common_length(std::span<const int32_t> a, std::span<const int32_t> b) {
    int32_t length = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i) ++length;
    return length;
}

// What the index says in its header, without a tree.
class Model {
  public:
    explicit Model(int32_t page_size) : page_tokens_(static_cast<size_t>(page_size)) {}

    const std::map<Tokens, CachedPage>& pages() const { return pages_; }
    CachedPage& at(const Tokens& path) { return pages_.at(path); }

    int32_t evictable() const {
        return static_cast<int32_t>(std::ranges::count_if(
            pages_, [](const auto& entry) { return entry.second.locks == 0; }));
    }
    int32_t whole_pages(std::span<const int32_t> tokens) const {
        int32_t pages = 0;
        while (page_behind(tokens, pages) != nullptr) ++pages;
        return pages;
    }
    // The best that any page behind the first `pages` pages shares with what follows there.
    int32_t next_tokens(std::span<const int32_t> tokens, int32_t pages) const {
        const size_t matched = static_cast<size_t>(pages) * page_tokens_;
        const Tokens prefix(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(matched));
        int32_t best = 0;
        for (auto entry = pages_.lower_bound(prefix);
             entry != pages_.end() && begins_with(entry->first, prefix); ++entry) {
            if (entry->first.size() == matched + page_tokens_) {
                best = std::max(
                    best, common_length(entry->first, tokens) - static_cast<int32_t>(matched));
            }
        }
        return best;
    }
    Tokens prefix(std::span<const int32_t> tokens, int32_t pages) const {
        return {tokens.begin(),
                tokens.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(pages) * page_tokens_)};
    }
    Pages pages_of(const Tokens& path) const {
        Pages pages;
        for (size_t end = page_tokens_; end <= path.size(); end += page_tokens_) {
            pages.push_back(pages_.at(prefix_of(path, end)).page);
        }
        return pages;
    }
    bool is_leaf(const Tokens& path) const {
        const auto next = std::next(pages_.find(path));
        return next == pages_.end() || !begins_with(next->first, path);
    }

    void lock(const Tokens& path) {
        if (!path.empty()) pages_.at(path).ends = true;
        change_locks(path, 1);
    }
    void unlock(const Tokens& path) { change_locks(path, -1); }
    void insert(const Tokens& path, std::span<const int32_t> pages) {
        const int32_t known = whole_pages(path);
        const Tokens parent = prefix(path, known);
        lock(parent);
        if (parent.size() == path.size()) return;
        // A leaf that nobody else reads grows: sessions come back longer, and a page a node would
        // be evicted page by page.
        if (known > 0 && is_leaf(parent) && at(parent).locks == 1) at(parent).ends = false;
        for (size_t end = parent.size() + page_tokens_; end <= path.size(); end += page_tokens_) {
            pages_[prefix_of(path, end)] = {.page = pages[end / page_tokens_ - 1],
                                            .used = clock_,
                                            .locks = 1,
                                            .ends = end == path.size()};
        }
    }
    Pages evict(int32_t pages) {
        Pages out;
        while (static_cast<int32_t>(out.size()) < pages) {
            const Tokens* oldest = nullptr;
            for (const auto& [path, entry] : pages_) {
                if (entry.locks > 0 || !is_leaf(path)) continue;
                if (oldest == nullptr || entry.used < pages_.at(*oldest).used) oldest = &path;
            }
            if (oldest == nullptr) break;
            Tokens path = *oldest;
            Pages leaf;
            do {
                leaf.push_back(pages_.at(path).page);
                pages_.erase(path);
                path.resize(path.size() - page_tokens_);
            } while (!path.empty() && !pages_.at(path).ends);
            out.insert(out.end(), leaf.rbegin(), leaf.rend());
        }
        return out;
    }

  private:
    static Tokens prefix_of(const Tokens& path, size_t end) {
        return {path.begin(), path.begin() + static_cast<ptrdiff_t>(end)};
    }
    const CachedPage* page_behind(std::span<const int32_t> tokens, int32_t pages) const {
        const size_t end = static_cast<size_t>(pages + 1) * page_tokens_;
        if (end > tokens.size()) return nullptr;
        const auto found = pages_.find(prefix(tokens, pages + 1));
        return found == pages_.end() ? nullptr : &found->second;
    }
    void change_locks(const Tokens& path, int32_t by) {
        clock_ += 1;
        for (size_t end = page_tokens_; end <= path.size(); end += page_tokens_) {
            CachedPage& page = pages_.at(prefix_of(path, end));
            page.locks += by;
            page.used = clock_;
        }
    }

    size_t page_tokens_;
    std::map<Tokens, CachedPage> pages_;
    uint64_t clock_ = 0;
};

// The index as a map. `used` is left out: only its order has a meaning.
std::map<Tokens, CachedPage> as_map(const PrefixIndex& index) {
    std::map<Tokens, CachedPage> map;
    struct Open {
        NodeId id;
        Tokens path;
    };
    std::vector<Open> open = {{PrefixIndex::kRoot, {}}};
    while (!open.empty()) {
        auto [id, path] = std::move(open.back());
        open.pop_back();
        const PrefixIndex::Node& node = index.node(id);
        const auto page_tokens = static_cast<size_t>(index.page_size());
        for (size_t i = 0; i < node.pages.size(); ++i) {
            const auto first = node.tokens.begin() + static_cast<ptrdiff_t>(i * page_tokens);
            path.insert(path.end(), first, first + index.page_size());
            map[path] = {
                .page = node.pages[i], .locks = node.locks, .ends = i + 1 == node.pages.size()};
        }
        for (const NodeId child : node.children) open.push_back({child, path});
    }
    return map;
}

class PrefixIndexOf : public testing::TestWithParam<int32_t> {
  protected:
    PrefixIndexOf() : index_(GetParam()), model_(GetParam()), random_(kSeed) {}

    struct Lock {
        NodeId node = PrefixIndex::kRoot;
        Tokens path;
    };

    size_t below(size_t bound) { return random_() % bound; }
    Tokens any_page();
    Tokens any_tokens(size_t most_pages);
    void find_and_lock(bool keep);
    void insert();
    void unlock();
    void evict();
    void move_a_page();
    void expect_same();
    void expect_like_rebuilt();

    PrefixIndex index_;
    Model model_;
    std::vector<Lock> locks_;
    std::mt19937 random_;
    int32_t next_page_ = 0;
};

// Pages that differ at their beginning, within or at their end.
Tokens PrefixIndexOf::any_page() {
    const auto page_tokens = static_cast<size_t>(GetParam());
    Tokens page(page_tokens, 1);
    const size_t places[] = {0, page_tokens / 3, page_tokens / 2, page_tokens - 1, page_tokens};
    const auto token = static_cast<int32_t>(below(3));
    for (size_t i = places[below(5)]; i < page_tokens; ++i) page[i] = token;
    return page;
}

Tokens PrefixIndexOf::any_tokens(size_t most_pages) {
    Tokens tokens;
    // As a rule something that is there, and more.
    if (!model_.pages().empty() && random_() % 3 != 0) {
        tokens =
            std::next(model_.pages().begin(), static_cast<ptrdiff_t>(below(model_.pages().size())))
                ->first;
    }
    for (size_t i = below(most_pages + 1); i > 0; --i) {
        const Tokens page = any_page();
        tokens.insert(tokens.end(), page.begin(), page.end());
    }
    return tokens;
}

void PrefixIndexOf::find_and_lock(bool keep) {
    Tokens tokens = any_tokens(3);
    tokens.resize(tokens.size() - std::min(tokens.size(), below(2 * GetParam())));
    const PrefixIndex::Match match = index_.find(tokens);
    ASSERT_EQ(match.pages, model_.whole_pages(tokens));
    ASSERT_EQ(match.next_tokens, model_.next_tokens(tokens, match.pages));
    ASSERT_EQ(match.next_page >= 0, match.next_tokens > 0);
    if (match.next_tokens > 0) {
        const std::map<Tokens, CachedPage> map = as_map(index_);
        const auto next = std::ranges::find_if(
            map, [&](const auto& entry) { return entry.second.page == match.next_page; });
        ASSERT_NE(next, map.end());
        ASSERT_EQ(next->first.size(), static_cast<size_t>((match.pages + 1) * GetParam()));
        ASSERT_EQ(common_length(next->first, tokens), match.pages * GetParam() + match.next_tokens);
        const Pages& node_pages = index_.node(match.next_node).pages;
        ASSERT_NE(std::ranges::find(node_pages, match.next_page), node_pages.end());
    }
    if (!keep) return;
    Lock lock = {.path = model_.prefix(tokens, match.pages)};
    lock.node = index_.lock(match);
    model_.lock(lock.path);
    if (random_() % 4 == 0) {
        index_.lock(lock.node);
        model_.lock(lock.path);
        locks_.push_back(lock);
    }
    // The page behind the match is still where the match said.
    if (match.next_tokens > 0) {
        const Pages& node_pages = index_.node(match.next_node).pages;
        ASSERT_NE(std::ranges::find(node_pages, match.next_page), node_pages.end());
    }
    locks_.push_back(std::move(lock));
}

void PrefixIndexOf::insert() {
    const Tokens tokens = any_tokens(5);
    Pages pages(tokens.size() / static_cast<size_t>(GetParam()));
    for (int32_t& page : pages) page = next_page_++;
    const int32_t known = model_.whole_pages(tokens);
    const PrefixIndex::Inserted inserted = index_.insert(tokens, pages);
    model_.insert(tokens, pages);
    ASSERT_EQ(inserted.known_pages, known);
    locks_.push_back({.node = inserted.node, .path = tokens});
}

void PrefixIndexOf::unlock() {
    if (locks_.empty()) return;
    const size_t at = below(locks_.size());
    index_.unlock(locks_[at].node);
    model_.unlock(locks_[at].path);
    locks_.erase(locks_.begin() + static_cast<ptrdiff_t>(at));
}

void PrefixIndexOf::evict() {
    const auto wanted = static_cast<int32_t>(random_() % 4 == 0 ? 1000 : below(8));
    Pages out = {-7};  // what is there stays
    index_.evict(wanted, out);
    Pages expected = model_.evict(wanted);
    expected.insert(expected.begin(), -7);
    ASSERT_EQ(out, expected);
}

void PrefixIndexOf::move_a_page() {
    const auto id = static_cast<NodeId>(below(static_cast<size_t>(index_.node_count())));
    const Pages& pages = index_.node(id).pages;
    if (pages.empty()) return;
    const size_t at = below(pages.size());
    const int32_t from = pages[at];
    index_.set_page(id, at, next_page_);
    for (const auto& [path, entry] : model_.pages()) {
        if (entry.page != from) continue;
        model_.at(path).page = next_page_++;
        return;
    }
    FAIL() << "page " << from << " is not in the model";
}

void PrefixIndexOf::expect_same() {
    index_.check();
    std::map<Tokens, CachedPage> expected = model_.pages();
    for (auto& [path, entry] : expected) entry.used = 0;
    ASSERT_EQ(as_map(index_), expected);
    ASSERT_EQ(index_.pages(), static_cast<int32_t>(expected.size()));
    ASSERT_EQ(index_.evictable(), model_.evictable());
    for (const Lock& lock : locks_) {
        Pages pages;
        index_.append_pages(lock.node, pages);
        ASSERT_EQ(pages, model_.pages_of(lock.path));
    }
}

// The same pages at the same paths as in an index that never split, evicted or locked.
void PrefixIndexOf::expect_like_rebuilt() {
    PrefixIndex rebuilt(GetParam());
    for (const auto& [path, entry] : model_.pages()) {
        if (model_.is_leaf(path)) rebuilt.unlock(rebuilt.insert(path, model_.pages_of(path)).node);
    }
    rebuilt.check();
    const std::map<Tokens, CachedPage> map = as_map(index_);
    const std::map<Tokens, CachedPage> other = as_map(rebuilt);
    ASSERT_TRUE(std::ranges::equal(map, other, [](const auto& a, const auto& b) {
        return a.first == b.first && a.second.page == b.second.page;
    }));
}

TEST_P(PrefixIndexOf, AgreesWithTheModel) {
    const int steps = (GetParam() >= 16 ? 4000 : 10000) / kScale;
    for (int step = 0; step < steps; ++step) {
        // Phases with many locks and with few.
        const bool let_go = step / 300 % 2 == 1;
        switch (random_() % 10) {
            case 0:
            case 1:
                insert();
                break;
            case 2:
                find_and_lock(!let_go);
                break;
            case 3:
                find_and_lock(false);
                break;
            case 4:
                evict();
                break;
            case 5:
                move_a_page();
                break;
            default:
                if (let_go || locks_.size() > 12) unlock();
        }
        if (model_.pages().size() > 150) evict();
        expect_same();
        if (step % 50 == 0) expect_like_rebuilt();
        if (HasFatalFailure()) FAIL() << "seed " << kSeed << ", step " << step;
    }
    while (!locks_.empty()) unlock();
    expect_same();
    EXPECT_EQ(index_.evictable(), index_.pages());
    Pages out;
    index_.evict(index_.pages(), out);
    EXPECT_EQ(index_.pages(), 0);
    index_.check();
}

INSTANTIATE_TEST_SUITE_P(PageSizes, PrefixIndexOf, testing::Values(1, 4, 16, 64),
                         testing::PrintToStringParamName());

TEST(PrefixIndex, TheLongestUnusedGoesFirst) {
    PrefixIndex index(2);
    for (const int32_t first : {1, 2, 3}) {
        index.unlock(index.insert(Tokens{first, 0, 9, 9}, Pages{first * 10, first * 10 + 1}).node);
    }
    index.unlock(index.lock(index.find(Tokens{1, 0})));  // the first page alone is used again
    Pages out;
    index.evict(1, out);
    EXPECT_EQ(out, (Pages{11}));
    index.evict(1, out);
    EXPECT_EQ(out, (Pages{11, 20, 21}));
    index.evict(3, out);
    EXPECT_EQ(out, (Pages{11, 20, 21, 30, 31, 10}));
    index.check();
}

TEST(PrefixIndex, WhatIsLockedStays) {
    PrefixIndex index(1);
    const NodeId leaf = index.insert(Tokens{1, 2, 3, 4}, Pages{0, 1, 2, 3}).node;
    index.unlock(index.insert(Tokens{1, 2, 7}, Pages{-1, -1, 4}).node);  // splits behind the lock
    Pages out;
    index.evict(100, out);
    EXPECT_EQ(out, (Pages{4}));
    EXPECT_EQ(index.evictable(), 0);
    index.unlock(leaf);
    EXPECT_EQ(index.evictable(), 4);
    index.evict(100, out);
    EXPECT_EQ(out, (Pages{4, 2, 3, 0, 1}));
    index.check();
}

TEST(PrefixIndexDeathTest, ATableLetsGoOnce) {
    PrefixIndex index(1);
    const NodeId node = index.insert(Tokens{1}, Pages{0}).node;
    index.unlock(node);
    EXPECT_DEATH(index.unlock(node), "is not locked");
    EXPECT_DEATH(index.insert(Tokens{1, 2}, Pages{0}), "2 tokens for 1 pages of 1");
}

// Inserts the path 0, 1, 2, ... again and again, each time a page longer.
std::vector<NodeId> insert_longer_and_longer(PrefixIndex& index, int32_t most_pages, bool keep) {
    Pages path(static_cast<size_t>(most_pages));
    std::iota(path.begin(), path.end(), 0);
    std::vector<NodeId> locked;
    for (size_t length = 1; length <= path.size(); ++length) {
        const std::span<const int32_t> tokens = std::span(path).first(length);
        locked.push_back(index.insert(tokens, tokens).node);
        if (!keep) index.unlock(locked.back());
    }
    EXPECT_EQ(index.pages(), most_pages);
    return locked;
}

// A session that publishes again and again and that nobody else reads.
TEST(PrefixIndexDeep, OneNodeGrows) {
    constexpr int32_t kPages = 100000 / kScale;
    PrefixIndex index(1);
    insert_longer_and_longer(index, kPages, false);
    EXPECT_EQ(index.node_count(), 2);
    index.check();
    Pages out;
    index.evict(1, out);
    EXPECT_EQ(std::ssize(out), kPages);
}

// Somebody reads each of them: a node a page.
TEST(PrefixIndexDeep, AChainOfNodes) {
    constexpr int32_t kPages = 5000 / kScale;
    PrefixIndex index(1);
    const std::vector<NodeId> locked = insert_longer_and_longer(index, kPages, true);
    EXPECT_EQ(index.node_count(), kPages + 1);
    EXPECT_EQ(index.evictable(), 0);
    for (const NodeId id : locked) index.unlock(id);
    index.check();
    Pages out;
    index.evict(kPages - 1, out);
    EXPECT_EQ(std::ssize(out), kPages - 1);
    EXPECT_EQ(out.front(), kPages - 1);
    EXPECT_EQ(out.back(), 1);
    EXPECT_EQ(index.pages(), 1);
    index.check();
}

}  // namespace
}  // namespace kd
