// Position -> slot of one session.
//
// A table's first pages may be shared: they belong to the prefix index, which keeps them while a
// table refers to them. The pages behind them are the table's own. A table that goes gives its own
// pages back and lets go of the shared ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/fragmentation.h"
#include "kv/prefix_index.h"

namespace kd {

class KvPool;

/// Stays where it is made: its pool knows it by address while it has pages. The pool outlives it.
class PageTable {
  public:
    explicit PageTable(KvPool& pool);
    ~PageTable();
    PageTable(const PageTable&) = delete;
    PageTable& operator=(const PageTable&) = delete;

    /// Positions that have a slot: whole pages.
    int32_t tokens() const { return static_cast<int32_t>(slots_.size()); }
    std::span<const int32_t> slots() const { return slots_; }  // [tokens]
    std::span<const int32_t> pages() const { return pages_; }  // [tokens / page size]
    /// Leading pages that the prefix index owns. Nobody writes to them.
    int32_t shared_pages() const { return shared_pages_; }
    /// Of the pages with the positions that are needed.
    const Fragmentation& fragmentation() const { return fragmentation_; }

    /// Gives everything back.
    void clear();

    /// While a table is held, none of its pages moves and none is taken from it: something that
    /// read it is still under way (a transfer, a graph in flight).
    void hold() { holds_ += 1; }
    void release();
    bool held() const { return holds_ > 0; }

  private:
    friend class KvPool;

    void push(int32_t page);
    void pop();
    void set_page(size_t index, int32_t page);
    /// Says how many positions are needed, and counts the fragmentation of their pages.
    void need(int32_t tokens);
    void count_page();
    void uncount_page();
    /// Counts the border between page `index` - 1 and page `index`, or takes it back.
    void count_border(size_t index, int32_t sign);

    KvPool* pool_;
    size_t place_ = 0;  // in the pool's list, while it has pages
    std::vector<int32_t> pages_;
    std::vector<int32_t> slots_;
    int32_t shared_pages_ = 0;
    PrefixIndex::NodeId lease_ = PrefixIndex::kRoot;  // the last shared node, locked
    int32_t needed_ = 0;  // tokens last asked for; own pages beyond them may be taken back
    int32_t holds_ = 0;
    Fragmentation fragmentation_;
    size_t counted_ = 0;            // leading pages that it counts
    std::vector<uint8_t> borders_;  // [tiles] places inside a tile where a run ends
};

}  // namespace kd
