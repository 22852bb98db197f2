// How a step's keys are cut, as pure functions of lengths; attn_plan_time.h chooses among the cuts,
// attn_plan_units.h says which unit and merge item stands at each index. attn_plan.cu runs them on
// the device, one thread an index; attn_plan_ref.cpp one after the other.
//
// Fast mode: one chunk length in key tiles for the whole step, chosen by predicted time. Request r
// is cut into ceil(tiles / chunk) parts whose sizes differ by at most one tile, all its row tiles
// at the same places. Units are ordered (request, part, K/V head, row tile): blocks that run at the
// same time read the same keys.
//
// Deterministic mode: where keys are cut follows from positions (attn_plan.h). What is left to
// decide is which block computes what: consecutive segments of a row tile make a run, of about as
// many keys as a part in fast mode would have, and so do a few paths, of about as much time. A
// block takes runs as it takes units in fast mode, a run's units one after the other.
//
// Where the main loop takes pairs, the list is one of pairs: two row tiles of the same segment, or,
// in requests with an odd number of row tiles, two segments of one row tile if there are more units
// than blocks, else one alone; two path units of one request. An entry of the list is a pair there,
// elsewhere a unit.
//
// In a shared step (attn_shares_units) an entry is a unit that stands in the list twice, for both
// blocks of a cluster; the step is planned as if half as many multiprocessors took units faster.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_costs.h"
#include "kernels/attn_plan/attn_merge.h"

namespace kd {

/// Parts that the planner considers for a request: more than any device has multiprocessors.
inline constexpr int32_t kMostSplits = kMostPartials;

static_assert(2 * kMostSegments <= kMostPartials);  // twice: attn_segment_levels

/// Deterministic mode: what an entry of the list is.
enum class PlanEntry : int32_t {
    unit,
    pair,    // two units, one a consumer of the block (attn_takes_pairs)
    shared,  // a unit twice, once for each block of a cluster (attn_shares_units)
};

/// What the planner knows of the model and the device.
struct PlanShape {
    bool deterministic;
    int32_t kv_heads;
    int32_t group;  // query heads of a K/V head
    int32_t sliding_window;
    int32_t max_depth;
    int32_t splits;                // > 0: forced
    int32_t multiprocessors;       // a shared step: pairs of them
    int32_t tile_keys;             // of a key tile
    SegmentLevels segment_levels;  // deterministic mode
    PlanEntry entry;
    int32_t path_keys;
    int32_t most_path_nodes_log2;
    int32_t partial_capacity;
    AttnCosts costs;
};

/// Deterministic mode: the prefix segments of a request's nodes whose segments are equally long.
struct PrefixClass {
    int32_t segment_keys;
    int32_t key_begin;  // a multiple of tile_keys: all keys before are outside the window
    int32_t key_end;    // no boundary of the class is beyond
    int32_t first;      // index of the first segment, from position 0
    int32_t count;
};

struct PlanRequest {
    int32_t context;
    int32_t nodes;
    int32_t first_node;
    int64_t pages_begin;  // of its entries in the page table
    int32_t row_tiles;    // of one K/V head
    int32_t first_tile;   // fast mode: key tiles [first_tile, first_tile + tiles)
    int32_t tiles;        // 0: no nodes
    // Deterministic mode.
    int32_t least_boundary;
    PrefixClass prefix[2];  // by position; count 0: none
    int32_t segment_tiles;  // of prefix[0]
    bool adjacent;          // takes_adjacent() of the step
};

/// How many of each a request has; also where its own begin in the step's lists.
struct PlanCounts {
    int32_t runs;     // of the prefix in deterministic mode; in fast mode the units
    int32_t entries;  // deterministic mode: of the prefix
    int32_t partials;
    int32_t merge_items;
    int32_t path_units;  // and partials, which come after all others
    int32_t path_entries;
};

constexpr PlanCounts counts_sum(const PlanCounts& a, const PlanCounts& b) {
    return {a.runs + b.runs,
            a.entries + b.entries,
            a.partials + b.partials,
            a.merge_items + b.merge_items,
            a.path_units + b.path_units,
            a.path_entries + b.path_entries};
}

// Divisions are what planning takes its time for: one thread makes dozens, one after the other.
constexpr int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}
constexpr int32_t ceil_shift(int32_t a, int32_t log2) {
    return (a + (1 << log2) - 1) >> log2;
}
/// The same of a > 0, where it is mostly 1.
constexpr int32_t turns(int32_t a, int32_t b) {
    return a <= b ? 1 : ceil_div(a, b);
}

