#include "kv/page_table.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kv/kv_pool.h"

namespace kd {

PageTable::PageTable(KvPool& pool) : pool_(&pool) {}

PageTable::~PageTable() {
    clear();
}

void PageTable::release() {
    KD_CHECK(holds_ > 0, "the table is not held");
    holds_ -= 1;
}

void PageTable::clear() {
    pool_->clear(*this);
}

void PageTable::push(int32_t page) {
    const int32_t page_size = pool_->page_size();
    if (pages_.empty()) pool_->list(*this);
    pages_.push_back(page);
    for (int32_t i = 0; i < page_size; ++i) slots_.push_back(page * page_size + i);
}

void PageTable::pop() {
    if (counted_ == pages_.size()) uncount_page();
    slots_.resize(slots_.size() - static_cast<size_t>(pool_->page_size()));
    pages_.pop_back();
    if (pages_.empty()) pool_->unlist(*this);
}

void PageTable::set_page(size_t index, int32_t page) {
    if (index < counted_) count_border(index, -1);
    if (index + 1 < counted_) count_border(index + 1, -1);
    pages_[index] = page;
    if (index < counted_) count_border(index, 1);
    if (index + 1 < counted_) count_border(index + 1, 1);
    const auto page_size = static_cast<size_t>(pool_->page_size());
    const auto first_slot = slots_.begin() + static_cast<ptrdiff_t>(index * page_size);
    std::iota(first_slot, first_slot + static_cast<ptrdiff_t>(page_size),
              page * pool_->page_size());
}

void PageTable::need(int32_t tokens) {
    needed_ = tokens;
    const auto page_size = static_cast<size_t>(pool_->page_size());
    const size_t pages =
        std::min((static_cast<size_t>(tokens) + page_size - 1) / page_size, pages_.size());
    while (counted_ < pages) count_page();
    while (counted_ > pages) uncount_page();
}

void PageTable::count_page() {
    Fragmentation& sum = fragmentation_;
    const int32_t page_size = pool_->page_size();
    if (sum.tokens % kTileTokens == 0) borders_.push_back(0);
    count_border(counted_, 1);
    counted_ += 1;
    sum.tokens += page_size;
    sum.sessions = 1;
    if (sum.tokens % kTileTokens != 0) return;
    sum.tiles += 1;
    sum.whole_tiles += borders_.back() == 0 ? 1 : 0;
}

void PageTable::uncount_page() {
    Fragmentation& sum = fragmentation_;
    if (sum.tokens % kTileTokens == 0) {
        sum.tiles -= 1;
        sum.whole_tiles -= borders_.back() == 0 ? 1 : 0;
    }
    counted_ -= 1;
    sum.tokens -= pool_->page_size();
    sum.sessions = counted_ == 0 ? 0 : 1;
    count_border(counted_, -1);
    if (sum.tokens % kTileTokens == 0) borders_.pop_back();
}

void PageTable::count_border(size_t index, int32_t sign) {
    if (index > 0 && pages_[index] == pages_[index - 1] + 1) return;
    fragmentation_.runs += sign;
    const int32_t position = static_cast<int32_t>(index) * pool_->page_size();
    if (position % kTileTokens == 0) return;
    const int32_t tile = position / kTileTokens;
    uint8_t& borders = borders_[static_cast<size_t>(tile)];
    borders = static_cast<uint8_t>(borders + sign);
    const bool full = (tile + 1) * kTileTokens <= fragmentation_.tokens;
    // The tile stops being whole with its first border and is whole again without its last one.
    if (full && borders == (sign > 0 ? 1 : 0)) fragmentation_.whole_tiles -= sign;
}

}  // namespace kd
