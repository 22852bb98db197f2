#include "kernels/attn_verify_mla/mma_sync/config.cuh"

namespace kd {

cudaError_t attn_verify_mla_mma_sync(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                     cudaStream_t stream) {
    switch (params.kv_format) {
        case KDT_KV_BF16:
            return mla_mma::launch<KDT_KV_BF16>(params, multiprocessors, stream);
        case KDT_KV_FP8:
            return mla_mma::launch<KDT_KV_FP8>(params, multiprocessors, stream);
        case KDT_KV_FP8_MLA656:
            return mla_mma::launch<KDT_KV_FP8_MLA656>(params, multiprocessors, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace kd
