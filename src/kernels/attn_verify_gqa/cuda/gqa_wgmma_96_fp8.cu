#include "kernels/attn_verify_gqa/cuda/gqa_launch.cuh"

namespace kd::gqa {

template cudaError_t launch<Config<96, true, Path::kWgmma>>(const AttnVerifyGqaCudaParams&, int32_t,
                                                            cudaStream_t);

}  // namespace kd::gqa
