// The slot pool and the page tables that own its slots. Book-keeping only: bytes are moved by ops.
//
// Who owns a slot: the pool while it is free, exactly one PageTable while it is used. free + used =
// total at any moment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kd {

class SlotPool {
  public:
    explicit SlotPool(int32_t slots);

    int32_t total() const { return static_cast<int32_t>(used_.size()); }
    int32_t free() const { return static_cast<int32_t>(free_.size()); }
    int32_t used() const { return total() - free(); }

    /// Appends `count` slots to `out` and returns true; or, if fewer are free, changes nothing and
    /// returns false.
    [[nodiscard]] bool allocate(int32_t count, std::vector<int32_t>& out);
    /// Gives slots back. Each must be in use.
    void release(std::span<const int32_t> slots);

  private:
    std::vector<int32_t> free_;  // the last one is handed out first
    std::vector<bool> used_;     // [slots]
};

/// Position -> slot of one session. Releases its slots when it goes.
class PageTable {
  public:
    explicit PageTable(SlotPool& pool) : pool_(&pool) {}
    ~PageTable() { clear(); }
    PageTable(PageTable&& other) noexcept;
    PageTable& operator=(PageTable&& other) noexcept;

    /// Positions that have a slot.
    int32_t tokens() const { return static_cast<int32_t>(slots_.size()); }
    std::span<const int32_t> slots() const { return slots_; }

    /// Grows to at least `tokens` positions; false and no change if the pool is short.
    [[nodiscard]] bool extend_to(int32_t tokens);
    /// Shrinks to at most `tokens` positions.
    void truncate(int32_t tokens);
    void clear() { truncate(0); }

  private:
    SlotPool* pool_;
    std::vector<int32_t> slots_;
};

/// The commit of an accepted path: row of node path[i] in the tail scratch goes to position
/// context + i. tail: slot of each node; positions: the page table's slots; from and to: [path].
void plan_commit(std::span<const int32_t> path, std::span<const int32_t> tail, int32_t context,
                 std::span<const int32_t> positions, std::span<int32_t> from,
                 std::span<int32_t> to);

}  // namespace kd
