#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/moe_experts/moe_experts_parts.h"

namespace kd {

namespace {

double dot(const std::vector<float>& w, const float* x) {
    double sum = 0;
    for (size_t i = 0; i < w.size(); ++i) sum += double{w[i]} * x[i];
    return sum;
}

}  // namespace

void check_moe_experts(const MoeExpertsParams& params) {
    KD_CHECK(params.gate.size() == params.up.size() && params.gate.size() == params.down.size(),
             "{} gate, {} up, {} down matrices", params.gate.size(), params.up.size(),
             params.down.size());
    for (int64_t pair = 0; pair < params.rows * params.used; ++pair) {
        const int32_t id = params.ids[pair];
        KD_CHECK(id >= 0 && id < std::ssize(params.gate), "expert {} of {}", id,
                 params.gate.size());
        const auto e = static_cast<size_t>(id);
        KD_CHECK(
            params.gate[e].rows == params.intermediate && params.gate[e].columns == params.hidden &&
                params.up[e].rows == params.intermediate && params.up[e].columns == params.hidden &&
                params.down[e].rows == params.hidden &&
                params.down[e].columns == params.intermediate,
            "expert {} of other sizes than {} and {}", id, params.hidden, params.intermediate);
    }
}

void moe_experts_activate(const MoeExpertsParams& params, int64_t begin, int64_t end) {
    std::vector<float> w(static_cast<size_t>(params.hidden));
    for (int64_t pair = begin; pair < end; ++pair) {
        const float* x = params.x + pair / params.used * params.hidden;
        const auto expert = static_cast<size_t>(params.ids[pair]);
        for (int64_t i = 0; i < params.intermediate; ++i) {
            dequantise_row(params.gate[expert], i, w.data());
            const double gate = dot(w, x);
            dequantise_row(params.up[expert], i, w.data());
            const double up = dot(w, x);
            params.activated[pair * params.intermediate + i] =
                static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
        }
    }
}

void moe_experts_combine(const MoeExpertsParams& params, int64_t begin, int64_t end) {
    std::vector<float> w(static_cast<size_t>(params.intermediate));
    for (int64_t row = 0; row < params.rows; ++row) {
        for (int64_t column = begin; column < end; ++column) {
            double y = 0;
            for (int64_t pair = row * params.used; pair < (row + 1) * params.used; ++pair) {
                const auto expert = static_cast<size_t>(params.ids[pair]);
                dequantise_row(params.down[expert], column, w.data());
                y += params.weights[pair] * dot(w, params.activated + pair * params.intermediate);
            }
            const int64_t at = row * params.hidden + column;
            if (params.residual != nullptr) y += params.residual[at];
            params.y[at] = static_cast<float>(y);
        }
    }
}

void moe_experts_ref(const MoeExpertsParams& params) {
    check_moe_experts(params);
    moe_experts_activate(params, 0, params.rows * params.used);
    moe_experts_combine(params, 0, params.hidden);
}

}  // namespace kd
