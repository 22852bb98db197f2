// Host side of one instance; included by the instance files alone.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/attn_verify_gqa/cuda/gqa_body.cuh"
#include "kernels/attn_verify_gqa/cuda/gqa_instances.h"

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

    const int32_t bytes = Config::shared_bytes(stages);
    const auto kernel = attn_verify_gqa_kernel<Config>;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;

    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(multiprocessors));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, params, stages);
}

}  // namespace kd::gqa
