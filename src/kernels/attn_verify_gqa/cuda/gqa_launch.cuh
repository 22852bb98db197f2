// Host side of one instance; included by the instance files alone.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/attn_verify_gqa/cuda/gqa_body.cuh"
#include "kernels/attn_verify_gqa/cuda/gqa_instances.h"
#include "kernels/cuda/launch.cuh"

namespace kd::gqa {

/// One block a multiprocessor, with as many stages as its shared memory holds.
template <class Config>
cudaError_t launch(const AttnVerifyGqaCudaParams& params, int32_t multiprocessors,
                   cudaStream_t stream) {
    int device = 0;
    int shared_bytes = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error =
            cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    const int32_t stages = Config::stages_in(std::min(shared_bytes, kSharedBytesSm90));
    const bool served = !Config::kWgmma || shared_bytes >= kSharedBytesSm90;
    if (!served || stages < kGroups) return cudaErrorNotSupported;

    return launch_overlapped(attn_verify_gqa_kernel<Config>, multiprocessors, kThreads,
                             Config::shared_bytes(stages), stream, params, stages);
}

}  // namespace kd::gqa
