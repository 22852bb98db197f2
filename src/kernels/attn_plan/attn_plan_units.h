// The plan's lists: what stands at each index.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_plan_split.h"

namespace kd {

/// The fields that all units of a request have in common.
constexpr WorkUnit request_unit(const PlanRequest& request, int32_t r) {
    return {.request = r,
            .kv_head = 0,
            .row_begin = 0,
            .rows = 0,
            .key_begin = 0,
            .key_end = 0,
            .partial = -1,
            .segment_keys = 0,
            .path_node = -1,
            .context = request.context,
            .nodes = request.nodes,
            .first_node = request.first_node,
            .pages_begin = request.pages_begin,
            .seen_end = 0,
            .next = 0};
}

/// Row tile `index` of a request, K/V head by K/V head, as the rows of a unit.
constexpr WorkUnit row_tile_unit(const PlanShape& shape, const PlanRequest& request, int32_t r,
                                 int32_t index) {
    WorkUnit unit = request_unit(request, r);
    unit.kv_head = index / request.row_tiles;
    unit.row_begin = index % request.row_tiles * kTileRows;
    const int32_t rows = request.nodes * shape.group - unit.row_begin;
    unit.rows = rows < kTileRows ? rows : kTileRows;
    return unit;
}

/// Fast mode: unit `index` of request `r`; `first`: where the request's units and partials begin.
constexpr WorkUnit plan_unit(const PlanShape& shape, const PlanRequest& request, int32_t r,
                             const PlanCounts& first, int32_t choice, int32_t index) {
    const int32_t splits = plan_splits(shape, request, choice);
    const int32_t row_tiles = shape.kv_heads * request.row_tiles;
    const int32_t split = index / row_tiles;
    WorkUnit unit = row_tile_unit(shape, request, r, index % row_tiles);
    if (splits > 1) unit.partial = first.partials + index % row_tiles * splits + split;
    const int32_t keys = request.context + request.nodes;
    const int32_t first_tile = request.first_tile + part_begin(split, splits, request.tiles);
    const int32_t end_tile = request.first_tile + part_begin(split + 1, splits, request.tiles);
    unit.key_begin = first_tile * shape.tile_keys;
    unit.key_end = end_tile * shape.tile_keys < keys ? end_tile * shape.tile_keys : keys;
    unit.seen_end = unit.key_end < request.context ? unit.key_end : request.context;
    return unit;
}

/// Where the units of a run stand in the list: the first at the run's own number, the others side
/// by side behind the first ones of all runs.
struct RunPlace {
    int32_t runs;    // of the step, paths too
    int32_t number;  // of this one
    int32_t others;  // where its second unit stands
    int32_t units;

