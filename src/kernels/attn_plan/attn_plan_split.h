// The planner's decisions as pure functions of lengths: how a step's keys are cut, and what unit
// and row tile stands at each index. attn_plan.cu runs them on the device, one thread an index;
// attn_plan_ref.cpp one after the other.
//
// Fast mode: one chunk length in key tiles for the whole step, chosen by predicted time. Request r
// is cut into ceil(tiles / chunk) parts whose sizes differ by at most one tile, all its row tiles
// at the same places. Units are ordered (request, part, K/V head, row tile): blocks that run at the
// same time read the same keys. Deterministic mode: no decision, see attn_plan.h.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_costs.h"
#include "kernels/attn_plan/attn_merge.h"

namespace kd {

/// Parts that the planner considers for a request: more than any device has multiprocessors.
inline constexpr int32_t kMostSplits = kMostPartials;

/// What the planner knows of the model and the device.
struct PlanShape {
    bool deterministic;
    int32_t kv_heads;
    int32_t group;  // query heads of a K/V head
    int32_t sliding_window;
    int32_t max_depth;
    int32_t splits;  // > 0: forced
    int32_t multiprocessors;
    int32_t tile_keys;  // of a key tile; deterministic mode: kTileKeys
    bool pairs;         // the main loop takes two row tiles of the same keys at a time where it can
    int32_t partial_capacity;
    AttnCosts costs;
};

/// Deterministic mode: the prefix segments of a request's nodes whose segments are equally long.
struct PrefixClass {
    int32_t segment_keys;
    int32_t key_begin;  // a multiple of kTileKeys: all keys before are outside the window
    int32_t key_end;    // the largest boundary of the class
    int32_t first;      // index of the first segment, from position 0
    int32_t count;
};

struct PlanRequest {
    int32_t context;
    int32_t nodes;
    int32_t first_node;
    int64_t pages_begin;    // of its entries in the page table
    int32_t row_tiles;      // of one K/V head
    int32_t first_tile;     // fast mode: key tiles [first_tile, first_tile + tiles)
    int32_t tiles;          // 0: no nodes
    PrefixClass prefix[2];  // deterministic mode, by position; count 0: none
};

/// How many of each a request has; also where its own begin in the step's lists.
struct PlanCounts {
    int32_t units;  // of the prefix in deterministic mode
    int32_t partials;
    int32_t merge_items;
    int32_t path_units;  // and partials, which come after all others
};

constexpr PlanCounts counts_sum(const PlanCounts& a, const PlanCounts& b) {
    return {a.units + b.units, a.partials + b.partials, a.merge_items + b.merge_items,
            a.path_units + b.path_units};
}

constexpr int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

/// Key tiles wholly before this key are in no window of a node at `position` or later.
constexpr int32_t first_window_tile(int32_t position, int32_t sliding_window, int32_t tile_keys) {
    const int32_t first = sliding_window > 0 ? position - sliding_window + 1 : 0;
    return first > 0 ? first / tile_keys : 0;
}

constexpr PrefixClass prefix_class(int32_t boundary, int32_t window_tile) {
    const int32_t segment = path_segment(boundary);
    const int32_t begin = window_tile * kTileKeys;
    if (begin >= boundary) return {segment, boundary, boundary, 0, 0};
    const int32_t first = begin / segment;
    return {segment, begin, boundary, first, ceil_div(boundary, segment) - first};
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
                        .prefix = {}};
    if (nodes <= 0) return request;
    request.first_tile = first_window_tile(context, shape.sliding_window, shape.tile_keys);
    request.tiles = ceil_div(context + nodes, shape.tile_keys) - request.first_tile;
    if (shape.deterministic) {
        // Depths differ by at most 64, so boundaries by at most kTileKeys: these two are all.
        const int32_t least = path_boundary(context + least_depth, shape.max_depth);
        const int32_t most = path_boundary(context + most_depth, shape.max_depth);
        const int32_t window_tile =
            first_window_tile(context + least_depth, shape.sliding_window, kTileKeys);
        request.prefix[0] = prefix_class(least, window_tile);
        if (path_segment(least) == path_segment(most)) {
            request.prefix[0] = prefix_class(most, window_tile);
        } else {
            request.prefix[1] = prefix_class(most, window_tile);
        }
    }
    return request;
}

/// Parts of a request's keys. `choice`: the chunk length in tiles, or the forced number of parts.
constexpr int32_t plan_splits(const PlanShape& shape, const PlanRequest& request, int32_t choice) {
    if (shape.deterministic) return request.prefix[0].count + request.prefix[1].count;
    if (shape.splits > 0) return choice < request.tiles ? choice : request.tiles;
    return ceil_div(request.tiles, choice);
}

constexpr int32_t path_units_of_node(const PlanShape& shape) {
    return shape.kv_heads * ceil_div(shape.group, kTileRows);
}

/// How the rows of a request are merged: all its row tiles have equally many partials.
struct MergeShape {
    int32_t chunks;  // of a row
    int32_t teams_log2;
    int32_t tile_items;  // of a full row tile
    int32_t head_items;  // of a K/V head
};

