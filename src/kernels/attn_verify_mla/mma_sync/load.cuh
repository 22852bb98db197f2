// The load warps: fill the ring with each unit's query rows and keys, in the order in which the
// math warps take them, running ahead across units. What a block does first is short, because
// nothing hides it: see load_first_query and load_units.
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

/// Query rows [8 part, 8 part + 8) of the unit to their place in `stage`, which is theirs and up to
/// kQueryRows / 8 - 1 other parts': lanes 0..7 copy the latent part of a row, lanes 8..15 its rope
/// part. The first part of a stage announces the bytes of all. Rows beyond the unit's last hold
/// anything: they are never stored.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void load_query(const AttnVerifyMlaParams& params, const WorkUnit& unit,
                                           int32_t part, uint32_t stage, uint32_t full,
                                           int32_t lane) {
    constexpr int32_t kRows = CacheRow<kFormat>::kQueryRows;
    const int32_t first = 8 * part;
    if (first % kRows == 0)
        ptx::mbarrier_arrive_warp_expect_bytes(full, lane,
                                               min(kRows, unit.rows - first) * kQueryRowBytes);
    // Blocks begin at different rows: together they would ask for the same ones at once.
    const auto turn = static_cast<int32_t>(blockIdx.x);
    const int32_t in_unit = first + (lane + turn) % 8;
    if (lane >= 16 || in_unit >= unit.rows) return;
    const int32_t row = unit.row_begin + in_unit;
    const int64_t node = unit.first_node + row / params.heads;
    const int64_t head = row % params.heads;
    const uint32_t to = stage + in_unit % kRows * kQueryRowStride;
    if (lane < 8) {
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

template <kdt_kv_format kFormat>
__device__ __forceinline__ uint32_t stage_address(uint32_t shared, int32_t index) {
    return shared + SharedPlan::kStages + index * kStageBytes<kFormat>;
}
__device__ __forceinline__ uint32_t full_barrier(uint32_t shared, int32_t index) {
    return shared + SharedPlan::kFull + 8 * index;
}

/// Math warp `warp` (0..7) asks for 8 query rows of the block's first unit, if they are in the
/// ring's first turn; the load warps are busy with its keys.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void load_first_query(const AttnVerifyMlaParams& params,
                                                 const WorkUnit& unit, int32_t stages,
                                                 uint32_t shared, int32_t warp, int32_t lane) {
    const int32_t part = (warp + static_cast<int32_t>(blockIdx.x) / 8) % 8;
    const int32_t index = 8 * part / CacheRow<kFormat>::kQueryRows;
    if (index < min(stages, query_stages<kFormat>(unit)))
        load_query<kFormat>(params, unit, part, stage_address<kFormat>(shared, index),
                            full_barrier(shared, index), lane);
}

/// The rows of the cache in the slots that the lanes of a stage have (-1: zeros) to `stage`, loaded
/// evict-first, so that nothing else in L2 (plan, queries, partials, code) makes room for rows that
/// are read once.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void load_keys(const AttnVerifyMlaParams& params, int64_t slot,
                                          uint32_t stage, uint32_t full, int32_t lane) {
    using Row = CacheRow<kFormat>;
    const uint32_t present = __ballot_sync(0xffffffffu, slot >= 0);
    const uint32_t missing = ((1u << kStepKeys) - 1) & ~present;
    if (missing != 0) clear_rows(stage, Row::kStride, Row::kBytes, missing, lane);
    ptx::mbarrier_arrive_warp_expect_bytes(full, lane, __popc(present) * Row::kBytes);
    if (slot >= 0)
        ptx::copy_bulk(stage + lane * Row::kStride,
                       static_cast<const uint8_t*>(params.kv) + slot * params.kv_slot_bytes,
                       Row::kBytes, full, ptx::evict_first_policy());
}

/// Where the slots of a unit's keys are written down.
struct KeySlots {
    const int32_t* pages;  // of key k < context: pages[k >> shift]
    int32_t shift;
    int32_t context;
    int32_t tail;  // of the other keys: tail_slots[tail + k]

