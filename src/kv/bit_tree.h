// A set of integers below a bound as a tree of bit words: 64 children a node, so neighbours are
// found in log64 of the bound, four steps for 16 million.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kd {

class BitTree {
  public:
    explicit BitTree(int32_t bound);

    bool contains(int32_t value) const {
        return (levels_.front()[static_cast<size_t>(value >> 6)] >> (value & 63) & 1) != 0;
    }
    void insert(int32_t value);
    void erase(int32_t value);
    /// The smallest member that is at least `value` (not negative); -1: none.
    int32_t at_or_after(int32_t value) const;
    /// The largest member that is at most `value` (below the bound); -1: none.
    int32_t at_or_before(int32_t value) const;
    int32_t last() const { return at_or_before(bound_ - 1); }

  private:
    int32_t bound_;
    std::vector<std::vector<uint64_t>> levels_;  // [0]: a bit a value; [k + 1]: a bit a word of [k]
};

}  // namespace kd