    constexpr int32_t at(int32_t unit) const { return unit == 0 ? number : others + unit - 1; }
    /// WorkUnit::next of unit `unit`.
    constexpr int32_t after(int32_t unit, int32_t blocks) const {
        if (unit + 1 < units) return others + unit;
        return number + blocks < runs ? number + blocks : kLastUnit;
    }
};

/// Deterministic mode: stores the units of prefix run `index` of request `r`. `first`: of the
/// request; `runs`: of the step, of paths too. `store(i, unit)`: `unit` is the list's i-th.
template <class Store>
constexpr void plan_prefix_run(const PlanShape& shape, const PlanRequest& request, int32_t r,
                               const PlanCounts& first, int32_t runs, int32_t choice, int32_t index,
                               Store&& store) {
    const int32_t splits = plan_splits(shape, request, choice);
    const int32_t parts = plan_parts(shape, request, choice);
    const int32_t row_tiles = shape.kv_heads * request.row_tiles;
    const int32_t tile = index % row_tiles;
    const int32_t begin = rising_begin(index / row_tiles, parts, splits);
    const int32_t segments = rising_begin(index / row_tiles + 1, parts, splits) - begin;
    const int32_t units_before = first.partials + begin * row_tiles + tile * segments;
    const int32_t number = first.runs + index;
    const RunPlace place = {runs, number, runs + units_before - number, segments};
    WorkUnit unit = row_tile_unit(shape, request, r, tile);
    for (int32_t i = 0; i < segments; ++i) {
        const int32_t split = begin + i;
        const bool second = split >= request.prefix[0].count;
        const PrefixClass& prefix = request.prefix[second ? 1 : 0];
        const int32_t segment = prefix.first + (second ? split - request.prefix[0].count : split);
        const int32_t key = segment * prefix.segment_keys;
        const int32_t end = key + prefix.segment_keys;
        unit.partial = first.partials + tile * splits + split;
        unit.segment_keys = prefix.segment_keys;
        unit.key_begin = key > prefix.key_begin ? key : prefix.key_begin;
        unit.key_end = end < prefix.key_end ? end : prefix.key_end;
        unit.seen_end =
            unit.key_end < request.least_boundary ? unit.key_end : request.least_boundary;
        unit.next = place.after(i, shape.multiprocessors);
        store(place.at(i), unit);
    }
}

/// Deterministic mode: path unit `index` of request `r`, without its successor, of node
/// index / path_units_of_node(shape) at `position`; `partial`: of the request's first.
constexpr WorkUnit plan_path_unit(const PlanShape& shape, const PlanRequest& request, int32_t r,
                                  int32_t partial, int32_t index, int32_t position) {
    const int32_t blocks = ceil_div(shape.group, kTileRows);
    const int32_t row = index % blocks * kTileRows;
    const int32_t rows = shape.group - row;
    WorkUnit unit = request_unit(request, r);
    unit.path_node = index / path_units_of_node(shape);
    unit.kv_head = index / blocks % shape.kv_heads;
    unit.row_begin = unit.path_node * shape.group + row;
    unit.rows = rows < kTileRows ? rows : kTileRows;
    unit.key_begin = path_boundary(position, shape.max_depth);
    unit.key_end = position + 1;
    unit.seen_end = unit.key_end;
    unit.partial = partial + index;
    return unit;
}

/// Deterministic mode: stores the units of path run `index` of `path_runs`; `total`: of the step.
/// `unit_of(i)`: the step's i-th path unit.
template <class UnitOf, class Store>
constexpr void plan_path_run(const PlanShape& shape, const PlanCounts& total, int32_t path_runs,
                             int32_t index, const UnitOf& unit_of, Store&& store) {
    const int32_t begin = part_begin(index, path_runs, total.path_units);
    const int32_t end = part_begin(index + 1, path_runs, total.path_units);
    const RunPlace place = {.runs = total.runs + path_runs,
                            .number = total.runs + index,
                            .others = path_runs + total.partials + begin - index,
                            .units = end - begin};
    for (int32_t i = begin; i < end; ++i) {
        WorkUnit unit = unit_of(i);
        unit.next = place.after(i - begin, shape.multiprocessors);
        store(place.at(i - begin), unit);
    }
}

/// First row of merge item `index` of a request, and of the request's.
constexpr int32_t merge_item_row(const PlanShape& shape, const PlanRequest& request, int32_t choice,
                                 int32_t index) {
    const MergeShape merge = plan_merge(shape, request, choice);
    return index % merge.head_items * merge_rows(merge.teams_log2);
}

/// Merge item `index` of request `r`. Deterministic mode: `path_partial`, of the request, -1 in
/// fast mode, and `position`, of the node whose row is the first.
constexpr MergeItem plan_merge_item(const PlanShape& shape, const PlanRequest& request, int32_t r,
                                    const PlanCounts& first, int32_t choice, int32_t path_partial,
                                    int32_t position, int32_t index) {
    const int32_t splits = plan_splits(shape, request, choice);
    const MergeShape merge = plan_merge(shape, request, choice);
    const int32_t kv_head = index / merge.head_items;
    const int32_t tile = index % merge.head_items / merge.tile_items;
    const int32_t most_rows = merge_rows(merge.teams_log2);
    const int32_t row_begin = merge_item_row(shape, request, choice, index);
    const int32_t rows = request.nodes * shape.group - row_begin;
    MergeItem item{.first_node = request.first_node,
                   .row_begin = row_begin,
                   .first_partial = first.partials + (kv_head * request.row_tiles + tile) * splits,
                   .path_partial = path_partial,
                   .request = r,
                   .partials = static_cast<uint16_t>(splits),
                   .phase = 0,
                   .kv_head = static_cast<uint8_t>(kv_head),
                   .rows = static_cast<uint8_t>(rows < most_rows ? rows : most_rows),
                   .teams_log2 = static_cast<uint8_t>(merge.teams_log2),
                   .chunks = 0,
                   .unused = {}};
    if (shape.deterministic) {
        const int32_t boundary = path_boundary(position, shape.max_depth);
        const bool second = segment_of(shape, boundary) != request.prefix[0].segment_keys;
        const PrefixClass& prefix = request.prefix[second ? 1 : 0];
        if (second) item.first_partial += request.prefix[0].count;
        item.partials = static_cast<uint16_t>(prefix.count);
        item.phase = static_cast<uint8_t>(prefix.first % kMergeChunk);
    }
    item.chunks = static_cast<uint8_t>(merge_chunks(item));
    return item;
}

}  // namespace kd
