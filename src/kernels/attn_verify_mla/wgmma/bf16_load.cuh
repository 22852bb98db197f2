// How the load warpgroups of the bf16 loops fill the ring, one row at a time, whatever the page
// size.
#pragma once

#include "kernels/attn_verify_mla/wgmma/bf16_config.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Asks for a tile's rows, the chunks that Ring has of them, when its stage is free. `kv`: of the
/// cache, where this thread's 16 bytes of Ring's first chunk are; lane first_lane + r has the slot
/// of the warp's row r.
template <class Ring>
__device__ __forceinline__ void copy_tile(const AttnVerifyMlaParams& p, const std::byte* kv,
                                          uint32_t shared, uint32_t tile, int32_t lane_slot,
                                          int32_t first_lane, int32_t thread) {
    const uint32_t stage = tile % Ring::kStages;
    const uint64_t policy = ptx::evict_first_policy();
    const uint32_t first = shared + Ring::kKv + stage * Ring::kTileBytes +
                           copy_offset(copy_row<kKeys>(thread, 0), thread % 8);
    ptx::mbarrier_wait(shared + Ring::kBarrierEmpty + 8 * stage, tile / Ring::kStages & 1 ^ 1);
#pragma unroll
    for (int32_t step = 0; step < kKeys / 16; ++step) {
        const int32_t slot =
            __shfl_sync(0xffffffff, lane_slot, first_lane + step * 4 + thread % 32 / 8);
        const bool valid = slot >= 0;
        // The ABI keeps a slot's bytes below 2^32.
        const std::byte* const row = kv + uint64_t{static_cast<uint32_t>(max(slot, 0))} *
                                              static_cast<uint32_t>(p.kv_slot_bytes);
        const uint32_t to = (first ^ step % 2 * 64) + step * 512;  // copy_offset() of row + 4 step
#pragma unroll
        for (int32_t chunk = 0; chunk < Ring::kChunkCount; ++chunk)
            ptx::copy_async_16(to + chunk * kChunkBytes, row + chunk * 128, valid, policy);
    }
    ptx::mbarrier_arrive_on_copies(shared + Ring::kBarrierFull + 8 * stage);
}

/// The same of a unit that the walk has come to, for the other roles.
template <class Ring>
__device__ __forceinline__ void copy_unit(const AttnVerifyMlaParams& p, uint32_t shared,
                                          uint32_t number, int32_t index, int32_t thread) {
    if (thread >= 4) return;
    ptx::copy_async_16(shared + Ring::unit_place(number) + thread * 16,
                       reinterpret_cast<const std::byte*>(p.workspace.units + index) + thread * 16,
                       true);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
