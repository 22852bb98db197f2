// The load warpgroup of the fp8 loops.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_fragments.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Asks for a warp's rows of a tile; lane r < kFp8Keys / 4 has the slot of row r, -1: zeros.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void copy_fp8_rows(const AttnVerifyMlaParams& p, uint32_t to,
                                              int32_t lane_slot, int32_t lane) {
    using Row = Fp8Row<kFormat>;
    constexpr int32_t kRows = kFp8Keys / 4;
    asm volatile("" : "+r"(lane));  // worked out for each tile: no registers for it in between
    const auto* const kv = static_cast<const std::byte*>(p.kv);
    const auto copy = [&](int32_t row, int32_t byte, int32_t slot) {
        const bool valid = slot >= 0;
        const std::byte* from = kv + (valid ? slot * p.kv_slot_bytes : 0) + byte;
        ptx::copy_async_16(to + row * Row::kStride + byte, from, valid);
    };
#pragma unroll 2
    for (int32_t row = 0; row < kRows; ++row)
        copy(row, lane * 16, __shfl_sync(0xffffffff, lane_slot, row));
    constexpr int32_t kRest =
        (Row::kBytes - kMlaLatent) / 16;  // units behind a row's latent values
#pragma unroll
    for (int32_t first = 0; first < kRows * kRest; first += 32) {
        const int32_t row = (first + lane) / kRest;
        const int32_t slot = __shfl_sync(0xffffffff, lane_slot, row);
        if (row < kRows) copy(row, kMlaLatent + (first + lane) % kRest * 16, slot);
    }
}

template <kdt_kv_format kFormat>
__device__ __forceinline__ void load_fp8(const AttnVerifyMlaParams& p, uint32_t shared,
                                         int32_t thread) {
    using Plan = Fp8Plan<kFormat>;
    const uint32_t rows =
        shared + Plan::kKv + thread / 32 * (kFp8Keys / 4 * Fp8Row<kFormat>::kStride);
    const FirstSlots<kFp8Keys, 3> first(p.workspace, thread);
    TileWalk<kFp8Keys> walk(p);
    TileRow now = look_up(walk, thread, &first.slot[0]);
    TileRow next = look_up(walk, thread, &first.slot[1]);
    TileRow later = look_up(walk, thread, &first.slot[2]);
    bool waited = false;
    Turn<kFp8Stages> turn{0};
    for (; now.live; ++turn.count) {
        const int32_t lane_slot = now.slot();
        // Let Q be asked for in between, or it would queue behind all stages.
        if (turn.count == 1) ptx::named_barrier_sync(kQueryBarrier, 256);
        if (now.fresh && !waited) {
            ptx::grid_dependency_wait();
            waited = true;
        }
        ptx::mbarrier_wait(shared + Plan::kEmpty + 8 * turn.stage(), turn.parity() ^ 1);
        copy_fp8_rows<kFormat>(p, rows + turn.stage() * Plan::kStageBytes, lane_slot, thread % 32);
        ptx::mbarrier_arrive_on_copies(shared + Plan::kFull + 8 * turn.stage());
        now = next;
        next = later;
        later = look_up(walk, thread);
    }
    if (turn.count == 1) ptx::named_barrier_sync(kQueryBarrier, 256);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
