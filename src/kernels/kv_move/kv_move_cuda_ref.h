// The plain truth of kv_move_cuda: the same parameters with host pointers.
#pragma once

#include "kdtree/kernels.h"

namespace kd {

void kv_move_cuda_ref(const kdt_kv_move_params& params);

}  // namespace kd
