// The instances, one a file (gqa_<path>_<head_dim>_<format>.cu), and the choice among them.
#pragma once

#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda.h"
#include "kernels/attn_verify_gqa/cuda/gqa_config.cuh"

namespace kd::gqa {

/// Defined in gqa_launch.cuh.
template <class Config>
cudaError_t launch(const AttnVerifyGqaCudaParams& params, int32_t multiprocessors,
                   cudaStream_t stream);

template <Path kPath, bool kFp8>
cudaError_t launch_head_dim(const AttnVerifyGqaCudaParams& params, int32_t multiprocessors,
                            cudaStream_t stream) {
    switch (params.head_dim) {
        case 64:
            return launch<Config<64, kFp8, kPath>>(params, multiprocessors, stream);
        case 96:
            return launch<Config<96, kFp8, kPath>>(params, multiprocessors, stream);
        case 128:
            return launch<Config<128, kFp8, kPath>>(params, multiprocessors, stream);
        case 256:
            return launch<Config<256, kFp8, kPath>>(params, multiprocessors, stream);
        default:
            return cudaErrorNotSupported;
    }
}

template <Path kPath>
cudaError_t launch_path(const AttnVerifyGqaCudaParams& params, int32_t multiprocessors,
                        cudaStream_t stream) {
    switch (params.kv_format) {
        case KDT_KV_BF16:
            return launch_head_dim<kPath, false>(params, multiprocessors, stream);
        case KDT_KV_FP8:
            return launch_head_dim<kPath, true>(params, multiprocessors, stream);
        default:
            return cudaErrorNotSupported;
    }
}

}  // namespace kd::gqa
