// attn_verify_gqa on CUDA: grouped-query attention of draft-tree nodes over the paged K/V cache and
// each node's ancestors. See include/kdtree/kernels.h for the contract and attn_plan.h for rows,
// keys and work units.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attn_plan/attn_batch.cuh"

namespace kd {

/// Parameters of one launch, passed to the kernels by value.
struct AttnVerifyGqaCudaParams {
    AttnBatchView batch;
    AttnWorkspace workspace;
    kdt_kv_format kv_format;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;        // 64, 96, 128 or 256
    int32_t sliding_window;  // 0: none
    float scale;
    float logit_cap;  // 0: none
    float k_scale, v_scale;
    const void* q;
    int64_t q_node_stride, q_head_stride;
    const void* k;
    const void* v;
    int64_t kv_slot_bytes, kv_head_bytes;
    void* out;
    float* lse;
};

/// As attn_verify_mla_wgmma and attn_verify_mla_mma_sync.
cudaError_t attn_verify_gqa_wgmma(const AttnVerifyGqaCudaParams& params, int32_t multiprocessors,
                                  cudaStream_t stream);
cudaError_t attn_verify_gqa_mma_sync(const AttnVerifyGqaCudaParams& params, int32_t multiprocessors,
                                     cudaStream_t stream);

}  // namespace kd