/// Key tiles of so many keys; as a shift, or a division by a constant.
constexpr int32_t key_tiles(const PlanShape& shape, int32_t keys) {
    if (shape.tile_keys == kMlaWgmmaTileKeys) return ceil_div(keys, kMlaWgmmaTileKeys);
    return ceil_shift(keys, kTileKeysLog2);
}

/// Deterministic mode: places in the list that an entry takes.
constexpr int32_t entry_width(const PlanShape& shape) {
    return shape.entry == PlanEntry::unit ? 1 : 2;
}
/// Blocks that take a run together.
constexpr int32_t run_blocks(const PlanShape& shape) {
    return shape.entry == PlanEntry::shared ? 2 : 1;
}
/// Deterministic mode: path units that stand side by side in an entry.
constexpr int32_t entry_paths_log2(const PlanShape& shape) {
    return shape.entry == PlanEntry::pair ? 1 : 0;
}

/// Units in the list of a step that has `total` of everything.
constexpr int32_t plan_units(const PlanShape& shape, const PlanCounts& total) {
    if (!shape.deterministic) return total.runs;
    return entry_width(shape) * (total.entries + total.path_entries);
}

constexpr int32_t node_tiles(const PlanShape& shape) {
    return node_tiles(shape.kv_heads, shape.group);
}

/// Deterministic mode: path units of a request with so many nodes.
constexpr int32_t path_units(const PlanShape& shape, int32_t nodes, int32_t path_nodes_log2) {
    return ceil_shift(nodes, path_nodes_log2) * node_tiles(shape);
}

/// Deterministic mode: entries of a request's path units with so many nodes.
constexpr int32_t path_entries(const PlanShape& shape, int32_t nodes, int32_t path_nodes_log2) {
    return ceil_shift(path_units(shape, nodes, path_nodes_log2), entry_paths_log2(shape));
}

/// Deterministic mode: key tiles of a segment for rows of this boundary. A function of the boundary
/// alone, in steps of an eighth or one tile, so that rows of one tree rarely differ.
constexpr int32_t segment_tiles_of(const PlanShape& shape, int32_t boundary) {
    const int32_t tiles = boundary > 0 ? key_tiles(shape, boundary) : 1;
    int32_t segment = tiles;
    for (const SegmentLevel& level : shape.segment_levels.level) {
        segment = ceil_div(tiles, level.segments);
        if (segment < level.least_tiles) segment = level.least_tiles;
        if (segment <= level.most_tiles) break;
    }
    int32_t step_log2 = 0;
    while (segment >> step_log2 >= 16) ++step_log2;
    return ceil_shift(segment, step_log2) << step_log2;
}
/// Its keys.
constexpr int32_t segment_of(const PlanShape& shape, int32_t boundary) {
    return segment_tiles_of(shape, boundary) * shape.tile_keys;
}

/// Key tiles wholly before this key are in no window of a node at `position` or later.
constexpr int32_t first_window_tile(int32_t position, int32_t sliding_window, int32_t tile_keys) {
    const int32_t first = sliding_window > 0 ? position - sliding_window + 1 : 0;
    return first > 0 ? first / tile_keys : 0;
}

constexpr PrefixClass prefix_class(int32_t segment_keys, int32_t begin, int32_t end) {
    if (begin >= end) return {segment_keys, end, end, 0, 0};
    const int32_t first = begin > 0 ? begin / segment_keys : 0;
    return {segment_keys, begin, end, first, ceil_div(end, segment_keys) - first};
}

/// Where a request is: its tokens, its nodes, its part of the page table.
struct PlanExtent {
    int32_t context;
    int32_t nodes;
    int32_t first_node;
    int64_t pages_begin;
};

