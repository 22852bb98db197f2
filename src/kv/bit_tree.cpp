#include "kv/bit_tree.h"

#include <bit>

#include "base/check.h"

namespace kd {

namespace {

constexpr uint64_t kOne = 1;

}  // namespace

BitTree::BitTree(int32_t bound) : bound_(bound) {
    KD_CHECK(bound >= 0, "bound {}", bound);
    size_t words = static_cast<size_t>(bound);
    do {
        words = (words + 63) / 64;
        levels_.emplace_back(words == 0 ? 1 : words, 0);
    } while (words > 1);
}

void BitTree::insert(int32_t value) {
    for (std::vector<uint64_t>& level : levels_) {
        uint64_t& word = level[static_cast<size_t>(value >> 6)];
        const bool known = word != 0;
        word |= kOne << (value & 63);
        if (known) return;
        value >>= 6;
    }
}

void BitTree::erase(int32_t value) {
    for (std::vector<uint64_t>& level : levels_) {
        uint64_t& word = level[static_cast<size_t>(value >> 6)];
        word &= ~(kOne << (value & 63));
        if (word != 0) return;
        value >>= 6;
    }
}

int32_t BitTree::at_or_after(int32_t value) const {
    if (value >= bound_) return -1;
    // Up while the rest of the word is empty, then down along the first bits.
    for (size_t level = 0; level < levels_.size(); ++level) {
        auto index = static_cast<size_t>(value >> 6);
        if (index >= levels_[level].size()) return -1;
        uint64_t word = levels_[level][index] & (~uint64_t{0} << (value & 63));
        if (word == 0) {
            value = static_cast<int32_t>(index) + 1;
            continue;
        }
        for (;;) {
            value = static_cast<int32_t>(index << 6) + std::countr_zero(word);
            if (level == 0) return value;
            index = static_cast<size_t>(value);
            word = levels_[--level][index];
        }
    }
    return -1;
}

int32_t BitTree::at_or_before(int32_t value) const {
    for (size_t level = 0; level < levels_.size() && value >= 0; ++level) {
        auto index = static_cast<size_t>(value >> 6);
        uint64_t word = levels_[level][index] & (~uint64_t{0} >> (63 - (value & 63)));
        if (word == 0) {
            value = static_cast<int32_t>(index) - 1;
            continue;
        }
        for (;;) {
            value = static_cast<int32_t>(index << 6) + 63 - std::countl_zero(word);
            if (level == 0) return value;
            index = static_cast<size_t>(value);
            word = levels_[--level][index];
        }
    }
    return -1;
}

}  // namespace kd
