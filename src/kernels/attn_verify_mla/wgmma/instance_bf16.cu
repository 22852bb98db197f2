#include "kernels/attn_verify_mla/wgmma/attn_verify_mla_wgmma.cuh"
#include "kernels/attn_verify_mla/wgmma/bf16_halves.cuh"

namespace kd::mla_wgmma {

template <>
cudaError_t launch<KDT_KV_BF16>(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                cudaStream_t stream) {
    if (params.most_shared_rows > 0)
        return launch_overlapped_clusters(attn_verify_mla_wgmma_halves_kernel, 2, multiprocessors,
                                          kThreads, kHalfSharedRequestBytes, stream, params);
    const bool fast = params.workspace.path_keys == 0;
    return launch_overlapped(
        fast ? attn_verify_mla_wgmma_kernel<true> : attn_verify_mla_wgmma_kernel<false>,
        multiprocessors, kThreads, kSharedRequestBytes, stream, params);
}

}  // namespace kd::mla_wgmma