/// `least_depth` and `most_depth` of its nodes matter in deterministic mode only.
constexpr PlanRequest plan_request(const PlanShape& shape, const PlanExtent& extent,
                                   int32_t least_depth, int32_t most_depth) {
    const int32_t context = extent.context;
    const int32_t nodes = extent.nodes;
    PlanRequest request{.context = context,
                        .nodes = nodes,
                        .first_node = extent.first_node,
                        .pages_begin = extent.pages_begin,
                        .row_tiles = ceil_div(nodes * shape.group, kTileRows),
                        .first_tile = 0,
                        .tiles = 0,
                        .least_boundary = 0,
                        .prefix = {},
                        .segment_tiles = 0,
                        .adjacent = false};
    if (nodes <= 0) return request;
    request.first_tile = first_window_tile(context, shape.sliding_window, shape.tile_keys);
    request.tiles = key_tiles(shape, context + nodes) - request.first_tile;
    if (shape.deterministic) {
        const int32_t least = path_boundary(context + least_depth, shape.max_depth);
        const int32_t most = path_boundary(context + most_depth, shape.max_depth);
        const int32_t begin =
            shape.tile_keys *
            first_window_tile(context + least_depth, shape.sliding_window, shape.tile_keys);
        request.least_boundary = least;
        const int32_t tiles = segment_tiles_of(shape, most);
        const int32_t least_tiles = least == most ? tiles : segment_tiles_of(shape, least);
        request.prefix[0] = prefix_class(tiles * shape.tile_keys, begin, most);
        request.segment_tiles = least_tiles;
        // Depths differ by 64 at most: there is no third length.
        if (least_tiles != tiles) {
            int32_t end = least;
            while (segment_tiles_of(shape, end + kBoundaryKeys) == least_tiles)
                end += kBoundaryKeys;
            request.prefix[1] = request.prefix[0];
            request.prefix[0] = prefix_class(least_tiles * shape.tile_keys, begin, end);
        }
    }
    return request;
}

/// What the requests of a step have together.
struct PlanTotals {
    int32_t most_tiles = 0;
    // Deterministic mode.
    int32_t least_segment_tiles = kAnyTiles / kMostSplits / 2;  // plan_considers() multiplies it
    int32_t prefix_units = 0;
    int32_t most_nodes = 0;
    int32_t path_entries[kMostPathNodesLog2 + 1] = {};  // with 2^i nodes a path unit
};

/// Parts of a request's keys: partials of its row tiles. `choice`: the chunk length in tiles, or
/// the forced number of parts.
constexpr int32_t plan_splits(const PlanShape& shape, const PlanRequest& request, int32_t choice) {
    if (shape.deterministic) return request.prefix[0].count + request.prefix[1].count;
    if (shape.splits > 0) return choice < request.tiles ? choice : request.tiles;
    return ceil_div(request.tiles, choice);
}

/// Deterministic mode: row tiles of the same keys, and segments of the same row tile, that stand
/// side by side in an entry.
constexpr int32_t entry_tiles_log2(const PlanShape& shape, const PlanRequest& request) {
    return shape.entry == PlanEntry::pair && request.row_tiles % 2 == 0 ? 1 : 0;
}
constexpr int32_t entry_segments_log2(const PlanShape& shape, const PlanRequest& request) {
    const bool alone = request.row_tiles % 2 != 0;
    return shape.entry == PlanEntry::pair && request.adjacent && alone ? 1 : 0;
}

/// Deterministic mode: units of the request's prefix.
constexpr int32_t prefix_units(const PlanShape& shape, const PlanRequest& request) {
    return shape.kv_heads * request.row_tiles * (request.prefix[0].count + request.prefix[1].count);
}
/// Whether two segments of a row tile stand side by side: not while each of the step's `units` can
/// have a block of its own.
constexpr bool takes_adjacent(const PlanShape& shape, int32_t units) {
    return units > shape.multiprocessors;
}

/// Deterministic mode: entries that a row tile, or two together, make.
constexpr int32_t plan_entries(const PlanShape& shape, const PlanRequest& request, int32_t choice) {
    return ceil_shift(plan_splits(shape, request, choice), entry_segments_log2(shape, request));
}

