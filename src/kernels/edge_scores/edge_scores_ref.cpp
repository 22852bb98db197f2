#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/edge_scores/edge_scores.h"

namespace kd {

namespace {

/// p -> p^power / Z of log-probabilities that share e^log_mass.
void sharpen(std::vector<double>& log_probs, double log_mass, double power) {
    double sum = std::pow(-std::expm1(log_mass), power);
    for (const double each : log_probs) sum += std::exp(power * each);
    for (double& each : log_probs) each = power * each - std::log(sum);
}

void score_parent(const EdgeScoresParams& params, int64_t depth, int64_t parent) {
    const int64_t first = depth * params.states;
    const float* a = params.parent + (first + parent) * params.rank;
    std::vector<double> score(static_cast<size_t>(params.children[depth]));
    double largest = -std::numeric_limits<double>::infinity();
    for (size_t c = 0; c < score.size(); ++c) {
        const int64_t child = first + static_cast<int64_t>(c);
        const float* b = params.child + child * params.rank;
        score[c] = params.logit[child];
        for (int64_t i = 0; i < params.rank; ++i) score[c] += double{a[i]} * b[i];
        if (!std::isfinite(score[c])) score[c] = -std::numeric_limits<double>::infinity();
        largest = std::max(largest, score[c]);
    }
    if (std::isfinite(largest)) {
        double sum = 0;
        for (const double each : score) sum += std::exp(each - largest);
        for (double& each : score) each += params.log_mass[depth] - largest - std::log(sum);
        if (params.power != nullptr) sharpen(score, params.log_mass[depth], params.power[depth]);
    }
    std::ranges::transform(score, params.edge + (first + parent) * params.states,
                           [](double each) { return static_cast<float>(each); });
}

}  // namespace

void edge_gate_ref(const EdgeGateParams& params) {
    const int64_t values = params.states * params.rank;
    for (int64_t i = 0; i < params.depths * values; ++i) {
        double value = params.parent[i];
        if (params.type == EdgeGate::silu_sum) {
            value += params.gate[i / values * params.rank + i % params.rank];
            value /= 1 + std::exp(-value);
        } else {
            value /= 1 + std::exp(-double{params.gate[i]});
        }
        params.parent[i] = static_cast<float>(value);
    }
}

void edge_scores_ref(const EdgeScoresParams& params) {
    for (int64_t depth = 0; depth < params.depths; ++depth) {
        for (int64_t p = 0; p < params.parents[depth]; ++p) score_parent(params, depth, p);
    }
}

}  // namespace kd
