// The load warpgroup of the fp8 loops: one bulk copy a cache row, whatever the page size. Each warp
// fills one of a step's four stages, a row a lane, so that its page look-ups run beside the copies
// of the others.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_config.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Two tiles of a unit, or its last one.
struct LoadStep {
    TileRow row;          // of this lane in its warp's stage
    bool second = false;  // there is a second tile
};

/// The next step of the walk, which is at one. `look_up`: of it.
template <class LookUp>
__device__ __forceinline__ LoadStep next_step(TileWalk<2 * kFp8Keys>& walk, const LookUp& look_up) {
    LoadStep step;
    step.second = walk.unit.key_end - walk.key > kFp8Keys;
    step.row = look_up();
    walk.next();
    return step;
}

/// Asks for the rows of a stage: lane r has the slot of row r, -1: zeros.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void copy_stage(const AttnVerifyMlaParams& p, uint32_t to, uint32_t full,
                                           int32_t slot, int32_t lane) {
    using Row = Fp8Row<kFormat>;
    const uint32_t row = to + lane * Row::kStride;
    const uint32_t present = __ballot_sync(0xffffffffu, slot >= 0);
    if (present != 0xffffffffu) {
        if (slot < 0) {
#pragma unroll 1
            for (int32_t byte = 0; byte < Row::kBytes; byte += 16)
                ptx::store_shared(row + byte, make_uint4(0, 0, 0, 0));
        }
        ptx::fence_async_proxy();  // before the bulk copies that fill these bytes later
        __syncwarp();
    }
    ptx::mbarrier_arrive_warp_expect_bytes(full, lane, __popc(present) * Row::kBytes);
    if (slot >= 0)
        ptx::copy_bulk(row, static_cast<const std::byte*>(p.kv) + slot * p.kv_slot_bytes,
                       Row::kBytes, full, ptx::evict_first_policy());
}

template <kdt_kv_format kFormat, int32_t kMostRows>
__device__ __forceinline__ void load_fp8(const AttnVerifyMlaParams& p, uint32_t shared,
                                         int32_t thread) {
    using Plan = Fp8Plan<kFormat, kMostRows>;
    const int32_t warp = thread / 32;
    const FirstSlots<2 * kFp8Keys, 1> first_slots(p.workspace, thread);
    TileWalk<2 * kFp8Keys> walk(p);
    const bool few = few_rows(walk.unit, walk.unit_index, walk.units);
    const uint32_t ring = shared + (few ? Plan::ring(kFewRows) : Plan::ring(kMostRows));
    const int32_t stages = few ? Plan::kFewStages : Plan::kStages;
    const auto following = [&] {
        return walk.valid() ? next_step(walk, [&] { return look_up_tile(walk, thread); })
                            : LoadStep{};
    };
    LoadStep now;
    if (walk.valid())
        now = next_step(walk, [&] { return planned_tile(walk, first_slots.slot[0]); });
    LoadStep next = following();
    int32_t first = 0;    // stage of the step
    uint32_t parity = 1;  // of the empty barrier's phase to wait for: all are free at first
    bool started = false;
    while (now.row.live()) {
        const int32_t ahead = now.second ? warp : warp % 2;
        // Let Q be asked for behind the first tile, or it would queue behind all stages.
        if (!started && ahead >= 2) ptx::mbarrier_wait(shared + Plan::kQueryAsked, 0);
        const bool wraps = first + ahead >= stages;
        const int32_t stage = first + ahead - (wraps ? stages : 0);
        // A warp without a stage waits all the same: it could not tell a phase from the next but
        // one. And no copy goes out before it has seen this one, which could be over else.
        ptx::mbarrier_wait(shared + Plan::kEmpty + 8 * stage, parity ^ wraps);
        if (!now.second) ptx::named_barrier_sync(kLoadBarrier, 128);
        if (now.row.fresh()) ptx::grid_dependency_wait();  // again costs less than to remember it
        if (ahead == warp)
            copy_stage<kFormat>(p, ring + stage * Plan::kStageBytes,
                                shared + Plan::kFull + 8 * stage, now.row.slot(p.batch.page_shift),
                                thread % 32);
        if (!started) ptx::mbarrier_wait(shared + Plan::kQueryAsked, 0);
        started = true;
        first += now.second ? 4 : 2;
        if (first >= stages) {
            first -= stages;
            parity ^= 1;
        }
        now = next;
        next = following();
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