constexpr MergeShape plan_merge(const PlanShape& shape, const PlanRequest& request,
                                int32_t choice) {
    int32_t chunks = class_chunks(plan_splits(shape, request, choice), 0);
    if (shape.deterministic) {
        chunks = 1;
        for (const PrefixClass& prefix : request.prefix) {
            chunks += class_chunks(prefix.count, prefix.first % kMergeChunk);
        }
    }
    const int32_t teams_log2 = merge_teams_log2(chunks);
    const int32_t rows = merge_rows(teams_log2);
    const int32_t full_tiles = request.nodes * shape.group / kTileRows;
    const int32_t rest = request.nodes * shape.group % kTileRows;
    const int32_t tile_items = kTileRows / rows;
    return {chunks, teams_log2, tile_items, full_tiles * tile_items + ceil_div(rest, rows)};
}

constexpr PlanCounts plan_counts(const PlanShape& shape, const PlanRequest& request,
                                 int32_t choice) {
    const int32_t row_tiles = shape.kv_heads * request.row_tiles;
    const int32_t units = row_tiles * plan_splits(shape, request, choice);
    const int32_t merge_items = shape.kv_heads * plan_merge(shape, request, choice).head_items;
    if (shape.deterministic) {
        return {units, units, merge_items, request.nodes * path_units_of_node(shape)};
    }
    const bool split = units > row_tiles;
    return {units, split ? units : 0, split ? merge_items : 0, 0};
}

/// Time of a unit of `tiles` key tiles of this request while `units` units share the device. The
/// row tiles of a K/V head read the same keys at the same time, so memory delivers them once.
/// `together`: row tiles that a block takes at a time.
constexpr int32_t unit_ns(const PlanShape& shape, const PlanRequest& request, int32_t tiles,
                          int32_t units, int32_t together) {
    const AttnCosts& costs = shape.costs;
    const int32_t blocks = units < shape.multiprocessors ? units : shape.multiprocessors;
    const int32_t memory =
        costs.tile_memory_ns * blocks / (shape.multiprocessors * (request.row_tiles / together));
    int32_t tile = memory;
    if (together * costs.tile_compute_ns > tile) tile = together * costs.tile_compute_ns;
    if (costs.tile_lone_ns > tile) tile = costs.tile_lone_ns;
    const int32_t fill = tiles < kFillTiles ? tiles : kFillTiles;
    return costs.unit_ns + fill * memory + tiles * tile;
}

inline constexpr int64_t kNeverNs = int64_t{1} << 50;

