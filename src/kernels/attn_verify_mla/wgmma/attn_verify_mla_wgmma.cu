#include "kernels/attn_verify_mla/wgmma/attn_verify_mla_wgmma.cuh"

namespace kd {

cudaError_t attn_verify_mla_wgmma(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                  cudaStream_t stream) {
    if (params.kv_format != KDT_KV_BF16) return cudaErrorNotSupported;
    const auto kernel = mla_wgmma::attn_verify_mla_wgmma_kernel;
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, mla_wgmma::kSharedRequestBytes);
    if (status != cudaSuccess) return status;

    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(multiprocessors);
    config.blockDim = dim3(mla_wgmma::kThreads);
    config.dynamicSmemBytes = mla_wgmma::kSharedRequestBytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace kd