/// Entries that a run has at most.
constexpr int32_t run_entries(const PlanShape& shape, const PlanRequest& request, int32_t choice) {
    const int32_t entries = plan_entries(shape, request, choice);
    if (entries == 0) return 0;
    if (shape.splits > 0) return ceil_div(entries, choice);
    const int32_t tiles = request.segment_tiles << entry_segments_log2(shape, request);
    if (choice < 2 * tiles) return 1;
    const int32_t wanted = choice / tiles;
    return wanted < entries ? wanted : entries;
}
/// Runs that so many entries make, of so many at most.
constexpr int32_t entry_runs(int32_t entries, int32_t of_run) {
    return of_run <= 1 ? entries : ceil_div(entries, of_run);
}

/// Parts that blocks take of a row tile: in deterministic mode runs of entries.
constexpr int32_t plan_parts(const PlanShape& shape, const PlanRequest& request, int32_t choice) {
    if (!shape.deterministic) return plan_splits(shape, request, choice);
    return entry_runs(plan_entries(shape, request, choice), run_entries(shape, request, choice));
}

/// Begin of part `part` of `parts` that `count` things are cut into, alike but for one.
constexpr int32_t part_begin(int32_t part, int32_t parts, int32_t count) {
    return count / parts * part + count % parts * part / parts;
}
/// The same with all smaller parts before the larger ones: their blocks are the first to go on.
constexpr int32_t rising_begin(int32_t part, int32_t parts, int32_t count) {
    if (parts == count) return part;
    const int32_t smaller = parts - count % parts;
    return count / parts * part + (part > smaller ? part - smaller : 0);
}

/// How the rows of a request are merged: all its row tiles have equally many partials.
struct MergeShape {
    int32_t teams_log2;
    int32_t tile_items;  // of a full row tile
    int32_t head_items;  // of a K/V head
};

constexpr MergeShape plan_merge(const PlanShape& shape, const PlanRequest& request,
                                int32_t choice) {
    int32_t chunks = partial_chunks(plan_splits(shape, request, choice), 0);
    if (shape.deterministic) {
        const PrefixClass& prefix = request.prefix[0];
        chunks = partial_chunks(prefix.count, prefix.first % kMergeChunk);
        // A row is merged with others of its class alone.
        if (request.prefix[1].count > 0) chunks = kMergeTeams;
    }
    const int32_t teams_log2 = merge_teams_log2(chunks, shape.deterministic);
    const int32_t rows_log2 = kMergeTeamsLog2 - teams_log2;
    const int32_t full_tiles = request.nodes * shape.group / kTileRows;
    const int32_t rest = request.nodes * shape.group % kTileRows;
    const int32_t tile_items = kTileRows >> rows_log2;
    return {teams_log2, tile_items, full_tiles * tile_items + ceil_shift(rest, rows_log2)};
}

/// All of plan_counts() but the merge items and the path units.
constexpr PlanCounts unit_counts(const PlanShape& shape, const PlanRequest& request,
                                 int32_t choice) {
    const int32_t row_tiles = shape.kv_heads * request.row_tiles;
    const int32_t parts = plan_parts(shape, request, choice);
    if (!shape.deterministic) {
        const int32_t runs = row_tiles * parts;
        return {runs, 0, runs > row_tiles ? runs : 0, 0, 0, 0};
    }
    const int32_t columns = row_tiles >> entry_tiles_log2(shape, request);
    return {columns * parts,
            columns * plan_entries(shape, request, choice),
            row_tiles * plan_splits(shape, request, choice),
            0,
            0,
            0};
}

constexpr PlanCounts plan_counts(const PlanShape& shape, const PlanRequest& request, int32_t choice,
                                 int32_t path_nodes_log2) {
    PlanCounts counts = unit_counts(shape, request, choice);
    if (shape.deterministic) {
        counts.path_units = path_units(shape, request.nodes, path_nodes_log2);
        counts.path_entries = path_entries(shape, request.nodes, path_nodes_log2);
    }
    if (shape.deterministic || counts.partials > 0) {
        counts.merge_items = shape.kv_heads * plan_merge(shape, request, choice).head_items;
    }
    return counts;
}

}  // namespace kd
