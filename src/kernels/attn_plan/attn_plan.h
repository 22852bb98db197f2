// attn_plan: cuts one step's tree-verify attention into work units, on the device, once a step.
//
// Rows of a request are packed node by node, head by head: row = node * group + head in group
// (group = heads / kv_heads; MLA has one latent head, so group = heads). A row tile is up to
// kTileRows consecutive rows of one request and K/V head. Keys of a request are its context
// positions followed by its tree nodes: key k < context is position k, key context + i is node i.
// A work unit is a row tile and a range of whole key tiles: tile_keys keys each, what the main loop
// takes at a time (attn_tile_keys in attn_costs.h). The tail's mask is tested only in tiles that
// reach beyond the context.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kdtree/kernels.h"

namespace kd {

inline constexpr int32_t kMostRequests = 64;
inline constexpr int32_t kMostNodes = 128;  // of a request

inline constexpr int32_t kTileRows = 64;
inline constexpr int32_t kTileKeysLog2 = 6;
inline constexpr int32_t kTileKeys = 1 << kTileKeysLog2;
/// Key tile of the bf16 MLA main loop on sm_90a, which gets units of whole multiples.
inline constexpr int32_t kMlaWgmmaTileKeys = 48;

/// What one thread block works on at a time, or, in deterministic mode where the main loop takes
/// pairs (attn_takes_pairs), one of its two consumers. Three kinds:
///   fast mode:           segment_keys 0, path_node -1: keys are the request's, key k < context a
///                        position, key context + i node i, seen as the ancestor words say;
///   deterministic prefix: segment_keys > 0: whole tiles of context positions, one segment; a row
///                        sees those below the boundary of its own position;
///   deterministic path:  path_node >= 0: the rows are those of one or a few nodes; the keys of
///                        node path_node + i, from i * path_keys on, are the positions
///                        [boundary(p), p] of its path, which its rows alone see; slots from
///                        path_slots.
/// Which of them a block takes: first_unit and next_unit in attn_batch.cuh. A pair is two units
/// side by side in the list, the first at an even place; one without keys stands beside a unit that
/// has no other.
///
/// In a shared step (attn_shares_units) the blocks 2c and 2c + 1, a cluster, take every unit
/// together, half of the latent each: it stands twice, side by side, the first at an even place,
/// equal in all but `next`, where the second has the place behind the first one's, or kLastUnit
/// like it.
struct alignas(64) WorkUnit {
    int32_t request;
    int32_t kv_head;
    int32_t row_begin;  // first row in the request
    int32_t rows;       // 1..kTileRows
    int32_t key_begin;  // a multiple of tile_keys
    int32_t key_end;    // key_begin: no keys, beside the only unit of a pair
    int32_t partial;    // partial result it writes; -1: it alone has all keys and writes the output
    int32_t segment_keys;
    int32_t path_node;  // the first, index in the request
    // Facts of the request, so that a block that has its unit needs no second look-up.
    int32_t context;
    int32_t nodes;
    int32_t first_node;
    int64_t pages_begin;  // of the request's entries in the page table
    int32_t seen_end;     // without a sliding window all rows see the keys below
    int32_t next;         // the unit that the block takes next; 0, in fast mode alone: the one
                          // gridDim.x further on

    /// Of the first kind.
    constexpr bool is_fast() const { return segment_keys == 0 && path_node < 0; }
};
static_assert(sizeof(WorkUnit) == 64);
/// WorkUnit::next of a block's last unit: beyond all units, with room to go on from there.
inline constexpr int32_t kLastUnit = 1 << 30;

/// Rows of a row tile whose keys were split, up to kMergeTeams >> teams_log2 of them: what one
/// block of attn_combine merges at a time, all that it needs to know in one load. The partials
/// [first_partial, first_partial + partials) are merged in order, then, in deterministic mode, the
/// one of each row's path: path_partial + (node / path_nodes * kv_heads + kv_head) * ceil(group /
/// kTileRows) + head_in_group / kTileRows, where the row is node % path_nodes * group +
/// head_in_group % kTileRows. In the others a row stands at row % kTileRows. How the order is cut
/// into chunks that are merged side by side: attn_merge.h.
struct alignas(32) MergeItem {
    int32_t first_node;  // of the request
    int32_t row_begin;   // first row in the request
    int32_t first_partial;
    int32_t path_partial;  // of the request; -1: fast mode
    int32_t request;
    uint16_t partials;
    uint8_t phase;  // index of the first segment modulo kMergeChunk; fast mode: 0
    uint8_t kv_head;
    uint8_t rows;
    uint8_t teams_log2;  // of one row
    uint8_t chunks;      // of one row, without its path
    uint8_t path_nodes_log2;
    uint8_t unused[4];
};
static_assert(sizeof(MergeItem) == 32);

/// Keys whose slots a block of the MLA main loops finds beside its first unit (first_slots): room
/// for what a loop takes from there, at most four tiles of 48 (shared units, sm_90a).
inline constexpr int32_t kFirstSlots = 192;

/// Deterministic mode: path boundaries are multiples of this, the keys of one tensor-core product.
inline constexpr int32_t kBoundaryKeys = 16;
/// Deterministic mode: keys below this position are taken in segments for a node at `position`.
/// Never beyond the context, because no node is deeper than max_depth.
constexpr int32_t path_boundary(int32_t position, int32_t max_depth) {
    const int32_t keys = position - max_depth;
    return keys > 0 ? keys / kBoundaryKeys * kBoundaryKeys : 0;
}

/// Counts that the planner wrote.
struct PlanHeader {
    int32_t units;  // in a shared step each counts twice
    int32_t runs;   // block b begins with unit b, or pair b, if that is below; fast mode: the units
    int32_t merge_items;
    int32_t partials;
    int32_t reserved[4];
};

/// Where everything lies in the workspace; a function of the capacities alone.
struct AttnWorkspace {
    PlanHeader* header = nullptr;
    WorkUnit* units = nullptr;         // [unit_capacity]
    MergeItem* merge_items = nullptr;  // [merge_item_capacity]
    int32_t* path_slots = nullptr;   // [max_nodes, path_keys] deterministic mode: slots of the keys
                                     // from the node's own boundary to itself, in path order; -1:
                                     // outside its window, and behind the node
    int32_t* first_slots = nullptr;  // [multiprocessors, kFirstSlots] MLA: slots of the first keys
                                     // of unit b, -1: no such key
    float* partial_lse = nullptr;    // [partial_capacity, kTileRows] base-2 log of the sum of
                                     // exp2; -inf: the row saw no key
    void* partial_out = nullptr;     // bf16 [partial_capacity, kTileRows, value_dim], normalised
    int32_t unit_capacity = 0;
    int32_t merge_item_capacity = 0;
    int32_t partial_capacity = 0;
    int32_t path_keys = 0;  // of a node in the list of a path unit: attn_path_keys; fast mode: 0
    size_t bytes = 0;
};

}  // namespace kd
