// attn_verify_mla on the CPU: absorbed multi-head latent attention of new rows over the paged
// latent cache and, among the new rows themselves, over each row's ancestors only (a draft tree) or
// all earlier rows (a prefill chunk). One latent row serves all heads, as key whole and as value in
// its first `latent` elements.
//
// A row's output is a function of its path alone: keys are taken in path order (context positions,
// then the ancestors from the root down) and every reduction over them adds in that order.
#pragma once

#include <cstdint>
#include <span>

#include "backends/stream.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa.h"
#include "kernels/kv_view.h"

namespace kd {

struct AttnVerifyMlaCpuParams {
    int32_t heads = 0;
    int32_t latent = 0;
    int32_t rope = 0;
    float scale = 0;           // of the scores
    const float* q = nullptr;  // [rows, heads, latent + rope]
    float* out = nullptr;      // [rows, heads, latent]
    std::span<const AttnSegment> segments;
    KvView kv;  // latent rows of latent + rope values
    int32_t layer = 0;
};

void attn_verify_mla_cpu(const AttnVerifyMlaCpuParams& params, Stream& stream);
void attn_verify_mla_cpu_ref(const AttnVerifyMlaCpuParams& params);

}  // namespace kd
