// Where the rows of an accepted path go.
#pragma once

#include <cstdint>
#include <span>

namespace kd {

/// The commit of an accepted path: row of node path[i] in the tail scratch goes to position
/// context + i. tail: slot of each node; positions: the page table's slots; from and to: [path].
void plan_commit(std::span<const int32_t> path, std::span<const int32_t> tail, int32_t context,
                 std::span<const int32_t> positions, std::span<int32_t> from,
                 std::span<int32_t> to);

}  // namespace kd