    __device__ __forceinline__ KeySlots(const AttnVerifyMlaParams& params, const WorkUnit& unit)
        : pages(params.batch.pages + unit.pages_begin),
          shift(params.batch.page_shift),
          context(unit.context),
          tail(unit.first_node - unit.context) {
        if (unit.path_node < 0) return;
        const AttnWorkspace& workspace = params.workspace;
        pages =
            workspace.path_slots + int64_t{unit.first_node + unit.path_node} * workspace.path_keys;
        shift = 0;
        context = unit.key_end;
    }
    /// The page or slot of key `key`, -1: it has none; in flight until it is used.
    __device__ __forceinline__ int32_t look_up(const AttnVerifyMlaParams& params,
                                               int32_t key) const {
        return key < context ? pages[key >> shift] : params.batch.tail_slots[tail + key];
    }
    __device__ __forceinline__ int64_t slot(int32_t found, int32_t key) const {
        return key < context ? (int64_t{found} << shift) + (key & ((1 << shift) - 1)) : found;
    }
};

/// Load warp `warp` of `loaders` fills every loaders-th stage, so that page look-ups of one overlap
/// the waits and copies of the others. No more of them than stages: a warp that waits for a stage
/// to be read has then seen the use before that one read, and cannot mistake one phase for the
/// other.
///
/// Look-ups are a stage ahead. Keys of the context are asked for while the kernel before still
/// runs; it may be the one that writes the others.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void load_units(const AttnVerifyMlaParams& params, int32_t stages,
                                           uint32_t shared, int32_t warp, int32_t lane) {
    const int32_t loaders = min(kLoadWarps, stages);
    if (warp >= loaders) return;
    int32_t index = warp;
    uint32_t unused_parity = 1;  // of the empty barrier's phase to wait for: all are free at first
    const auto wait = [&] {
        ptx::mbarrier_wait(shared + SharedPlan::kEmpty + 8 * index, unused_parity);
    };
    const auto advance = [&] {
        index += loaders;
        if (index >= stages) {
            index -= stages;
            unused_parity ^= 1;
        }
    };
    int32_t next = warp;  // this warp's next stage, counted from the unit's first
    for (int32_t u = first_unit(params.workspace); u < params.workspace.header->units;) {
        const WorkUnit unit = params.workspace.units[u];
        const KeySlots slots(params, unit);
        const int32_t queries = query_stages<kFormat>(unit);
        int32_t key = unit.key_begin + (next - queries) * kStepKeys;
        while (key < unit.key_begin) key += loaders * kStepKeys;
        const auto look_up = [&] {
            return lane < kStepKeys && key + lane < unit.key_end ? slots.look_up(params, key + lane)
                                                                 : -1;
        };
        int32_t found = look_up();
        if (unit.path_node >= 0) ptx::grid_dependency_wait();  // some of its keys are the tail's
        for (; next < queries; next += loaders) {
            if (u != blockIdx.x || next >= stages) {  // else: load_first_query
                ptx::grid_dependency_wait();          // again costs less than to remember it
                wait();
                constexpr int32_t kParts = CacheRow<kFormat>::kQueryRows / 8;
#pragma unroll 1
                for (int32_t part = kParts * next; part < kParts * next + kParts; ++part)
                    load_query<kFormat>(params, unit, part, stage_address<kFormat>(shared, index),
                                        full_barrier(shared, index), lane);
            }
            advance();
        }
        while (key < unit.key_end) {
            const int64_t slot = found < 0 ? -1 : slots.slot(found, key + lane);
            if (key + kStepKeys > slots.context) ptx::grid_dependency_wait();
            key += loaders * kStepKeys;
            found = look_up();
            wait();
            load_keys<kFormat>(params, slot, stage_address<kFormat>(shared, index),
                               full_barrier(shared, index), lane);
            advance();
        }
        next = (key - unit.key_end) / kStepKeys;  // rounded down: stages beyond the unit's last
        u = next_unit(params.workspace.units[u], u);
    }
}

}  // namespace kd::mla_mma
