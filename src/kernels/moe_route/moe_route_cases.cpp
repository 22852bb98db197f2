#include "kernels/moe_route/moe_route_cases.h"

#include "kernels/cases/random.h"

namespace kd {

std::span<const MoeRouteCase> moe_route_cases() {
    using enum MoeScoring;
    static constexpr MoeRouteCase kCases[] = {
        {"one", 1, 1, 1, 1, 1, sigmoid, true, 1, false, 1},
        {"kimi", 16, 384, 8, 1, 1, sigmoid, true, 2.827f, true, 2},
        {"v3", 33, 256, 8, 8, 4, sigmoid, true, 2.5f, true, 3},
        {"v3_not_normalised", 5, 256, 8, 8, 4, sigmoid, false, 2.5f, true, 4},
        {"all_of_the_groups", 7, 12, 6, 4, 2, sigmoid, true, 1, true, 5},
        {"groups_of_one", 7, 6, 2, 6, 3, sigmoid, true, 1, true, 6},
        {"v2_lite", 9, 64, 6, 1, 1, softmax, false, 1, false, 7},
        {"v2", 9, 160, 6, 8, 3, softmax, false, 16, false, 8},
    };
    return kCases;
}

MoeRouteInputs make_moe_route_inputs(const MoeRouteCase& test) {
    CaseRandom random(test.seed);
    MoeRouteInputs in;
    in.logits = random.values(test.rows * test.experts, 4);
    if (test.bias) in.bias = random.values(test.experts);
    in.params = {.rows = test.rows,
                 .experts = test.experts,
                 .used = test.used,
                 .groups = test.groups,
                 .groups_used = test.groups_used,
                 .scoring = test.scoring,
                 .normalise = test.normalise,
                 .scale = test.scale,
                 .logits = in.logits.data(),
                 .bias = test.bias ? in.bias.data() : nullptr};
    return in;
}

}  // namespace kd
