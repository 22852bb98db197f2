// attn_verify_mla: absorbed multi-head latent attention of draft-tree nodes over the paged latent
// cache and each node's ancestors. See include/kdtree/kernels.h for the contract and attn_plan.h
// for rows, keys and work units.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attn_plan/attn_batch.cuh"

namespace kd {

inline constexpr int32_t kMlaLatent = 512;
inline constexpr int32_t kMlaRope = 64;
inline constexpr int32_t kMlaHeadDim = kMlaLatent + kMlaRope;

/// Parameters of one launch, passed to the kernels by value.
struct AttnVerifyMlaParams {
    AttnBatchView batch;
    AttnWorkspace workspace;
    kdt_kv_format kv_format;
    int32_t heads;
    int32_t most_rows;  // of a unit, by the capacity; kTileRows where units may be long, and in
                        // deterministic mode, so that all steps use one kernel
    int32_t most_shared_rows;  // of a step, by its capacity, if its units are shared
                               // (attn_shares_units); else 0
    float scale;
    float logit_cap;  // 0: none
    float kv_scale;
    const void* q_latent;
    const void* q_rope;
    int64_t q_latent_node_stride, q_latent_head_stride;
    int64_t q_rope_node_stride, q_rope_head_stride;
    const void* kv;
    int64_t kv_slot_bytes;
    void* out;
    float* lse;
};

/// One persistent thread block a multiprocessor works off the plan's units: which of them a
/// block takes say first_unit and next_unit. A unit with partial >= 0 writes normalised bf16 rows
/// to partial_out and their base-2 log-sum-exp to partial_lse; with partial < 0 it writes out and
/// lse. Launched with programmatic stream serialization: nothing but the plan, the batch and
/// context rows is read before the predecessor has finished.
cudaError_t attn_verify_mla_wgmma(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                  cudaStream_t stream);
cudaError_t attn_verify_mla_mma_sync(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                     cudaStream_t stream);

}  // namespace kd
