// Cases of attn_verify_mla_cpu, for tests and benchmarks: segments as in attn_verify_gqa's.
#pragma once

#include <span>
#include <vector>

#include "kernels/attn_verify_gqa/attn_verify_gqa_cases.h"
#include "kernels/attn_verify_mla/attn_verify_mla_cpu.h"

namespace kd {

struct AttnVerifyMlaCpuCase {
    const char* name;
    int32_t heads;
    int32_t latent;
    int32_t rope;
    DType cache;
    std::vector<AttnVerifyGqaCase::Segment> segments;
    uint32_t seed;
};

std::span<const AttnVerifyMlaCpuCase> attn_verify_mla_cpu_cases();

/// `gqa` owns everything; its params are the same attention said as grouped-query attention with
/// one K/V head, over a cache whose V rows are the K rows again.
struct AttnVerifyMlaCpuInputs {
    AttnVerifyGqaInputs gqa;
    std::vector<float> q;
    std::vector<std::byte> cache;
    AttnVerifyMlaCpuParams params;  // out excepted
};
AttnVerifyMlaCpuInputs make_attn_verify_mla_cpu_inputs(const AttnVerifyMlaCpuCase& test);

}  // namespace kd
