// What the planner believes a step takes, and its choice: the cut of least predicted time.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_plan_split.h"

namespace kd {

/// Time of a key tile of this request's while `units` units share the device, from memory and in
/// all. The row tiles of a K/V head read the same keys at the same time, so memory delivers them
/// once. `together_log2`: row tiles that a block takes at a time.
struct TileTime {
    int32_t memory_ns;
    int32_t ns;
};
constexpr TileTime tile_time(const PlanShape& shape, const PlanRequest& request, int32_t units,
                             int32_t together_log2) {
    const AttnCosts& costs = shape.costs;
    const int32_t blocks = units < shape.multiprocessors ? units : shape.multiprocessors;
    const int32_t readers = request.row_tiles >> together_log2;
    const int32_t memory = costs.tile_memory_ns * blocks / (shape.multiprocessors * readers);
    const int32_t compute = costs.tile_compute_ns << together_log2;
    int32_t tile = memory;
    if (compute > tile) tile = compute;
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

/// Deterministic mode: time of a run of so many entries of the prefix.
constexpr int32_t run_ns(const PlanShape& shape, const PlanRequest& request, const TileTime& time,
                         int32_t entries) {
    const int32_t tiles = request.segment_tiles * entries << entry_segments_log2(shape, request);
    return unit_ns(shape, time, tiles) + (entries - 1) * shape.costs.segment_ns;
}
/// Of an entry of path units, each of which waits for its own keys.
constexpr int32_t path_ns(const PlanShape& shape, int32_t nodes) {
    const int32_t tiles = key_tiles(shape, nodes * shape.path_keys);
    return shape.costs.path_ns + tiles * shape.costs.path_tile_ns;
}

/// Deterministic mode: how the step's paths are taken.
struct PathChoice {
    int32_t nodes_log2;  // nodes of a unit, at most
    int32_t runs;
    int64_t ns;  // beyond the prefix, of all blocks
};

inline constexpr int64_t kNeverNs = int64_t{1} << 50;

/// With 2^nodes_log2 nodes a unit. `idle`: blocks without a run of the prefix in the last wave,
/// `prefix_ns`: of the longest run. The idle ones take all paths if that lasts no longer than
/// giving every block one more run.
constexpr PathChoice path_choice_of(const PlanShape& shape, const PlanTotals& totals, int32_t idle,
                                    int32_t prefix_ns, int32_t nodes_log2) {
    const int32_t entries = totals.path_entries[nodes_log2];
    if (entries == 0) return {nodes_log2, 0, 0};
    const int32_t nodes = 1 << nodes_log2;
    const int32_t all = idle + shape.multiprocessors;
    const int32_t entry_ns = path_ns(shape, nodes < totals.most_nodes ? nodes : totals.most_nodes);
    const int64_t spread_ns = int64_t{turns(entries, all)} * entry_ns;
    if (idle > 0) {
        const int64_t idle_ns = int64_t{turns(entries, idle)} * entry_ns - prefix_ns;
        if (idle_ns <= spread_ns)
            return {nodes_log2, entries < idle ? entries : idle, idle_ns > 0 ? idle_ns : 0};
    }
    return {nodes_log2, entries < all ? entries : all, spread_ns};
}

/// As few units as take no longer than others. `runs`: of the prefix.
constexpr PathChoice plan_paths(const PlanShape& shape, const PlanTotals& totals, int32_t runs,
                                int32_t prefix_ns) {
    const int32_t blocks = shape.multiprocessors;
    const int32_t last = runs <= blocks ? runs : runs % blocks;
    const int32_t idle = last > 0 ? blocks - last : 0;
    int32_t log2 = shape.most_path_nodes_log2;
    while (log2 > 0 && totals.most_nodes <= 1 << (log2 - 1)) --log2;
    PathChoice best = {0, 0, kNeverNs};
    for (; log2 >= 0; --log2) {
        const PathChoice next = path_choice_of(shape, totals, idle, prefix_ns, log2);
        if (next.ns < best.ns) best = next;
    }
    return best;
}

/// Of a cut: predicted time of the step, kNeverNs where there is no room for its partials, and how
/// it would take the paths.
struct Prediction {
    int64_t ns;
    PathChoice paths;
};

constexpr Prediction predict(const PlanShape& shape, const PlanRequest* requests, int32_t count,
                             const PlanTotals& totals, int32_t choice) {
    PlanCounts total{};
    int64_t partial_rows = 0;
    int64_t merged_rows = 0;
    int32_t together_log2 = shape.deterministic ? 0 : 1;  // fast mode
    for (int32_t r = 0; r < count; ++r) {
        const PlanRequest& request = requests[r];
        const PlanCounts counts = unit_counts(shape, request, choice);
        total = counts_sum(total, counts);
        if (counts.partials > 0) {
            const int64_t rows = int64_t{request.nodes} * shape.group * shape.kv_heads;
            partial_rows += rows * plan_splits(shape, request, choice);
            merged_rows += rows;
        }
        if (request.row_tiles % 2 != 0) together_log2 = 0;
    }
    if (shape.entry != PlanEntry::pair || total.runs <= shape.multiprocessors) together_log2 = 0;

    WaveClock clock(shape.multiprocessors);
    int32_t prefix_ns = 0;
    for (int32_t r = 0; r < count; ++r) {
        const PlanRequest& request = requests[r];
        if (request.tiles == 0) continue;
        const int32_t side_log2 =
            shape.deterministic ? entry_tiles_log2(shape, request) : together_log2;
        const TileTime time = tile_time(shape, request, total.runs >> together_log2, side_log2);
        int32_t parts = 0;
        int32_t ns = 0;
        if (shape.deterministic) {
            const int32_t entries = run_entries(shape, request, choice);
            parts = entry_runs(plan_entries(shape, request, choice), entries);
            ns = run_ns(shape, request, time, entries);
            if (ns > prefix_ns) prefix_ns = ns;
        } else {
            parts = plan_parts(shape, request, choice);
            ns = unit_ns(shape, time, ceil_div(request.tiles, parts));
        }
        clock.add((shape.kv_heads * request.row_tiles >> side_log2) * parts, ns);
    }
    int64_t ns = clock.ns();
    PathChoice paths{};
    if (shape.deterministic) {
        paths = plan_paths(shape, totals, total.runs, prefix_ns);
        // Of cuts that the paths outlast alike the one with the shortest runs.
        ns += paths.ns + prefix_ns / 256;
    }
    if (total.partials > 0) {
        const int64_t rows_ps =
            partial_rows * shape.costs.partial_row_ps + merged_rows * shape.costs.merged_row_ps;
        ns += shape.costs.combine_ns + rows_ps / 1000;
    }
    return {total.partials > shape.partial_capacity ? kNeverNs : ns, paths};
}

/// What plan_splits() takes: chunk length that cuts the request with the most tiles into about
/// `parts` parts, 1..kMostSplits, or `parts` itself where splits are forced.
constexpr int32_t plan_choice(const PlanShape& shape, int32_t most_tiles, int32_t parts) {
    if (shape.splits > 0) return parts;
    return most_tiles > parts ? ceil_div(most_tiles, parts) : 1;
}

/// Whether the candidate `parts` can be the one that is chosen: not where one with fewer parts is
/// the same step, be it because a part has one key tile already, be it, in deterministic mode,
/// because no run has two segments already (run_entries).
constexpr bool plan_considers(const PlanShape& shape, const PlanTotals& totals, int32_t parts) {
    if (parts == 1) return true;
    if (shape.splits > 0) return parts <= shape.splits;
    if (parts > totals.most_tiles) return false;
    return !shape.deterministic ||
           (parts - 1) * (2 * totals.least_segment_tiles - 1) < totals.most_tiles;
}

/// Of the candidate `parts`; the one of least ns is chosen, of several the one with the fewest
/// parts. Where splits are forced ns only says that more parts are better, while there is room.
constexpr Prediction plan_candidate(const PlanShape& shape, const PlanRequest* requests,
                                    int32_t count, const PlanTotals& totals, int32_t parts) {
    if (!plan_considers(shape, totals, parts)) return {kNeverNs, {}};
    const int32_t choice = plan_choice(shape, totals.most_tiles, parts);
    Prediction of = predict(shape, requests, count, totals, choice);
    if (shape.splits > 0 && of.ns < kNeverNs) of.ns = kMostSplits - parts;
    return of;
}

}  // namespace kd
