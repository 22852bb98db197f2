#include "kernels/moe_experts/moe_experts_cases.h"

#include <cmath>

#include "kernels/cases/random.h"

namespace kd {

std::span<const MoeExpertsCase> moe_experts_cases() {
    using enum DType;
    static constexpr MoeExpertsCase kCases[] = {
        {"one", f32, 1, 8, 4, 1, 1, false, 1},
        {"f32", f32, 5, 64, 32, 8, 3, true, 2},
        {"bf16", bf16, 3, 64, 32, 16, 4, false, 3},
        {"f16", f16, 2, 40, 24, 4, 2, true, 4},
        {"q8_0", q8_0, 4, 64, 32, 8, 2, false, 5},
        {"q4_k_and_q6_k", q4_k, 2, 256, 256, 3, 2, true, 6},
        {"f8_partial_blocks", f8_e4m3, 3, 160, 136, 4, 2, true, 7},
        {"int4", int4, 4, 64, 32, 8, 4, true, 8},
        {"many_rows", bf16, 70, 32, 16, 5, 2, true, 9},
    };
    return kCases;
}

MoeExpertsInputs make_moe_experts_inputs(const MoeExpertsCase& test) {
    CaseRandom random(test.seed);
    MoeExpertsInputs in;
    const auto matrix = [&](DType type, int64_t rows, int64_t columns) {
        const float magnitude = 2.0f / std::sqrt(static_cast<float>(columns));
        return random_weights(random, type, rows, columns, magnitude, in.storage.emplace_back());
    };
    for (int32_t e = 0; e < test.experts; ++e) {
        in.gate.push_back(matrix(test.type, test.intermediate, test.hidden));
        in.up.push_back(matrix(test.type, test.intermediate, test.hidden));
        const DType down = test.type == DType::q4_k ? DType::q6_k : test.type;
        in.down.push_back(matrix(down, test.hidden, test.intermediate));
    }
    in.x = random.values(test.rows * test.hidden, 2);
    in.weights = random.values(test.rows * test.used);
    if (test.residual) in.residual = random.values(test.rows * test.hidden);
    for (int64_t row = 0; row < test.rows; ++row) {
        std::vector<int32_t> left(static_cast<size_t>(test.experts));
        for (size_t i = 0; i < left.size(); ++i) left[i] = static_cast<int32_t>(i);
        for (int32_t k = 0; k < test.used; ++k) {
            const auto at = random.below(static_cast<int32_t>(left.size()));
            in.ids.push_back(left[static_cast<size_t>(at)]);
            left.erase(left.begin() + at);
        }
    }
    in.params = {.rows = test.rows,
                 .hidden = test.hidden,
                 .intermediate = test.intermediate,
                 .used = test.used,
                 .gate = in.gate,
                 .up = in.up,
                 .down = in.down,
                 .x = in.x.data(),
                 .ids = in.ids.data(),
                 .weights = in.weights.data(),
                 .residual = test.residual ? in.residual.data() : nullptr};
    return in;
}

}  // namespace kd
