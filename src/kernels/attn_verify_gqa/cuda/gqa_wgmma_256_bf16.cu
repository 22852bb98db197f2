#include "kernels/attn_verify_gqa/cuda/gqa_launch.cuh"

namespace kd::gqa {

template cudaError_t launch<Config<256, false, Path::kWgmma>>(const AttnVerifyGqaCudaParams&,
                                                              int32_t, cudaStream_t);

}  // namespace kd::gqa
