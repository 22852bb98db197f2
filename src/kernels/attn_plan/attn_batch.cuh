// The step's requests as the attention kernels see them: which slot holds a key, who sees it.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_plan.h"

namespace kd {

/// kdt_attn_batch, passed to kernels by value.
struct AttnBatchView {
    const int32_t* context;
    const int32_t* node_start;
    const int32_t* tail_slots;
    const uint64_t* ancestors;
    const int32_t* depth;
    const int32_t* pages;
    const int64_t* pages_start;
    int64_t pages_stride;
    int32_t page_shift;  // page_size = 1 << page_shift
    int32_t requests;
    int32_t sliding_window;  // 0: none
    int32_t max_depth;       // deterministic mode
    int32_t path_keys;       // deterministic mode: AttnWorkspace::path_keys
};

/// One request of it.
struct AttnRequest {
    int32_t context;
    int32_t nodes;
    int32_t first_node;
    int32_t page_shift;
    const int32_t* pages;
    const int32_t* tail_slots;  // [nodes]
    const uint64_t* ancestors;  // [nodes, 2]

    __device__ AttnRequest(const AttnBatchView& batch, int32_t request)
        : context(batch.context[request]),
          nodes(batch.node_start[request + 1] - batch.node_start[request]),
          first_node(batch.node_start[request]),
          page_shift(batch.page_shift),
          pages(batch.pages +
                (batch.pages_start ? batch.pages_start[request] : request * batch.pages_stride)),
          tail_slots(batch.tail_slots + first_node),
          ancestors(batch.ancestors + 2 * int64_t{first_node}) {}

    __device__ AttnRequest(const AttnBatchView& batch, const WorkUnit& unit)
        : context(unit.context),
          nodes(unit.nodes),
          first_node(unit.first_node),
          page_shift(batch.page_shift),
          pages(batch.pages + unit.pages_begin),
          tail_slots(batch.tail_slots + unit.first_node),
          ancestors(batch.ancestors + 2 * int64_t{unit.first_node}) {}

    __device__ int32_t keys() const { return context + nodes; }

    /// Slot of key `key` < keys(): a context position, or node key - context.
    __device__ int64_t slot(int32_t key) const {
        if (key >= context) return tail_slots[key - context];
        const int64_t page = pages[key >> page_shift];
        return (page << page_shift) + (key & ((1 << page_shift) - 1));
    }
};

/// The unit that this block begins with; kLastUnit: none.
__device__ __forceinline__ int32_t first_unit(const AttnWorkspace& workspace) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    return block < workspace.header->runs ? block : kLastUnit;
}
/// The unit that this block takes after `unit`, its number `index`; the block ends where that is no
/// unit of the plan's.
__device__ __forceinline__ int32_t next_unit(const WorkUnit& unit, int32_t index) {
    return unit.next != 0 ? unit.next : index + static_cast<int32_t>(gridDim.x);
}

/// Slot of key `key` of a unit, whatever its kind; key_begin <= key < key_end. -1: there is none,
/// in a path unit.
__device__ __forceinline__ int64_t unit_slot(const WorkUnit& unit, const AttnRequest& request,
                                             const AttnWorkspace& workspace, int32_t key) {
    if (unit.path_node < 0) return request.slot(key);
    const int64_t node = request.first_node + unit.path_node;
    return workspace.path_slots[node * workspace.path_keys + key];
}

/// Which keys of a unit one of its rows sees.
struct RowVisibility {
    int32_t first = 0;  // keys below are outside the sliding window
    int32_t limit = 0;  // context keys from here on are not seen
    int32_t context = 0;
    uint64_t ancestors[2] = {};

    __device__ RowVisibility(const AttnBatchView& batch, const AttnRequest& request,
                             const WorkUnit& unit, int32_t node)
        : context(request.context) {
        const int64_t at = int64_t{request.first_node} + node;
        const bool positions = !unit.is_fast() || batch.sliding_window > 0;
        const int32_t position = positions ? context + batch.depth[at] : 0;
        if (batch.sliding_window > 0 && position >= batch.sliding_window) {
            first = position - batch.sliding_window + 1;
        }
        if (unit.path_node >= 0) {
            const int32_t boundary = path_boundary(position, batch.max_depth);
            const int32_t begin = (node - unit.path_node) * batch.path_keys;
            first = begin + max(first - boundary, 0);
            limit = begin + position + 1 - boundary;
            context = unit.key_end;
        } else if (unit.segment_keys > 0) {
            limit = path_boundary(position, batch.max_depth);
        } else {
            limit = context;
            ancestors[0] = request.ancestors[2 * node];
            ancestors[1] = request.ancestors[2 * node + 1];
            if (first > context) {  // a window shorter than the path: its oldest nodes are out
                for (int32_t i = 0; i < request.nodes; ++i) {
                    if (batch.depth[request.first_node + i] + context >= first) continue;
                    const uint64_t others = ~(uint64_t{1} << (i % 64));
                    if (i < 64)
                        ancestors[0] &= others;
                    else
                        ancestors[1] &= others;
                }
                first = context;
            }
        }
    }

    __device__ __forceinline__ bool sees(int32_t key) const {
        if (key < limit) return key >= first;
        const uint32_t node = static_cast<uint32_t>(key - context);
        // Both words stay in registers: no array is indexed at run time.
        return node < 128 && ((node < 64 ? ancestors[0] : ancestors[1]) >> (node % 64) & 1) != 0;
    }
};

}  // namespace kd
