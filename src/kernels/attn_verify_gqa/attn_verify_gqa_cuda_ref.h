// The plain truth of attn_verify_gqa on CUDA: loops written from the formula, in double.
#pragma once

#include <span>

#include "kdtree/kernels.h"

namespace kd {

/// As kdt_attn_verify_gqa, with every pointer in host memory and exact results:
/// out [nodes, heads, head_dim], lse [nodes, heads] natural. tensors.out and tensors.lse are not
/// used.
void attn_verify_gqa_cuda_ref(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                              const kdt_attn_gqa_tensors& tensors, std::span<double> out,
                              std::span<double> lse);

}  // namespace kd
