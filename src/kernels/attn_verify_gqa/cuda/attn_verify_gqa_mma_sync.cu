#include "kernels/attn_verify_gqa/cuda/gqa_instances.h"

namespace kd {

cudaError_t attn_verify_gqa_mma_sync(const AttnVerifyGqaCudaParams& params, int32_t multiprocessors,
                                     cudaStream_t stream) {
    return gqa::launch_path<gqa::Path::kMmaSync>(params, multiprocessors, stream);
}

}  // namespace kd
