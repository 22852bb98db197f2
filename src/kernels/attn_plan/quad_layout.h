// How the bf16 MLA loop on sm_90a lays out the values of its partials: as its accumulators hold
// them, so that a thread stores its registers as they are. Of 32 columns of a row the four threads
// of a quad have 2 of every 8 each, 16 bytes.
#pragma once

#include <cstdint>

namespace kd {

inline constexpr int32_t kQuadDim = 512;  // values of a row
inline constexpr int32_t kQuadColumns = 32;

/// Index of what thread `quad` of a quad has of columns [32 group, 32 group + 32) of row `row`, 8
/// values: value i is column 32 group + i / 2 * 8 + 2 quad + i % 2.
constexpr int32_t quad_values_at(int32_t row, int32_t group, int32_t quad) {
    return row * kQuadDim + group * kQuadColumns + quad * 8;
}
/// Index of the columns `column` and the next of a row, `column` even.
constexpr int32_t quad_pair_at(int32_t row, int32_t column) {
    return quad_values_at(row, column / kQuadColumns, column % 8 / 2) +
           column % kQuadColumns / 8 * 2;
}

}  // namespace kd
