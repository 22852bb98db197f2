// How attn_combine merges the partials of a row: chunks of kMergeChunk partials, each merged on its
// own, then the chunks in ascending order.
//
// In deterministic mode a chunk holds the segments [c * kMergeChunk, (c + 1) * kMergeChunk),
// counted from position 0 whether or not the first of them were planned, and the path comes after
// all chunks. So which partials of a row meet in one chunk, and where in it each stands, is a
// function of its path; partials of lse -inf are skipped, and chunks of nothing else are.
#pragma once

#include "kernels/attn_plan/attn_plan.h"

namespace kd {

inline constexpr int32_t kMergeChunk = 8;
/// Teams of a combine block; each merges one chunk of one row.
inline constexpr int32_t kMergeTeamsLog2 = 5;
inline constexpr int32_t kMergeTeams = 1 << kMergeTeamsLog2;
/// Fast mode: partials of a row, at most.
inline constexpr int32_t kMostPartials = kMergeTeams * kMergeChunk;

/// Places `begin`..`end` of a chunk hold a partial; place i is partial `origin` + i, counted from
/// MergeItem::first_partial. Origin is negative where the first segments were not planned.
struct MergeRange {
    int32_t origin;
    int32_t begin;
    int32_t end;
};

/// Chunks of so many partials; without any the phase is 0.
constexpr int32_t partial_chunks(int32_t partials, int32_t phase) {
    return static_cast<int32_t>(static_cast<uint32_t>(phase + partials + kMergeChunk - 1) /
                                kMergeChunk);
}

/// MergeItem::chunks.
constexpr int32_t merge_chunks(const MergeItem& item) {
    return partial_chunks(item.partials, item.phase);
}

/// Partials of chunk `chunk`.
constexpr MergeRange merge_chunk(const MergeItem& item, int32_t chunk) {
    const int32_t origin = chunk * kMergeChunk - item.phase;
    const int32_t end = item.partials - origin;
    return {origin, origin < 0 ? -origin : 0, end < kMergeChunk ? end : kMergeChunk};
}

/// Base-2 log of the teams that a row of `chunks` chunks gets: one a chunk, rounded up; 1, 4, 8,
/// ... A path is merged by the teams that end the row, which a team alone does not.
constexpr int32_t merge_teams_log2(int32_t chunks, bool path) {
    if (chunks <= 1 && !path) return 0;
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
