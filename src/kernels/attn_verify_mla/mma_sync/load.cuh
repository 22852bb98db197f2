// The load warps: fill the ring with each unit's query rows and keys, in the order in which the
// math warps take them, running ahead across units.
#pragma once

#include "kernels/attn_verify_mla/mma_sync/fragments.cuh"

namespace kd::mla_mma {

/// Stages of a unit: first its query rows, then its keys, kStepKeys a stage.
template <kdt_kv_format kFormat>
__device__ __forceinline__ int32_t query_stages(const WorkUnit& unit) {
    constexpr int32_t kRows = CacheRow<kFormat>::kQueryRows;
    return (unit.rows + kRows - 1) / kRows;
}
__device__ __forceinline__ int32_t key_stages(const WorkUnit& unit) {
    return (unit.key_end - unit.key_begin + kStepKeys - 1) / kStepKeys;
}

/// Zeros instead of the rows in `missing` (bit r: row r). Ordinary stores, ordered before the bulk
/// copies that later fill the same bytes; whoever then arrives at the stage's barrier publishes
/// them.
__device__ __forceinline__ void clear_rows(uint32_t stage, int32_t stride, int32_t row_bytes,
                                           uint32_t missing, int32_t lane) {
#pragma unroll 1
    for (uint32_t rows = missing; rows != 0; rows &= rows - 1) {
        const uint32_t row = stage + (__ffs(static_cast<int32_t>(rows)) - 1) * stride;
#pragma unroll 1
        for (int32_t byte = lane * 16; byte < row_bytes; byte += 32 * 16)
            ptx::store_shared(row + byte, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_async_proxy();
    __syncwarp();
}

/// 16 (fp8: 8) query rows: lanes 0..15 copy the latent part, lanes 16..31 the rope part.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void load_query(const AttnVerifyMlaParams& params, const WorkUnit& unit,
                                           int32_t first_node, int32_t tile, uint32_t stage,
                                           uint32_t full, int32_t lane) {
    constexpr int32_t kRows = CacheRow<kFormat>::kQueryRows;
    const int32_t in_stage = lane & 15;
    const int32_t in_unit = tile * kRows + in_stage;
    const bool valid = in_stage < kRows && in_unit < unit.rows;
    const uint32_t present = __ballot_sync(0xffffffffu, valid) & 0xffffu;
    const uint32_t missing = ((1u << kRows) - 1) & ~present;
    if (missing != 0) clear_rows(stage, kQueryRowStride, kQueryRowBytes, missing, lane);
    ptx::mbarrier_arrive_warp_expect_bytes(full, lane, __popc(present) * kQueryRowBytes);
    if (!valid) return;
    const int32_t row = unit.row_begin + in_unit;
    const int64_t node = first_node + row / params.heads;
    const int64_t head = row % params.heads;
    const uint32_t to = stage + in_stage * kQueryRowStride;
    if (lane < 16) {
        const uint16_t* from = static_cast<const uint16_t*>(params.q_latent) +
                               node * params.q_latent_node_stride +
                               head * params.q_latent_head_stride;
        ptx::copy_bulk(to, from, kMlaLatent * 2, full);
    } else {
        const uint16_t* from = static_cast<const uint16_t*>(params.q_rope) +
                               node * params.q_rope_node_stride + head * params.q_rope_head_stride;
        ptx::copy_bulk(to + kMlaLatent * 2, from, kMlaRope * 2, full);
    }
}

__device__ __forceinline__ const uint8_t* cache_row(const AttnVerifyMlaParams& params,
                                                    int64_t slot) {
    return static_cast<const uint8_t*>(params.kv) + slot * params.kv_slot_bytes;
}

/// Asks for the first keys of this block's first unit while the kernel before still runs; context
/// rows only, because that kernel may be the one that writes the tail's.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void prefetch_first_keys(const AttnVerifyMlaParams& params, int32_t warp,
                                                    int32_t lane) {
    if (first_unit(params.workspace) == kLastUnit) return;
    const WorkUnit unit = params.workspace.units[blockIdx.x];
    if (unit.path_node >= 0) return;
    const AttnRequest request(params.batch, unit);
    const int32_t key = unit.key_begin + warp * 32 + lane;
    if (key < min(unit.key_end, request.context))
        ptx::prefetch_l2(cache_row(params, request.slot(key)), CacheRow<kFormat>::kBytes);
}

/// Load warp `warp` of `loaders` fills every loaders-th stage, so that page look-ups of one overlap
/// the waits and copies of the others. No more of them than stages: a warp that waits for a stage
/// to be read has then seen the use before that one read, and cannot mistake one phase for the
/// other.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void load_units(const AttnVerifyMlaParams& params, int32_t stages,
                                           uint32_t shared, int32_t warp, int32_t lane) {
    using Row = CacheRow<kFormat>;
    const int32_t loaders = min(kLoadWarps, stages);
    if (warp >= loaders) return;
    int32_t index = warp;
    uint32_t unused_parity = 1;  // of the empty barrier's phase to wait for: all are free at first
    int32_t next = warp;         // this warp's next stage, counted from the unit's first
    const int32_t units = params.workspace.header->units;
    for (int32_t u = first_unit(params.workspace); u < units;) {
        const WorkUnit unit = params.workspace.units[u];
        const AttnRequest request(params.batch, unit);
        const int32_t queries = query_stages<kFormat>(unit);
        const int32_t total = queries + key_stages(unit);
        for (; next < total; next += loaders) {
            const uint32_t stage = shared + SharedPlan::kStages + index * kStageBytes<kFormat>;
            const uint32_t full = shared + SharedPlan::kFull + 8 * index;
            const uint32_t empty = shared + SharedPlan::kEmpty + 8 * index;
            if (next < queries) {
                ptx::mbarrier_wait(empty, unused_parity);
                load_query<kFormat>(params, unit, request.first_node, next, stage, full, lane);
            } else {
                const int32_t key = unit.key_begin + (next - queries) * kStepKeys + lane;
                const bool valid = lane < kStepKeys && key < unit.key_end;
                const int64_t slot =
                    valid ? unit_slot(unit, request, params.workspace, key) : int64_t{0};
                const uint32_t present = __ballot_sync(0xffffffffu, valid);
                const uint32_t missing = ((1u << kStepKeys) - 1) & ~present;
                ptx::mbarrier_wait(empty, unused_parity);
                if (missing != 0) clear_rows(stage, Row::kStride, Row::kBytes, missing, lane);
                ptx::mbarrier_arrive_warp_expect_bytes(full, lane, __popc(present) * Row::kBytes);
                if (valid)
                    ptx::copy_bulk(stage + lane * Row::kStride, cache_row(params, slot),
                                   Row::kBytes, full);
            }
            index += loaders;
            if (index >= stages) {
                index -= stages;
                unused_parity ^= 1;
            }
        }
        next -= total;
        u = next_unit(unit, u);
    }
}

}  // namespace kd::mla_mma
