// What the planner believes a step takes, and its choice: the cut of least predicted time.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_plan_split.h"

namespace kd {

/// Time of a key tile of this request's while `units` units share the device, from memory and in
/// all. The row tiles of a K/V head read the same keys at the same time, so memory delivers them
/// once. `together`: row tiles that a block takes at a time.
struct TileTime {
    int32_t memory_ns;
    int32_t ns;
};
constexpr TileTime tile_time(const PlanShape& shape, const PlanRequest& request, int32_t units,
                             int32_t together) {
    const AttnCosts& costs = shape.costs;
    const int32_t blocks = units < shape.multiprocessors ? units : shape.multiprocessors;
    const int32_t memory =
        costs.tile_memory_ns * blocks / (shape.multiprocessors * (request.row_tiles / together));
    int32_t tile = memory;
    if (together * costs.tile_compute_ns > tile) tile = together * costs.tile_compute_ns;
    if (costs.tile_lone_ns > tile) tile = costs.tile_lone_ns;
    return {memory, tile};
}

/// Time of a unit of `tiles` key tiles.
constexpr int32_t unit_ns(const PlanShape& shape, const TileTime& time, int32_t tiles) {
    const int32_t fill = tiles < kFillTiles ? tiles : kFillTiles;
    return shape.costs.unit_ns + fill * time.memory_ns + tiles * time.ns;
}

/// Blocks take units in turn; counted as if all waited for the longest of each wave, exact where
/// the requests are alike.
struct WaveClock {
    int32_t blocks;
    int32_t room;       // units that the wave still takes
    int32_t wave_ns;    // its longest unit
    int64_t before_ns;  // of the waves before

    constexpr explicit WaveClock(int32_t multiprocessors)
        : blocks(multiprocessors), room(multiprocessors), wave_ns(0), before_ns(0) {}
    constexpr void add(int32_t units, int32_t ns) {
        if (units == 0) return;
        if (ns > wave_ns) wave_ns = ns;
        if (units < room) {
            room -= units;
            return;
        }
        const int32_t left = units - room;
        before_ns += wave_ns + int64_t{left / blocks} * ns;
        wave_ns = left % blocks > 0 ? ns : 0;
        room = blocks - left % blocks;
    }
    constexpr int64_t ns() const { return before_ns + wave_ns; }
};

/// Deterministic mode: time of a run of the prefix, and of a path unit, which waits for its own.
constexpr int32_t run_ns(const PlanShape& shape, const PlanRequest& request, const TileTime& time,
                         int32_t choice) {
    const int32_t segments = run_segments(shape, request, choice);
    const int32_t tiles = request.prefix[0].segment_keys / shape.tile_keys * segments;
    return unit_ns(shape, time, tiles) + (segments - 1) * shape.costs.segment_ns;
}
/// As long as its arithmetic takes, whatever else runs; fast mode: 0.
constexpr int32_t run_compute_ns(const PlanShape& shape, const PlanRequest& request,
                                 int32_t choice) {
    if (!shape.deterministic) return 0;
    const int32_t tile_ns = shape.costs.tile_compute_ns;
    return run_ns(shape, request, {tile_ns, tile_ns}, choice);
}
constexpr int32_t path_ns(const PlanShape& shape) {
    const int32_t tiles = ceil_div(shape.max_depth + kBoundaryKeys, shape.tile_keys);
    return shape.costs.path_ns + tiles * shape.costs.tile_compute_ns;
}

/// Deterministic mode: runs that the step's path units make, `prefix_ns`: of the longest run of the
/// prefix. Blocks without one in the last wave take them all if that lasts no longer than giving
/// every block one more run.
constexpr int32_t plan_path_runs(const PlanShape& shape, const PlanCounts& total,
                                 int32_t prefix_ns) {
    const int32_t blocks = shape.multiprocessors;
    const int32_t paths = total.path_units;
    if (paths == 0) return 0;
    const int32_t idle = (blocks - total.runs % blocks) % blocks;
    const int64_t spread_ns = prefix_ns + int64_t{ceil_div(paths, idle + blocks)} * path_ns(shape);
    const bool packed = idle > 0 && int64_t{ceil_div(paths, idle)} * path_ns(shape) <= spread_ns;
    const int32_t most = packed ? idle : idle + blocks;
    return paths < most ? paths : most;
}

inline constexpr int64_t kNeverNs = int64_t{1} << 50;

/// Predicted time of a step; kNeverNs: more partials than there is room for.
constexpr int64_t predicted_ns(const PlanShape& shape, const PlanRequest* requests, int32_t count,
                               int32_t choice) {
    PlanCounts total{};
    int64_t partial_rows = 0;
    int64_t merged_rows = 0;
    int32_t together = 2;
    for (int32_t r = 0; r < count; ++r) {
        const PlanRequest& request = requests[r];
        const PlanCounts counts = unit_counts(shape, request, choice);
        total = counts_sum(total, counts);
        if (counts.partials > 0) {
            const int64_t rows = int64_t{request.nodes} * shape.group * shape.kv_heads;
            partial_rows += rows * plan_splits(shape, request, choice);
            merged_rows += rows;
        }
        if (request.row_tiles % 2 != 0) together = 1;
    }
    if (total.partials + total.path_units > shape.partial_capacity) return kNeverNs;
    if (!shape.pairs || total.runs <= shape.multiprocessors) together = 1;

    WaveClock clock(shape.multiprocessors);
    int32_t prefix_ns = 0;
    for (int32_t r = 0; r < count; ++r) {
        const PlanRequest& request = requests[r];
        if (request.tiles == 0) continue;
        const TileTime time = tile_time(shape, request, total.runs / together, together);
        const int32_t parts = plan_parts(shape, request, choice);
        const int32_t ns = shape.deterministic
                               ? run_ns(shape, request, time, choice)
                               : unit_ns(shape, time, ceil_div(request.tiles, parts));
        clock.add(shape.kv_heads * request.row_tiles * parts / together, ns);
        const int32_t compute_ns = run_compute_ns(shape, request, choice);
        if (compute_ns > prefix_ns) prefix_ns = compute_ns;
    }
    const int32_t path_runs = plan_path_runs(shape, total, prefix_ns);
    if (path_runs > 0) clock.add(path_runs, ceil_div(total.path_units, path_runs) * path_ns(shape));
    int64_t ns = clock.ns();
    if (total.partials > 0) {
        const int64_t rows_ps =
            partial_rows * shape.costs.partial_row_ps + merged_rows * shape.costs.merged_row_ps;
        ns += shape.costs.combine_ns + rows_ps / 1000;
    }
    return ns;
}

/// What plan_splits() takes: chunk length that cuts the request with the most tiles into about
/// `parts` parts, 1..kMostSplits, or `parts` itself where splits are forced.
constexpr int32_t plan_choice(const PlanShape& shape, int32_t most_tiles, int32_t parts) {
    if (shape.splits > 0) return parts;
    return most_tiles > parts ? ceil_div(most_tiles, parts) : 1;
}

/// The candidate `parts` of least score is chosen, of several the one with the fewest parts.
constexpr int64_t plan_score(const PlanShape& shape, const PlanRequest* requests, int32_t count,
                             int32_t most_tiles, int32_t parts) {
    if (parts > 1 && parts > (shape.splits > 0 ? shape.splits : most_tiles)) return kNeverNs;
    const int64_t ns = predicted_ns(shape, requests, count, plan_choice(shape, most_tiles, parts));
    // Forced: as many parts as there is room for.
    return shape.splits > 0 && ns < kNeverNs ? kMostSplits - parts : ns;
}

}  // namespace kd
