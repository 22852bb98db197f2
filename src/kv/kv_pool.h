// The KV pool: slots in pages, the tables that refer to them, the prefix index, and what happens
// when space runs short. Book-keeping only: bytes are moved by ops.
//
// Who owns a page: the free list, the prefix index, or exactly one PageTable. So
//   free + used (by tables alone) + cached (in the index) = total
// at any moment. A page in the index is never written again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/views.h"
#include "kv/fragmentation.h"
#include "kv/free_pages.h"
#include "kv/page_table.h"
#include "kv/prefix_index.h"

namespace kd {

struct KvPoolOptions {
    int32_t slots = 0;      // rounded down to whole pages
    int32_t page_size = 1;  // tokens: 1, 16, 32 or 64
    Placement placement = Placement::best_fit;
    int32_t extent = 1;  // tokens: tables grow to multiples of it where there is room (Tier 0b)
    bool prefix_index = true;
    double evict_batch = 0.1;  // of what may be evicted, at once; 0: the shortage alone
};

/// Tokens to ask for behind a prompt, for the answer (part of Tier 0b): `most`, but for all
/// sessions together no more than a 32nd of the pool, which the prefix index could hold otherwise.
constexpr int32_t headroom_of(int32_t slots, int32_t sessions, int32_t most) {
    const int32_t share = slots / 32 / sessions;
    return most < share ? most : share;
}

/// Copies of rows, in slots: all reads before any write.
struct SlotCopies {
    std::vector<int32_t> from;
    std::vector<int32_t> to;

    MoveList view() const { return {.from = from, .to = to}; }
};

/// Tokens since the pool was made.
struct KvPoolTotals {
    int64_t asked = 0;    // prefixes looked for
    int64_t reused = 0;   // found in the index
    int64_t evicted = 0;  // from the index
    int64_t trimmed = 0;  // unused ends taken back from tables
    int64_t moved = 0;    // by relocation
};

class KvPool {
  public:
    /// Throws kd::Error naming what is out of range.
    explicit KvPool(const KvPoolOptions& options);
    ~KvPool();
    KvPool(const KvPool&) = delete;
    KvPool& operator=(const KvPool&) = delete;

    const KvPoolOptions& options() const { return options_; }
    int32_t page_size() const { return options_.page_size; }
    // Slots.
    int32_t total() const { return free_.total() * page_size(); }
    int32_t free() const { return free_.count() * page_size(); }
    int32_t cached() const { return index_.pages() * page_size(); }
    int32_t used() const { return total() - free() - cached(); }
    /// What extend() could give without taking a needed row from anybody: free, evictable, and
    /// beyond what tables need.
    int32_t available() const;
    /// Positions that extend() could give this table, what it has included.
    int32_t reach(const PageTable& table) const;
    const FreePages& free_pages() const { return free_; }
    const PrefixIndex& index() const { return index_; }
    /// Those with at least one page.
    std::span<PageTable* const> tables() const { return tables_; }
    const KvPoolTotals& totals() const { return totals_; }
    /// Of all tables together.
    Fragmentation fragmentation() const;

    /// Grows a table that is shorter than `need` positions: to `want` of them, rounded up to the
    /// extent, where free and evictable space allows, else to `need` alone. For that it evicts from
    /// the index, then takes back what other tables do not need. False, and nothing has changed, if
    /// there is not enough. What the table holds beyond `need` may be taken back until it is asked
    /// for.
    [[nodiscard]] bool extend(PageTable& table, int32_t need, int32_t want);

    /// How many leading tokens reuse() would find. Changes nothing.
    int32_t cached_prefix(std::span<const int32_t> tokens) const;
    /// How many of them tables keep in the index anyway, whoever else comes.
    int32_t locked_prefix(std::span<const int32_t> tokens) const;
    /// Gives an empty table the longest cached prefix of `tokens`, whole pages shared; of the page
    /// behind them the rows that match are to be copied: `copies`, to be run before the pool
    /// changes again, since nothing keeps their sources. Returns the tokens that then have their
    /// rows.
    int32_t reuse(PageTable& table, std::span<const int32_t> tokens, SlotCopies& copies);
    /// Puts the full pages of `tokens`, whose rows the table holds, into the index; the table goes
    /// on reading them there. Where the index had them already the table's own are given back. Not
    /// while the table is held.
    void publish(PageTable& table, std::span<const int32_t> tokens);
    /// Takes `tokens` out of the index again, as far as nobody else reads their rows or went on
    /// from them: for rows that turned out to be worth nothing.
    void forget(std::span<const int32_t> tokens);
    /// Empties the index, as far as no table reads it.
    void drop_cached();

    /// Tier 1, see relocation.h: renames pages after their rows were copied. Every `to` page is
    /// free, no `from` page is held, no page stands in both lists.
    void rename(std::span<const int32_t> from_pages, std::span<const int32_t> to_pages);

    /// Aborts unless every page is accounted for once and every counter is right.
    void check_books() const;

  private:
    friend class PageTable;

    int32_t pages_of(int32_t tokens) const {  // rounded up
        return (tokens + page_size() - 1) / page_size();
    }
    int32_t unneeded_pages(const PageTable& table) const;
    int32_t available_pages(const PageTable* but) const;
    void list(PageTable& table);
    void unlist(PageTable& table);
    void evict(int32_t shortage);
    void trim_others(const PageTable& table, int32_t shortage);
    void truncate(PageTable& table, int32_t pages);
    void clear(PageTable& table);

    KvPoolOptions options_;
    FreePages free_;
    PrefixIndex index_;
    std::vector<PageTable*> tables_;
    KvPoolTotals totals_;
    std::vector<int32_t> scratch_;
    std::vector<int32_t> renamed_;  // [pages] scratch of rename: -1
};

}  // namespace kd
