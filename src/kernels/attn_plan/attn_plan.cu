#include "kernels/attn_plan/attn_plan_cuda.h"
#include "kernels/attn_plan/attn_plan_time.h"
#include "kernels/attn_plan/attn_plan_units.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace kd {

namespace {

constexpr int32_t kPlanThreads = 512;
constexpr int32_t kPlanWarps = kPlanThreads / 32;
constexpr int32_t kMostDepth = 64;
constexpr uint32_t kWholeWarp = 0xffffffff;
static_assert(kNeverNs < (int64_t{1} << 54), "a score and 9 bits of candidate fit 63 bits");
static_assert(kMostSplits <= kPlanThreads && kPlanThreads <= 512, "one candidate a thread");

/// The request that entry `index` of the step's units (or merge items, ...) belongs to; first[r] is
/// where request r's begin.
template <int32_t PlanCounts::*kCount>
__device__ int32_t request_of(const PlanCounts* first, int32_t requests, int32_t index) {
    int32_t low = 0;
    int32_t high = requests - 1;
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (first[middle].*kCount <= index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/// Where request `r` is; without nodes, and `broken`, where that is beyond what the step promised.
__device__ PlanExtent extent_of(const AttnPlanParams& params, int32_t r, bool& broken) {
    const AttnBatchView& batch = params.batch;
    PlanExtent extent = {.context = batch.context[r],
                         .nodes = batch.node_start[r + 1] - batch.node_start[r],
                         .first_node = batch.node_start[r],
                         .pages_begin = batch.pages_start != nullptr ? batch.pages_start[r]
                                                                     : r * batch.pages_stride};
    broken = extent.first_node < 0 || extent.nodes < 0 || extent.nodes > kMostNodes ||
             extent.first_node > params.max_nodes - extent.nodes || extent.context < 0 ||
             extent.context > params.max_context;
    if (broken) extent.nodes = extent.context = 0;
    return extent;
}

/// Deterministic mode: lists the slots of node `node`'s keys from its boundary to itself. By one
/// warp; needs no plan.
__device__ void list_path(const AttnPlanParams& params, int32_t node, int32_t lane) {
    const AttnBatchView& batch = params.batch;
    int32_t r = 0;  // requests that end at or before this node
    for (int32_t i = 0; i < batch.requests; i += 32) {
        const bool before = i + lane < batch.requests && batch.node_start[i + lane + 1] <= node;
        r += __popc(__ballot_sync(kWholeWarp, before));
    }
    if (r == batch.requests) return;
    bool broken;
    const PlanExtent extent = extent_of(params, r, broken);
    const int32_t index = node - extent.first_node;
    if (index < 0 || index >= extent.nodes) return;

    const int32_t capacity = params.workspace.path_keys;
    const int32_t position = extent.context + batch.depth[node];
    const int32_t boundary = path_boundary(position, batch.max_depth);
    int32_t* slots = params.workspace.path_slots + int64_t{node} * capacity;
    const int32_t first =
        batch.sliding_window > 0 ? position - batch.sliding_window + 1 - boundary : 0;
    const AttnRequest request(batch, r);
    for (int32_t k = lane; k < capacity; k += 32) {
        const bool in_context = k >= first && boundary + k < request.context;
        slots[k] = in_context ? static_cast<int32_t>(request.slot(boundary + k)) : -1;
    }
    __syncwarp();
    for (int32_t a = lane; a < request.nodes; a += 32) {
        if ((request.ancestors[2 * index + a / 64] >> (a % 64) & 1) == 0) continue;
        const int32_t k = request.context + batch.depth[request.first_node + a] - boundary;
        if (k >= 0 && k >= first && k < capacity) slots[k] = request.tail_slots[a];
    }
}

// Block 0: lengths, one request a warp; then the cut, one candidate a thread; then the lists. In
// deterministic mode the others list paths, one node a warp.
// Grid: 1, in deterministic mode + ceil(max_nodes / kPlanWarps).
__global__ void __launch_bounds__(kPlanThreads, 1)
    attn_plan_kernel(const __grid_constant__ AttnPlanParams params) {
    __shared__ PlanRequest s_request[kMostRequests];
    __shared__ PlanCounts s_counts[kMostRequests];
    __shared__ PlanCounts s_first[kMostRequests + 1];
    __shared__ PlanTotals s_totals;
    __shared__ int32_t s_broken;  // lengths beyond what the step promised
    __shared__ unsigned long long s_best;
    __shared__ PathChoice s_paths;  // deterministic mode: of the best

    const AttnBatchView& batch = params.batch;
    const PlanShape& shape = params.shape;
    const AttnWorkspace& workspace = params.workspace;
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t lane = thread % 32;
    ptx::grid_dependency_launch();  // this kernel itself waits for nothing
    if (blockIdx.x > 0) {
        const int32_t node = (static_cast<int32_t>(blockIdx.x) - 1) * kPlanWarps + thread / 32;
        if (node < params.max_nodes) list_path(params, node, lane);
        return;
    }
    if (thread == 0) {
        s_totals = {};
        s_broken = 0;
        s_best = ~0ull;
    }
    __syncthreads();

    for (int32_t r = thread / 32; r < batch.requests; r += kPlanWarps) {
        bool broken;
        const PlanExtent extent = extent_of(params, r, broken);
        if (broken) s_broken = 1;
        int32_t least = kMostDepth;
        int32_t most = 0;
        if (shape.deterministic) {
            for (int32_t i = lane; i < extent.nodes; i += 32) {
                const int32_t depth = batch.depth[extent.first_node + i];
                least = min(least, depth);
                most = max(most, depth);
            }
            least = __reduce_min_sync(kWholeWarp, least);
            most = __reduce_max_sync(kWholeWarp, most);
        }
        if (shape.deterministic && lane <= shape.most_path_nodes_log2)
            atomicAdd(&s_totals.path_entries[lane], path_entries(shape, extent.nodes, lane));
        if (lane == 0) {
            const PlanRequest request = plan_request(shape, extent, least, most);
            s_request[r] = request;
            atomicMax(&s_totals.most_tiles, request.tiles);
            if (shape.deterministic && request.tiles > 0) {
                atomicMin(&s_totals.least_segment_tiles, request.segment_tiles);
                atomicAdd(&s_totals.prefix_units, prefix_units(shape, request));
                atomicMax(&s_totals.most_nodes, request.nodes);
            }
        }
    }
    __syncthreads();
    if (shape.deterministic && shape.entry == PlanEntry::pair) {
        if (thread < batch.requests)
            s_request[thread].adjacent = takes_adjacent(shape, s_totals.prefix_units);
        __syncthreads();
    }

    // The least (time, candidate): each warp's, then the block's.
    Prediction candidate = {kNeverNs, {}};
    if (thread < kMostSplits) {
        candidate = plan_candidate(shape, s_request, batch.requests, s_totals, thread + 1);
    }
    unsigned long long key = static_cast<unsigned long long>(candidate.ns) * kPlanThreads +
                             static_cast<unsigned long long>(thread);
    for (int32_t step = 16; step > 0; step /= 2) {
        key = min(key, __shfl_xor_sync(kWholeWarp, key, step));
    }
    if (lane == 0) atomicMin(&s_best, key);
    __syncthreads();
    const int32_t best = static_cast<int32_t>(s_best % kPlanThreads);
    const int32_t choice = plan_choice(shape, s_totals.most_tiles, best + 1);
    if (shape.deterministic) {
        if (thread == best) s_paths = candidate.paths;
        __syncthreads();
    }
    const PathChoice paths = shape.deterministic ? s_paths : PathChoice{};

    if (thread < batch.requests) {
        s_counts[thread] = plan_counts(shape, s_request[thread], choice, paths.nodes_log2);
    }
    __syncthreads();
    if (thread <= batch.requests) {
        PlanCounts first{};
        for (int32_t r = 0; r < thread; ++r) first = counts_sum(first, s_counts[r]);
        s_first[thread] = first;
    }
    __syncthreads();
    const PlanCounts total = s_first[batch.requests];
    const int32_t units = plan_units(shape, total);
    const int32_t partials = total.partials + total.path_units;
    // A step beyond the capacities or the lengths that were promised breaks the contract: it gets
    // an empty plan, nothing overruns.
    const bool fits = s_broken == 0 && units <= workspace.unit_capacity &&
                      partials <= workspace.partial_capacity &&
                      total.merge_items <= workspace.merge_item_capacity;

    const int32_t runs = total.runs + paths.runs;

    const auto store = [&workspace](int32_t u, const WorkUnit& unit) { workspace.units[u] = unit; };
    const auto position_of = [&](int32_t r, int32_t node) {
        return s_request[r].context + batch.depth[s_request[r].first_node + node];
    };
    const auto path_unit_of = [&](int32_t entry, int32_t side) {
        const int32_t r = request_of<&PlanCounts::path_entries>(s_first, batch.requests, entry);
        const int32_t of_request = entry - s_first[r].path_entries;
        const int32_t index = (of_request << entry_paths_log2(shape)) + side;
        const PathNodes nodes = path_nodes(shape, s_request[r], paths.nodes_log2, index);
        return plan_path_unit(shape, s_request[r], r, total.partials + s_first[r].path_units, index,
                              nodes, position_of(r, nodes.first + nodes.count - 1));
    };
    // Runs, then, from the next warp on, what is merged: warps of both work side by side.
    const int32_t merges_begin = (runs + 31) / 32 * 32;
    for (int32_t i = thread; fits && i < merges_begin + total.merge_items; i += kPlanThreads) {
        if (i < total.runs) {
            const int32_t r = request_of<&PlanCounts::runs>(s_first, batch.requests, i);
            const int32_t index = i - s_first[r].runs;
            if (shape.deterministic) {
                plan_prefix_run(shape, s_request[r], r, s_first[r], runs, choice, index, store);
            } else {
                store(i, plan_unit(shape, s_request[r], r, s_first[r], choice, index));
            }
        } else if (i < runs) {
            plan_path_run(shape, total, paths.runs, i - total.runs, path_unit_of, store);
        } else if (i >= merges_begin) {
            const int32_t m = i - merges_begin;
            const int32_t r = request_of<&PlanCounts::merge_items>(s_first, batch.requests, m);
            const int32_t index = m - s_first[r].merge_items;
            int32_t path = -1;
            int32_t position = 0;
            if (shape.deterministic) {
                path = total.partials + s_first[r].path_units;
                const int32_t row = merge_item_row(shape, s_request[r], choice, index);
                position = position_of(r, row / shape.group);
            }
            workspace.merge_items[m] = plan_merge_item(shape, s_request[r], r, s_first[r], choice,
                                                       path, paths.nodes_log2, position, index);
        }
    }
    if (thread == 0) {
        *workspace.header = {.units = fits ? units : 0,
                             .runs = fits ? run_blocks(shape) * runs : 0,
                             .merge_items = fits ? total.merge_items : 0,
                             .partials = fits ? partials : 0,
                             .reserved = {}};
    }
}

// The slots of the first keys of each block's first unit, so that its first copies wait for one
// look-up instead of two. Grid: multiprocessors; launched to overlap the plan kernel.
__global__ void __launch_bounds__(kFirstSlots) attn_plan_first_slots_kernel(AttnPlanParams params) {
    ptx::grid_dependency_wait();
    const AttnWorkspace& workspace = params.workspace;
    const auto block = static_cast<int32_t>(blockIdx.x);
    if (block >= workspace.header->runs) return;
    const WorkUnit unit = workspace.units[block];
    const auto index = static_cast<int32_t>(threadIdx.x);
    const int32_t key = unit.key_begin + index;
    int64_t slot = -1;
    if (key < unit.key_end) {
        slot = unit_slot(unit, AttnRequest(params.batch, unit), workspace, key);
    }
    workspace.first_slots[block * kFirstSlots + index] = static_cast<int32_t>(slot);
}

// One thread, no work. Attention is launched with programmatic stream serialization and reads the
// plan before its griddepcontrol.wait, that is as soon as all blocks of its direct predecessor have
// exited, when their writes need not be visible yet. This kernel is that predecessor: launched
// ordinarily, it starts only once the plan is complete and visible.
__global__ void attn_plan_fence_kernel() {}

}  // namespace

cudaError_t attn_plan(const AttnPlanParams& params, cudaStream_t stream) {
    const int32_t path_blocks =
        params.shape.deterministic ? ceil_div(params.max_nodes, kPlanWarps) : 0;
    attn_plan_kernel<<<static_cast<uint32_t>(1 + path_blocks), kPlanThreads, 0, stream>>>(params);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && params.workspace.first_slots != nullptr) {
        const int32_t blocks = run_blocks(params.shape) * params.shape.multiprocessors;
        error =
            launch_overlapped(attn_plan_first_slots_kernel, blocks, kFirstSlots, 0, stream, params);
    }
    if (error != cudaSuccess) return error;
    attn_plan_fence_kernel<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}

}  // namespace kd
