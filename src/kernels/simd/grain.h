// How many rows one chunk of a row-wise op holds.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kd {

/// Rows whose values together are worth handing to another thread: `chunk_values` is what one core
/// does in a few microseconds, several times what a hand-over costs.
constexpr int64_t rows_per_chunk(int64_t columns, int64_t chunk_values) {
    return std::max<int64_t>(1, chunk_values / std::max<int64_t>(1, columns));
}

}  // namespace kd
