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
    const int32_t kv_head = index < request.row_tiles ? 0 : index / request.row_tiles;
    unit.kv_head = kv_head;
    unit.row_begin = (index - kv_head * request.row_tiles) * kTileRows;
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

/// Where the entries of a run stand in the list: the first at the run's own number, the others side
/// by side behind the first ones of all runs.
struct RunPlace {
    int32_t runs;    // of the step, paths too
    int32_t number;  // of this one
    int32_t others;  // where its second entry stands
    int32_t entries;
    int32_t width;  // of an entry

    /// Where entry `entry` stands: its unit, or the first of two.
    constexpr int32_t at(int32_t entry) const {
        return width * (entry == 0 ? number : others + entry - 1);
    }
    /// WorkUnit::next in entry `entry`.
    constexpr int32_t after(int32_t entry, int32_t blocks) const {
        if (entry + 1 < entries) return at(entry + 1);
        return number + blocks < runs ? width * (number + blocks) : kLastUnit;
    }
};

/// What stands beside the only unit of a pair.
constexpr WorkUnit empty_unit(const WorkUnit& beside) {
    WorkUnit unit = beside;
    unit.rows = 0;
    unit.key_begin = unit.key_end;
    unit.partial = -1;
    return unit;
}

/// Stores entry `entry` of a run: `first` and what stands beside it, `beside()` where that is
/// another unit. `store(i, unit)`: `unit` is the list's i-th.
template <class Beside, class Store>
constexpr void store_entry(const PlanShape& shape, const RunPlace& place, int32_t entry,
                           const WorkUnit& first, const Beside& beside, Store&& store) {
    const int32_t at = place.at(entry);
    WorkUnit unit = first;
    unit.next = place.after(entry, shape.multiprocessors);
    store(at, unit);
    if (shape.entry == PlanEntry::pair) {
        WorkUnit second = beside();
        second.next = unit.next;
        store(at + 1, second);
    } else if (shape.entry == PlanEntry::shared) {
        if (unit.next != kLastUnit) ++unit.next;
        store(at + 1, unit);
    }
}

/// Deterministic mode: partial `split` of row tile `tile`, without its successor.
constexpr WorkUnit plan_segment_unit(const PlanShape& shape, const PlanRequest& request, int32_t r,
                                     int32_t first_partial, int32_t splits, int32_t tile,
                                     int32_t split) {
    const bool second = split >= request.prefix[0].count;
    const PrefixClass& prefix = request.prefix[second ? 1 : 0];
    const int32_t segment = prefix.first + (second ? split - request.prefix[0].count : split);
    const int32_t key = segment * prefix.segment_keys;
    const int32_t end = key + prefix.segment_keys;
    WorkUnit unit = row_tile_unit(shape, request, r, tile);
    unit.partial = first_partial + tile * splits + split;
    unit.segment_keys = prefix.segment_keys;
    unit.key_begin = key > prefix.key_begin ? key : prefix.key_begin;
    unit.key_end = end < prefix.key_end ? end : prefix.key_end;
    unit.seen_end = unit.key_end < request.least_boundary ? unit.key_end : request.least_boundary;
    return unit;
}

/// Deterministic mode: stores the units of prefix run `index` of request `r`. `first`: of the
/// request; `runs`: of the step, of paths too. `store(i, unit)`: `unit` is the list's i-th.
template <class Store>
constexpr void plan_prefix_run(const PlanShape& shape, const PlanRequest& request, int32_t r,
                               const PlanCounts& first, int32_t runs, int32_t choice, int32_t index,
                               Store&& store) {
    const int32_t splits = plan_splits(shape, request, choice);
    const int32_t entries = plan_entries(shape, request, choice);
    const int32_t parts = plan_parts(shape, request, choice);
    const int32_t tiles_log2 = entry_tiles_log2(shape, request);
    const int32_t segments_log2 = entry_segments_log2(shape, request);
    const int32_t columns = shape.kv_heads * request.row_tiles >> tiles_log2;
    const int32_t part = index / columns;
    const int32_t column = index - part * columns;
    const int32_t begin = rising_begin(part, parts, entries);
    const int32_t end = rising_begin(part + 1, parts, entries);
    const int32_t entries_before = first.entries + begin * columns + column * (end - begin);
    const int32_t number = first.runs + index;
    const RunPlace place = {.runs = runs,
                            .number = number,
                            .others = runs + entries_before - number,
                            .entries = end - begin,
                            .width = entry_width(shape)};
    for (int32_t i = begin; i < end; ++i) {
        const int32_t tile = column << tiles_log2;
        const int32_t split = i << segments_log2;
        const WorkUnit unit =
            plan_segment_unit(shape, request, r, first.partials, splits, tile, split);
        const auto beside = [&] {
            if (tiles_log2 + segments_log2 == 0 || split + segments_log2 >= splits)
                return empty_unit(unit);
            return plan_segment_unit(shape, request, r, first.partials, splits, tile + tiles_log2,
                                     split + segments_log2);
        };
        store_entry(shape, place, i - begin, unit, beside, store);
    }
}