/// Predicted time of a step in fast mode; kNeverNs: more partials than there is room for. Block b
/// takes units b, b + grid, ...; counted as if all waited for the longest unit of each such wave,
/// exact where the requests are alike.
constexpr int64_t predicted_ns(const PlanShape& shape, const PlanRequest* requests, int32_t count,
                               int32_t choice) {
    int32_t units = 0;
    int32_t partials = 0;
    int64_t partial_rows = 0;
    int64_t merged_rows = 0;
    for (int32_t r = 0; r < count; ++r) {
        const PlanRequest& request = requests[r];
        const int32_t parts = plan_splits(shape, request, choice);
        const int32_t row_tiles = shape.kv_heads * request.row_tiles;
        units += row_tiles * parts;
        if (parts > 1) {
            partials += row_tiles * parts;
            const int64_t rows = int64_t{request.nodes} * shape.group * shape.kv_heads;
            partial_rows += rows * parts;
            merged_rows += rows;
        }
    }
    if (partials > shape.partial_capacity) return kNeverNs;
    int32_t together = shape.pairs && units > shape.multiprocessors ? 2 : 1;
    for (int32_t r = 0; r < count; ++r) {
        if (requests[r].row_tiles % 2 != 0) together = 1;
    }
    units /= together;

    int64_t done_ns = 0;
    int32_t wave_ns = 0;                   // longest unit of the wave that is being filled
    int32_t room = shape.multiprocessors;  // units it still takes
    for (int32_t r = 0; r < count; ++r) {
        const PlanRequest& request = requests[r];
        if (request.tiles == 0) continue;
        const int32_t parts = plan_splits(shape, request, choice);
        const int32_t ns = unit_ns(shape, request, ceil_div(request.tiles, parts), units, together);
        int32_t left = shape.kv_heads * request.row_tiles * parts / together;
        if (ns > wave_ns) wave_ns = ns;
        if (left < room) {
            room -= left;
            continue;
        }
        left -= room;
        const int32_t waves = left / shape.multiprocessors;
        left -= waves * shape.multiprocessors;
        done_ns += wave_ns + int64_t{waves} * ns;
        wave_ns = left > 0 ? ns : 0;
        room = shape.multiprocessors - left;
    }
    done_ns += wave_ns;
    if (partials > 0) {
        const int64_t rows_ps =
            partial_rows * shape.costs.partial_row_ps + merged_rows * shape.costs.merged_row_ps;
        done_ns += shape.costs.combine_ns + rows_ps / 1000;
    }
    return done_ns;
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

/// Unit `index` of request `r`, in fast mode or of the deterministic prefix; `first`: where the
/// request's units and partials begin.
constexpr WorkUnit plan_unit(const PlanShape& shape, const PlanRequest& request, int32_t r,
                             const PlanCounts& first, int32_t choice, int32_t index) {
    const int32_t splits = plan_splits(shape, request, choice);
    const int32_t tile = index % request.row_tiles;
    const int32_t kv_head = index / request.row_tiles % shape.kv_heads;
    const int32_t split = index / (request.row_tiles * shape.kv_heads);
    const int32_t rows = request.nodes * shape.group - tile * kTileRows;
    WorkUnit unit{.request = r,
                  .kv_head = kv_head,
                  .row_begin = tile * kTileRows,
                  .rows = rows < kTileRows ? rows : kTileRows,
                  .key_begin = 0,
                  .key_end = 0,
                  .partial = -1,
                  .segment_keys = 0,
                  .path_node = -1,
                  .context = request.context,
                  .nodes = request.nodes,
                  .first_node = request.first_node,
                  .pages_begin = request.pages_begin,
                  .unused = 0};
    if (shape.deterministic || splits > 1) {
        unit.partial = first.partials + (kv_head * request.row_tiles + tile) * splits + split;
    }
    if (shape.deterministic) {
        const bool second = split >= request.prefix[0].count;
        const PrefixClass& prefix = request.prefix[second ? 1 : 0];
        const int32_t segment = prefix.first + (second ? split - request.prefix[0].count : split);
        const int32_t begin = segment * prefix.segment_keys;
        const int32_t end = begin + prefix.segment_keys;
        unit.segment_keys = prefix.segment_keys;
        unit.key_begin = begin > prefix.key_begin ? begin : prefix.key_begin;
        unit.key_end = end < prefix.key_end ? end : prefix.key_end;
    } else {
        const int32_t keys = request.context + request.nodes;
        const int32_t end_tile = request.first_tile + (split + 1) * request.tiles / splits;
        const int32_t end_key = end_tile * shape.tile_keys;
        unit.key_begin = (request.first_tile + split * request.tiles / splits) * shape.tile_keys;
        unit.key_end = end_key < keys ? end_key : keys;
    }
    return unit;
}

/// Path unit `index` of request `r`: node index / path_units_of_node(shape), at `position`.
constexpr WorkUnit plan_path_unit(const PlanShape& shape, const PlanRequest& request, int32_t r,
                                  int32_t path_partial, int32_t index, int32_t position) {
    const int32_t blocks = ceil_div(shape.group, kTileRows);
    const int32_t node = index / (shape.kv_heads * blocks);
    const int32_t row = index % blocks * kTileRows;
    const int32_t rows = shape.group - row;
    return {.request = r,
            .kv_head = index / blocks % shape.kv_heads,
            .row_begin = node * shape.group + row,
            .rows = rows < kTileRows ? rows : kTileRows,
            .key_begin = path_boundary(position, shape.max_depth),
            .key_end = position + 1,
            .partial = path_partial + index,
            .segment_keys = 0,
            .path_node = node,
            .context = request.context,
            .nodes = request.nodes,
            .first_node = request.first_node,
            .pages_begin = request.pages_begin,
            .unused = 0};
}

/// Merge item `index` of request `r`; `path_partial`: of the request, -1 in fast mode.
constexpr MergeItem plan_merge_item(const PlanShape& shape, const PlanRequest& request, int32_t r,
                                    const PlanCounts& first, int32_t choice, int32_t path_partial,
                                    int32_t index) {
    const int32_t splits = plan_splits(shape, request, choice);
    const MergeShape merge = plan_merge(shape, request, choice);
    const int32_t kv_head = index / merge.head_items;
    const int32_t tile = index % merge.head_items / merge.tile_items;
    const int32_t most_rows = merge_rows(merge.teams_log2);
    const int32_t row_begin = index % merge.head_items * most_rows;
    const int32_t rows = request.nodes * shape.group - row_begin;
    MergeItem item{.first_node = request.first_node,
                   .row_begin = row_begin,
                   .first_partial = first.partials + (kv_head * request.row_tiles + tile) * splits,
                   .partials = splits,
                   .path_partial = path_partial,
                   .first_class = static_cast<uint16_t>(splits),
                   .phase = {0, 0},
                   .kv_head = static_cast<uint8_t>(kv_head),
                   .rows = static_cast<uint8_t>(rows < most_rows ? rows : most_rows),
                   .teams_log2 = static_cast<uint8_t>(merge.teams_log2),
                   .chunks = static_cast<uint8_t>(merge.chunks),
                   .request = r};
    if (shape.deterministic) {
        item.first_class = static_cast<uint16_t>(request.prefix[0].count);
        item.phase[0] = static_cast<uint8_t>(request.prefix[0].first % kMergeChunk);
        item.phase[1] = static_cast<uint8_t>(request.prefix[1].first % kMergeChunk);
    }
    return item;
}

}  // namespace kd
