// The order in which attn_combine merges the partials of a row tile: chunks of kMergeChunk
// partials, each merged on its own, then the chunks in ascending order.
//
// In deterministic mode a chunk holds the segments [c * kMergeChunk, (c + 1) * kMergeChunk) of one
// segment class, counted from position 0 whether or not the first of them were planned, and the
// path is a chunk of its own. So which partials of a row meet in one chunk is a function of its
// path; partials of lse -inf are skipped, and chunks of nothing else are.
#pragma once

#include "kernels/attn_plan/attn_plan.h"

namespace kd {

inline constexpr int32_t kMergeChunk = 12;
/// Deterministic mode: 128 segments of one class, 65 of the next, and the path.
inline constexpr int32_t kMostPathChunks =
    (128 + kMergeChunk - 1) / kMergeChunk + (65 + kMergeChunk - 1) / kMergeChunk + 1;

struct PartialRange {
    int32_t begin;  // counted from RowTile::first_partial
    int32_t end;
};

constexpr int32_t class_chunks(int32_t partials, int32_t phase) {
    return partials > 0 ? (phase + partials + kMergeChunk - 1) / kMergeChunk : 0;
}

/// Chunks of a row tile, the path's excluded.
constexpr int32_t merge_chunks(const RowTile& tile) {
    return class_chunks(tile.first_class, tile.phase[0]) +
           class_chunks(tile.partials - tile.first_class, tile.phase[1]);
}

/// Partials of chunk `chunk` < merge_chunks(tile).
constexpr PartialRange merge_chunk(const RowTile& tile, int32_t chunk) {
    const int32_t first_chunks = class_chunks(tile.first_class, tile.phase[0]);
    const bool second = chunk >= first_chunks;
    const int32_t class_begin = second ? tile.first_class : 0;
    const int32_t class_end = second ? tile.partials : tile.first_class;
    const int32_t begin = class_begin - (second ? tile.phase[1] : tile.phase[0]) +
                          (second ? chunk - first_chunks : chunk) * kMergeChunk;
    const int32_t end = begin + kMergeChunk;
    return {begin > class_begin ? begin : class_begin, end < class_end ? end : class_end};
}

}  // namespace kd
