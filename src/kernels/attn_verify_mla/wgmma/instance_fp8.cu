#include "kernels/attn_verify_mla/wgmma/fp8_body.cuh"

namespace kd::mla_wgmma {
template cudaError_t launch<KDT_KV_FP8>(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                        cudaStream_t stream);
}  // namespace kd::mla_wgmma