/// Deterministic mode: the nodes of path unit `index` of a request; none beyond its last.
struct PathNodes {
    int32_t first;
    int32_t count;
};
constexpr PathNodes path_nodes(const PlanShape& shape, const PlanRequest& request,
                               int32_t path_nodes_log2, int32_t index) {
    const int32_t first = index / node_tiles(shape) << path_nodes_log2;
    const int32_t rest = request.nodes - first;
    return {first, rest < 1 << path_nodes_log2 ? rest : 1 << path_nodes_log2};
}

/// Deterministic mode: path unit `index` of request `r`, without its successor, of `nodes`, the
/// last of which is at `position`; `partial`: of the request's first. Without nodes: what stands
/// beside the only unit of a pair.
constexpr WorkUnit plan_path_unit(const PlanShape& shape, const PlanRequest& request, int32_t r,
                                  int32_t partial, int32_t index, const PathNodes& nodes,
                                  int32_t position) {
    const int32_t blocks = ceil_div(shape.group, kTileRows);
    const int32_t row = index % blocks * kTileRows;
    const int32_t rows = nodes.count * shape.group - row;
    WorkUnit unit = request_unit(request, r);
    unit.path_node = nodes.first;
    if (nodes.count <= 0) return unit;
    unit.kv_head = index / blocks % shape.kv_heads;
    unit.row_begin = nodes.first * shape.group + row;
    unit.rows = rows < kTileRows ? rows : kTileRows;
    unit.key_end = (nodes.count - 1) * shape.path_keys + position + 1 -
                   path_boundary(position, shape.max_depth);
    unit.seen_end = nodes.count == 1 ? unit.key_end : 0;
    unit.partial = partial + index;
    return unit;
}

/// Deterministic mode: stores the units of path run `index` of `path_runs`; `total`: of the step.
/// `unit_of(i, side)`: of the step's i-th entry of paths; side 1: of a pair.
template <class UnitOf, class Store>
constexpr void plan_path_run(const PlanShape& shape, const PlanCounts& total, int32_t path_runs,
                             int32_t index, const UnitOf& unit_of, Store&& store) {
    const int32_t begin = part_begin(index, path_runs, total.path_entries);
    const int32_t end = part_begin(index + 1, path_runs, total.path_entries);
    const RunPlace place = {.runs = total.runs + path_runs,
                            .number = total.runs + index,
                            .others = path_runs + total.entries + begin - index,
                            .entries = end - begin,
                            .width = entry_width(shape)};
    for (int32_t i = begin; i < end; ++i) {
        store_entry(
            shape, place, i - begin, unit_of(i, 0), [&] { return unit_of(i, 1); }, store);
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
                                    int32_t path_nodes_log2, int32_t position, int32_t index) {
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
                   .path_nodes_log2 = static_cast<uint8_t>(path_nodes_log2),
                   .unused = {}};
    if (shape.deterministic) {
        const bool second = path_boundary(position, shape.max_depth) > request.prefix[0].key_end;
        const PrefixClass& prefix = request.prefix[second ? 1 : 0];
        if (second) item.first_partial += request.prefix[0].count;
        item.partials = static_cast<uint16_t>(prefix.count);
        item.phase = static_cast<uint8_t>(prefix.first % kMergeChunk);
    }
    item.chunks = static_cast<uint8_t>(merge_chunks(item));
    return item;
}

}  // namespace kd
