// kv_move on CUDA: copies rows between slots in many buffers in one launch: the commit of accepted
// rows of all layers, and relocation. See kdt_kv_move_params in include/kdtree/kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kdtree/kernels.h"

namespace kd {

/// Moves of one launch, at most.
inline constexpr int32_t kKvMoveLimit = 1024;

/// One launch; none where there is nothing to move. Launched with programmatic stream
/// serialization and reads nothing before its predecessor has finished; its successor may start at
/// once and has to wait (griddepcontrol.wait) before it reads what was written here.
cudaError_t kv_move_cuda(const kdt_kv_move_params& params, cudaStream_t stream);

}  // namespace kd
