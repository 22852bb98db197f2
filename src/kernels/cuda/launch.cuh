// How a kernel that overlaps its predecessor is launched.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kd {

/// Launches `blocks` blocks of `threads` threads with `shared_bytes` of dynamic shared memory, in
/// clusters of `cluster`, as soon as the predecessor on `stream` lets them start: the kernel waits
/// for it itself (ptx::grid_dependency_wait). To ask for the shared memory takes 0.2 us of the 3.2
/// of a launch; that it was asked for cannot be remembered, because a reset of the device forgets
/// it. A cluster of one block is left unsaid: naming it can cost residency on sm_120.
template <class Kernel, class... Args>
cudaError_t launch_overlapped_clusters(Kernel kernel, int32_t cluster, int32_t blocks,
                                       int32_t threads, int32_t shared_bytes, cudaStream_t stream,
                                       const Args&... args) {
    if (shared_bytes > 0) {
        const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
        if (error != cudaSuccess) return error;
    }

    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/// The same without clusters.
template <class Kernel, class... Args>
cudaError_t launch_overlapped(Kernel kernel, int32_t blocks, int32_t threads, int32_t shared_bytes,
                              cudaStream_t stream, const Args&... args) {
    return launch_overlapped_clusters(kernel, 1, blocks, threads, shared_bytes, stream, args...);
}

}  // namespace kd
