// Which node a row of a request belongs to, without a division: that would stand between a unit, or
// a merge item, and everything that waits for its addresses.
#pragma once

#include <cstdint>

namespace kd {

/// Rows are nodes by heads, or by the heads of a group. Made before the rows are known. Exact for
/// rows below 2^14 and 1 to 128 of them a node: the reciprocal's error then stays below 1.
struct NodeOfRow {
    static constexpr int32_t kShift = 21;
    uint32_t reciprocal;  // 2^kShift / rows_a_node, rounded up

    constexpr explicit NodeOfRow(int32_t rows_a_node)
        : reciprocal(((1u << kShift) + static_cast<uint32_t>(rows_a_node) - 1) /
                     static_cast<uint32_t>(rows_a_node)) {}
    constexpr int32_t operator()(int32_t row) const {
        return static_cast<int32_t>(uint64_t{static_cast<uint32_t>(row)} * reciprocal >> kShift);
    }
};

}  // namespace kd
