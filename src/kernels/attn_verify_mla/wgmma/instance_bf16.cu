#include "kernels/attn_verify_mla/wgmma/attn_verify_mla_wgmma.cuh"

namespace kd::mla_wgmma {

template <>
cudaError_t launch<KDT_KV_BF16>(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                cudaStream_t stream) {
    return launch_overlapped(attn_verify_mla_wgmma_kernel, multiprocessors, kThreads,
                             kSharedRequestBytes, stream, params);
}

}  // namespace kd::mla_wgmma
