// Where everything lies in the workspace: one function for the size query, the plan and the layers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attn_plan/attn_plan_split.h"

namespace kd {

/// Partials a multiprocessor in fast mode: 4 waves of split units; 16 where splits are forced.
inline constexpr int32_t kPartialsPerMultiprocessor = 4;
inline constexpr int32_t kForcedPartialsPerMultiprocessor = 16;

/// Row tiles of `requests` requests with `max_nodes` nodes between them, at most.
constexpr int32_t most_row_tiles(const kdt_attn_shape& shape, int32_t requests, int32_t max_nodes) {
    const int32_t group = shape.heads / shape.kv_heads;
    const int32_t filled = requests < max_nodes ? requests : max_nodes;
    return shape.kv_heads * ((max_nodes * group + (kTileRows - 1) * filled) / kTileRows);
}

/// Deterministic mode: prefix segments of one request, of both lengths, at most.
constexpr int32_t most_segments(const kdt_attn_shape& shape, int32_t max_context) {
    const int32_t tiles = ceil_div(max_context, least_tile_keys(shape));
    const int32_t most = most_row_segments(shape);
    return 2 * (tiles < most ? tiles : most);
}

/// The layout for steps of up to `requests` requests, `max_nodes` nodes in all and `max_context`
/// context tokens a request; every part 256-byte aligned if `base` is.
inline AttnWorkspace attn_workspace(const kdt_attn_shape& shape, int32_t requests,
                                    int32_t max_nodes, int32_t max_context, int32_t multiprocessors,
                                    void* base) {
    AttnWorkspace workspace;
    const int32_t row_tiles = most_row_tiles(shape, requests, max_nodes);
    const int32_t rows = max_nodes * shape.heads;
    if (shape.mode == KDT_ATTN_DETERMINISTIC) {
        workspace.partial_capacity =
            row_tiles * most_segments(shape, max_context) + max_nodes * node_tiles(shape);
        // All units have partials. In a shared step each stands twice; a larger step that is not
        // shared has room for that too, so that a workspace for it serves all smaller ones. Where
        // the list is of pairs, one a row tile and one of a request's paths may be half empty, or,
        // where all have blocks of their own, every one.
        const int32_t places = is_mla_wgmma_bf16(shape, AttnEngine::wgmma_sm90) ? 2 : 1;
        workspace.unit_capacity =
            places * workspace.partial_capacity + row_tiles + requests + multiprocessors;
        workspace.merge_item_capacity = rows;  // one a row at worst
        workspace.path_keys = attn_path_keys(shape);
    } else {
        const int32_t nodes = max_nodes < 128 ? max_nodes : 128;
        const int32_t tiles = ceil_div(max_context + nodes, least_tile_keys(shape));
        const int32_t room = multiprocessors * (shape.splits > 0 ? kForcedPartialsPerMultiprocessor
                                                                 : kPartialsPerMultiprocessor);
        const int64_t useful = tiles > 1 ? int64_t{row_tiles} * tiles : 0;
        workspace.partial_capacity = useful < room ? static_cast<int32_t>(useful) : room;
        workspace.unit_capacity = row_tiles + workspace.partial_capacity;
        // A row tile of p > 1 partials has at most min(p, rows) merge items, and no item is without
        // a row.
        const int32_t partials = workspace.partial_capacity;
        workspace.merge_item_capacity = partials < rows ? partials : rows;
    }

    // A block of the attention kernels reads its first unit, or pair, before it knows whether it
    // has one.
    if (workspace.unit_capacity < 2 * multiprocessors)
        workspace.unit_capacity = 2 * multiprocessors;

    size_t bytes = 0;
    auto place = [&bytes, base]<class T>(T*& part, size_t part_bytes) {
        part = base ? reinterpret_cast<T*>(static_cast<std::byte*>(base) + bytes) : nullptr;
        bytes += (part_bytes + 255) / 256 * 256;
    };
    auto count = [](int32_t n) { return static_cast<size_t>(n); };
    place(workspace.header, sizeof(PlanHeader));
    place(workspace.units, count(workspace.unit_capacity) * sizeof(WorkUnit));
    place(workspace.merge_items, count(workspace.merge_item_capacity) * sizeof(MergeItem));
    place(workspace.path_slots, count(max_nodes) * count(workspace.path_keys) * sizeof(int32_t));
    if (shape.kind == KDT_ATTN_MLA)
        place(workspace.first_slots, count(multiprocessors) * kFirstSlots * sizeof(int32_t));
    const size_t partial_rows = count(workspace.partial_capacity) * kTileRows;
    place(workspace.partial_lse, partial_rows * sizeof(float));
    std::byte* partial_out = nullptr;
    place(partial_out, partial_rows * count(attn_value_dim(shape)) * sizeof(uint16_t));
    workspace.partial_out = partial_out;
    workspace.bytes = bytes;
    return workspace;
}

constexpr PlanShape plan_shape(const kdt_attn_shape& shape, const AttnWorkspace& workspace,
                               int32_t max_nodes, int32_t multiprocessors, AttnEngine engine) {
    const bool shared = attn_shares_units(shape, engine, max_nodes * shape.heads, multiprocessors);
    return {.deterministic = shape.mode == KDT_ATTN_DETERMINISTIC,
            .kv_heads = shape.kv_heads,
            .group = shape.heads / shape.kv_heads,
            .sliding_window = shape.sliding_window,
            .max_depth = shape.max_depth,
            .splits = shape.splits,
            .multiprocessors = shared ? multiprocessors / 2 : multiprocessors,
            .tile_keys = attn_tile_keys(shape, engine),
            .segment_levels = attn_segment_levels(shape, engine),
            .entry = shared                            ? PlanEntry::shared
                     : attn_takes_pairs(shape, engine) ? PlanEntry::pair
                                                       : PlanEntry::unit,
            .path_keys = attn_path_keys(shape),
            .most_path_nodes_log2 = most_path_nodes_log2(shape, engine),
            .partial_capacity = workspace.partial_capacity,
            .costs = shared ? attn_shared_costs(shape, engine) : attn_costs(shape, engine)};
}

}  // namespace kd
