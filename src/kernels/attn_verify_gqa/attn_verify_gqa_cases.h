// Cases of attn_verify_gqa, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attn_verify_gqa/attn_verify_gqa.h"

namespace kd {

struct AttnVerifyGqaCase {
    const char* name;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    DType cache;
    struct Segment {
        int32_t context;
        int32_t rows;
        bool tree;  // random tree; otherwise causal, or
        bool bidirectional = false;
    };
    std::vector<Segment> segments;
    uint32_t seed;
};

std::span<const AttnVerifyGqaCase> attn_verify_gqa_cases();

/// Owns what `params` points to (params.out and params.scratch excepted).
struct AttnVerifyGqaInputs {
    std::vector<float> q;
    std::vector<std::byte> cache;
    std::vector<std::vector<int32_t>> slots;  // context and rows of each segment, alternating
    std::vector<std::vector<int32_t>> depth;
    std::vector<std::vector<uint64_t>> ancestors;
    std::vector<AttnSegment> segments;
    AttnVerifyGqaParams params;
    int64_t rows = 0;
    int64_t max_keys = 0;
};
AttnVerifyGqaInputs make_attn_verify_gqa_inputs(const AttnVerifyGqaCase& test);

/// |fast - exact| <= this (values of Q, K and V are in -1..1 and the scale is 4 / sqrt(head_dim)).
double attn_verify_gqa_tolerance(const AttnVerifyGqaCase& test);
int64_t attn_verify_gqa_bytes(const AttnVerifyGqaCase& test);
double attn_verify_gqa_flops(const AttnVerifyGqaCase& test);

}  // namespace kd
