// attn_combine: merges the partial results of row tiles whose keys were split, in order.
//
//   lse = log2(sum_s exp2(lse_s)),  out = sum_s exp2(lse_s - lse) out_s
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attn_plan/attn_plan.h"

namespace kd {

/// How a partial's values lie: row by row, or, of 512, as quad_layout.h says.
enum class PartialLayout { rows, quads };

struct AttnCombineParams {
    AttnWorkspace workspace;
    int32_t heads;
    int32_t kv_heads;
    int32_t value_dim;  // 64, 96, 128, 256 or 512
    PartialLayout layout;
    int32_t multiprocessors;
    void* out;   // bf16 [nodes, heads, value_dim]
    float* lse;  // [nodes, heads] natural, or null
};

/// Launched with programmatic stream serialization, directly after the attention kernel whose
/// partials it merges; the plan is read before that one has finished. No row tile was split:
/// nothing is written.
cudaError_t attn_combine(const AttnCombineParams& params, cudaStream_t stream);

}  // namespace kd
