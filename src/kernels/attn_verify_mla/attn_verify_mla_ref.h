// The plain truth of attn_verify_mla: loops written from the formula, in double.
#pragma once

#include <span>

#include "kdtree/kernels.h"

namespace kd {

/// As kdt_attn_verify_mla, with every pointer in host memory and exact results:
/// out [nodes, heads, 512], lse [nodes, heads] natural. tensors.out and tensors.lse are not used.
void attn_verify_mla_ref(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                         const kdt_attn_mla_tensors& tensors, std::span<double> out,
                         std::span<double> lse);

}  // namespace kd
