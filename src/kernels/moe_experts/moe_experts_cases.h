// Cases of moe_experts, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kernels/moe_experts/moe_experts.h"

namespace kd {

struct MoeExpertsCase {
    const char* name;
    DType type;
    int64_t rows;
    int32_t hidden;
    int32_t intermediate;
    int32_t experts;
    int32_t used;
    bool residual;
    uint32_t seed;
};

std::span<const MoeExpertsCase> moe_experts_cases();

/// Owns what `params` points to (y and activated excepted). A row's experts are distinct, in any
/// order.
struct MoeExpertsInputs {
    std::deque<std::vector<std::byte>> storage;
    std::vector<WeightView> gate, up, down;
    std::vector<float> x, weights, residual;
    std::vector<int32_t> ids;
    MoeExpertsParams params;
};
MoeExpertsInputs make_moe_experts_inputs(const MoeExpertsCase& test);

}  // namespace kd
