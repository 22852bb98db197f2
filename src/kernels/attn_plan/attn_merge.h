// How attn_combine merges the partials of a row: chunks of kMergeChunk partials, each merged on its
// own, then the chunks in ascending order.
//
// In deterministic mode a chunk holds the segments [c * kMergeChunk, (c + 1) * kMergeChunk) of one
// segment class, counted from position 0 whether or not the first of them were planned, and the
// path is a chunk of its own. So which partials of a row meet in one chunk, and where in it each
// stands, is a function of its path; partials of lse -inf are skipped, and chunks of nothing else
// are.
#pragma once

#include "kernels/attn_plan/attn_plan.h"

namespace kd {

inline constexpr int32_t kMergeChunk = 8;
/// Teams of a combine block; each merges one chunk of one row.
inline constexpr int32_t kMergeTeams = 32;
/// Fast mode: partials of a row, at most.
inline constexpr int32_t kMostPartials = kMergeTeams * kMergeChunk;
/// Deterministic mode: 128 segments of one class, 65 of the next, and the path.
inline constexpr int32_t kMostPathChunks =
    (128 + kMergeChunk - 1) / kMergeChunk + (65 + kMergeChunk - 1) / kMergeChunk + 1;
static_assert(kMostPathChunks <= kMergeTeams);

/// Places `begin`..`end` of a chunk hold a partial; place i is partial `origin` + i, counted from
/// MergeItem::first_partial. Origin is negative where the first segments were not planned.
struct MergeRange {
    int32_t origin;
    int32_t begin;
    int32_t end;
};

/// Of a class without partials the phase is 0.
constexpr int32_t class_chunks(int32_t partials, int32_t phase) {
    return static_cast<int32_t>(static_cast<uint32_t>(phase + partials + kMergeChunk - 1) /
                                kMergeChunk);
}

/// MergeItem::chunks.
constexpr int32_t merge_chunks(const MergeItem& item) {
    return class_chunks(item.first_class, item.phase[0]) +
           class_chunks(item.partials - item.first_class, item.phase[1]) +
           (item.path_partial >= 0 ? 1 : 0);
}

/// Partials of chunk `chunk`, which is not the path's.
constexpr MergeRange merge_chunk(const MergeItem& item, int32_t chunk) {
    const int32_t first_chunks = class_chunks(item.first_class, item.phase[0]);
    const bool second = chunk >= first_chunks;
    const int32_t class_begin = second ? item.first_class : 0;
    const int32_t class_end = second ? item.partials : item.first_class;
    const int32_t origin = class_begin - (second ? item.phase[1] : item.phase[0]) +
                           (second ? chunk - first_chunks : chunk) * kMergeChunk;
    const int32_t end = class_end - origin;
    return {origin, origin < class_begin ? class_begin - origin : 0,
            end < kMergeChunk ? end : kMergeChunk};
}

/// Base-2 log of the teams that a row of `chunks` chunks gets: one a chunk, rounded up; 1, 4, 8,
/// ...
constexpr int32_t merge_teams_log2(int32_t chunks) {
    if (chunks <= 1) return 0;
    int32_t log2 = 2;
    while ((1 << log2) < chunks) ++log2;
    return log2;
}

/// Rows that a combine block takes at a time; divides kTileRows.
constexpr int32_t merge_rows(int32_t teams_log2) {
    return kMergeTeams >> teams_log2;
}
static_assert(kTileRows % kMergeTeams == 0);

}  // namespace kd
