// Cases of moe_route, for tests and benchmarks. Ids are exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/moe_route/moe_route.h"

namespace kd {

struct MoeRouteCase {
    const char* name;
    int64_t rows;
    int32_t experts;
    int32_t used;
    int32_t groups;
    int32_t groups_used;
    MoeScoring scoring;
    bool normalise;
    float scale;
    bool bias;
    uint32_t seed;
};

std::span<const MoeRouteCase> moe_route_cases();

/// Owns what `params` points to (ids and weights excepted).
struct MoeRouteInputs {
    std::vector<float> logits, bias;
    MoeRouteParams params;
};
MoeRouteInputs make_moe_route_inputs(const MoeRouteCase& test);

}  // namespace kd
