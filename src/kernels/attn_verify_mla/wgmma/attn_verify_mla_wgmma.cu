#include "kernels/attn_verify_mla/wgmma/units.cuh"

namespace kd {

cudaError_t attn_verify_mla_wgmma(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                  cudaStream_t stream) {
    switch (params.kv_format) {
        case KDT_KV_BF16:
            return mla_wgmma::launch<KDT_KV_BF16>(params, multiprocessors, stream);
        case KDT_KV_FP8:
            return mla_wgmma::launch<KDT_KV_FP8>(params, multiprocessors, stream);
        case KDT_KV_FP8_MLA656:
            return mla_wgmma::launch<KDT_KV_FP8_MLA656>(params, multiprocessors, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace kd
