// Which keys a node of a verify step sees, from the definition: what the attention references
// share.
#pragma once

#include <cstdint>
#include <vector>

#include "kdtree/kernels.h"

namespace kd {

inline int32_t attn_nodes(const kdt_attn_batch& batch) {
    return batch.node_start[batch.requests];
}

/// Slots of the keys that node `node` of the batch sees: committed positions, then tree nodes.
/// All pointers of the batch are host memory here.
inline std::vector<int64_t> attn_visible_slots(const kdt_attn_batch& batch, int32_t sliding_window,
                                               int32_t node) {
    int32_t request = 0;
    while (batch.node_start[request + 1] <= node) ++request;
    const int32_t first_node = batch.node_start[request];
    const int32_t nodes = batch.node_start[request + 1] - first_node;
    const int32_t context = batch.context[request];
    const int64_t first_page =
        batch.pages_start ? batch.pages_start[request] : request * batch.pages_stride;
    // The oldest position inside the window; without a window all are.
    const int32_t oldest =
        sliding_window > 0 ? context + batch.depth[node] - sliding_window + 1 : 0;

    std::vector<int64_t> slots;
    for (int32_t position = 0; position < context; ++position) {
        if (position < oldest) continue;
        const int64_t page = batch.pages[first_page + position / batch.page_size];
        slots.push_back(page * batch.page_size + position % batch.page_size);
    }
    for (int32_t other = 0; other < nodes; ++other) {
        const uint64_t word = batch.ancestors[2 * int64_t{node} + other / 64];
        if ((word >> (other % 64) & 1) == 0) continue;
        if (sliding_window > 0 && context + batch.depth[first_node + other] < oldest) continue;
        slots.push_back(batch.tail_slots[first_node + other]);
    }
    return slots;
}

}  // namespace kd
