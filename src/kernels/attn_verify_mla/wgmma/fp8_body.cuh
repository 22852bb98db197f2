// The kernel around the roles of the fp8 loops.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_load.cuh"
#include "kernels/attn_verify_mla/wgmma/fp8_math.cuh"

namespace kd::mla_wgmma {

/// Grid: at most one block a multiprocessor, persistent. Block: kFp8Threads. Units have up to
/// kMostRows rows.
template <kdt_kv_format kFormat, int32_t kMostRows>
__global__ void __launch_bounds__(kFp8Threads, 1)
    attn_verify_mla_wgmma_fp8_kernel(const __grid_constant__ AttnVerifyMlaParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Plan = Fp8Plan<kFormat, kMostRows>;
    extern __shared__ std::byte raw_memory[];
    const uint32_t shared = swizzle_aligned(ptx::smem_address(raw_memory));
    // What the first unit's Q waits for, in flight while the barriers are made.
    const WorkUnit unit = p.workspace.units[blockIdx.x];
    const int32_t units = p.workspace.header->units;
    const int32_t index = first_unit(p.workspace);
    if (threadIdx.x == 0) {
        for (int32_t stage = 0; stage < Plan::kMostStages; ++stage) {
            ptx::mbarrier_init(shared + Plan::kFull + 8 * stage, ptx::kWarpArrivals);
            ptx::mbarrier_init(shared + Plan::kEmpty + 8 * stage, 8 * ptx::kWarpArrivals);
        }
        ptx::mbarrier_init(shared + Plan::kQueryAsked, 8 * ptx::kWarpArrivals);
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    // One if for the roles: the compiler gives each branch the registers it asks for.
    const int32_t role = threadIdx.x / 128;
    if (role == 0) {
        ptx::setmaxnreg_decrease<kFp8LoadRegisters>();
        load_fp8<kFormat, kMostRows>(p, shared, thread_of_role());
    } else {
        ptx::setmaxnreg_increase<kFp8MathRegisters>();
        math_fp8<kFormat, kMostRows>(p, unit, index, units, shared, role - 1, thread_of_role());
    }
#endif
}

template <kdt_kv_format kFormat>
cudaError_t launch(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                   cudaStream_t stream) {
    const auto launch_for = [&]<int32_t kMostRows>() {
        return launch_overlapped(attn_verify_mla_wgmma_fp8_kernel<kFormat, kMostRows>,
                                 multiprocessors, kFp8Threads,
                                 Fp8Plan<kFormat, kMostRows>::kRequestBytes, stream, params);
    };
    if (params.most_rows <= 16) return launch_for.template operator()<16>();
    if (params.most_rows <= 32) return launch_for.template operator()<32>();
    return launch_for.template operator()<kTileRows>();
}

}  // namespace kd::mla_wgmma
