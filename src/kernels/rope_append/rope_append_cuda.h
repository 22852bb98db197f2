// rope_append on CUDA: rotary position embedding of new Q and K rows and the write of the new rows
// into the paged cache, GQA and MLA. See kdt_rope_append_params in include/kdtree/kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kdtree/kernels.h"

namespace kd {

/// One launch; none where rows is 0. Launched with programmatic stream serialization and reads
/// nothing before its predecessor has finished; its successor may start at once and has to wait
/// (griddepcontrol.wait) before it reads what was written here.
/// head_dim is a multiple of 16, at most 256; q, k, v, the caches and all strides are aligned to 16
/// bytes.
cudaError_t rope_append_cuda(const kdt_rope_append_params& params, cudaStream_t stream);

}  // namespace kd
