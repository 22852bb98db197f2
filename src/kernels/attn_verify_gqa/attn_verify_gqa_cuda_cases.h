// Cases of attn_verify_gqa on CUDA.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/cases/attn_step_cases.h"

namespace kd {

struct AttnVerifyGqaCudaCase {
    std::string name;  // letters, digits and _
    int32_t heads = 32;
    int32_t kv_heads = 8;
    int32_t head_dim = 128;
    kdt_kv_format format = KDT_KV_BF16;
    AttnStepCase step;
    float logit_cap = 0;
    int32_t sliding_window = 0;
    bool fused_query = false;  // queries are the first part of a row that also held K and V
    int32_t splits = 0;        // of the shape
    bool joined_kv = false;    // K and V heads of a slot beside each other in one buffer
    bool reduced = false;      // in the short list for compute-sanitizer
};

std::span<const AttnVerifyGqaCudaCase> attn_verify_gqa_cuda_cases();

/// The arguments of a case: everything but the pointers, and how many bytes those need.
struct AttnVerifyGqaCudaInputs {
    AttnStep step;
    kdt_attn_shape shape{};          // fast mode, automatic path
    kdt_attn_gqa_tensors tensors{};  // K and V lie in one buffer of kv_bytes
    int64_t query_bytes = 0;
    int64_t kv_bytes = 0;
    int64_t v_offset_bytes = 0;  // of V in it
    uint32_t seed = 0;
};
AttnVerifyGqaCudaInputs make_attn_verify_gqa_cuda_inputs(const AttnVerifyGqaCudaCase& test);
/// The same for a step made by hand.
AttnVerifyGqaCudaInputs make_attn_verify_gqa_cuda_inputs(const AttnVerifyGqaCudaCase& test,
                                                         AttnStep step);

/// Writes the values of a case's queries and cache rows, in host memory that was filled with NaN
/// (0xff bytes) before.
void fill_attn_verify_gqa_cuda(const AttnVerifyGqaCudaInputs& inputs, std::byte* query,
                               std::byte* kv);

}  // namespace kd
