// Cases of attn_verify_mla.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/cases/attn_step_cases.h"

namespace kd {

struct AttnVerifyMlaCase {
    std::string name;  // letters, digits and _
    int32_t heads = 8;
    kdt_kv_format format = KDT_KV_BF16;
    AttnStepCase step;
    float logit_cap = 0;
    bool fused_query = false;  // latent and rope part of a head beside each other, heads padded
    int32_t slot_padding = 0;  // bytes behind each row of the cache
    int32_t splits = 0;        // of the shape
    bool reduced = false;      // in the short list for compute-sanitizer
};

std::span<const AttnVerifyMlaCase> attn_verify_mla_cases();

/// The arguments of a case: everything but the pointers, and how many bytes those need.
struct AttnVerifyMlaInputs {
    AttnStep step;
    kdt_attn_shape shape{};          // fast mode, automatic path
    kdt_attn_mla_tensors tensors{};  // q_latent and q_rope lie in one buffer of query_bytes
    int64_t query_bytes = 0;
    int64_t rope_offset_bytes = 0;  // of q_rope in it
    int64_t kv_bytes = 0;
    uint32_t seed = 0;
};
AttnVerifyMlaInputs make_attn_verify_mla_inputs(const AttnVerifyMlaCase& test);
/// The same for a step made by hand.
AttnVerifyMlaInputs make_attn_verify_mla_inputs(const AttnVerifyMlaCase& test, AttnStep step);

/// Writes the values of a case's queries and cache rows, in host memory that was filled with NaN
/// (0xff bytes) before.
void fill_attn_verify_mla(const AttnVerifyMlaInputs& inputs, std::byte* query, std::byte* kv);

}  // namespace kd
