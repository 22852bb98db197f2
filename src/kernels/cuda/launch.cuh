// How a kernel that overlaps its predecessor is launched.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kd {

/// Launches `blocks` blocks of `threads` threads with `shared_bytes` of dynamic shared memory, as
/// soon as the predecessor on `stream` lets them start: the kernel waits for it itself
/// (ptx::grid_dependency_wait).
template <class Kernel, class... Args>
cudaError_t launch_overlapped(Kernel kernel, int32_t blocks, int32_t threads, int32_t shared_bytes,
                              cudaStream_t stream, const Args&... args) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;

    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace kd
