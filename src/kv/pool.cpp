#include "kv/pool.h"

#include <utility>

#include "base/check.h"

namespace kd {

SlotPool::SlotPool(int32_t slots) : used_(static_cast<size_t>(slots), false) {
    free_.reserve(used_.size());
    // Low slots first: a fresh pool hands out contiguous runs.
    for (int32_t slot = slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

bool SlotPool::allocate(int32_t count, std::vector<int32_t>& out) {
    KD_CHECK(count >= 0, "count {}", count);
    if (count > free()) return false;
    for (int32_t i = 0; i < count; ++i) {
        const int32_t slot = free_.back();
        free_.pop_back();
        used_[static_cast<size_t>(slot)] = true;
        out.push_back(slot);
    }
    return true;
}

void SlotPool::release(std::span<const int32_t> slots) {
    // Back to front, so that a run given back is handed out again in its order.
    for (size_t i = slots.size(); i-- > 0;) {
        const int32_t slot = slots[i];
        KD_CHECK(slot >= 0 && slot < total(), "slot {} of {}", slot, total());
        KD_CHECK(used_[static_cast<size_t>(slot)], "slot {} is free already", slot);
        used_[static_cast<size_t>(slot)] = false;
        free_.push_back(slot);
    }
}

PageTable::PageTable(PageTable&& other) noexcept
    : pool_(other.pool_), slots_(std::exchange(other.slots_, {})) {}

PageTable& PageTable::operator=(PageTable&& other) noexcept {
    if (this != &other) {
        clear();
        pool_ = other.pool_;
        slots_ = std::exchange(other.slots_, {});
    }
    return *this;
}

bool PageTable::extend_to(int32_t tokens) {
    if (tokens <= this->tokens()) return true;
    return pool_->allocate(tokens - this->tokens(), slots_);
}

void PageTable::truncate(int32_t tokens) {
    if (tokens >= this->tokens()) return;
    pool_->release(std::span(slots_).subspan(static_cast<size_t>(tokens)));
    slots_.resize(static_cast<size_t>(tokens));
}

void plan_commit(std::span<const int32_t> path, std::span<const int32_t> tail, int32_t context,
                 std::span<const int32_t> positions, std::span<int32_t> from,
                 std::span<int32_t> to) {
    const auto begin = static_cast<size_t>(context);
    KD_CHECK(begin + path.size() <= positions.size(), "positions {} to {} of a table of {}",
             context, begin + path.size(), positions.size());
    for (size_t i = 0; i < path.size(); ++i) {
        from[i] = tail[static_cast<size_t>(path[i])];
        to[i] = positions[begin + i];
    }
}

}  // namespace kd
