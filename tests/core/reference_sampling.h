// The sampling distribution from its definition, in double and with a full sort: what sampling.cpp
// must agree with.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "base/sampling_params.h"

namespace kd {

inline std::vector<double> reference_distribution(std::span<const float> logits,
                                                  const SamplingParams& params) {
    std::vector<size_t> order;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (!std::isnan(logits[i])) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    std::vector<double> probability(logits.size(), 0.0);
    if (params.temperature == 0.0f) {
        probability[order[0]] = 1.0;
        return probability;
    }
    const auto normalise = [&] {
        double mass = 0.0;
        for (size_t i : order) mass += probability[i];
        for (size_t i : order) probability[i] /= mass;
    };
    const auto keep = [&](size_t tokens) {
        for (size_t r = tokens; r < order.size(); ++r) probability[order[r]] = 0.0;
        order.resize(std::min(tokens, order.size()));
        normalise();
    };
    for (size_t i : order) {
        probability[i] =
            std::exp((double{logits[i]} - double{logits[order[0]]}) / double{params.temperature});
    }
    normalise();
    if (params.top_k > 0) keep(static_cast<size_t>(params.top_k));
    size_t tokens = 0;
    for (double mass = 0.0; tokens < order.size() && mass < double{params.top_p}; ++tokens) {
        mass += probability[order[tokens]];
    }
    if (params.top_p < 1.0f) keep(tokens);
    tokens = 0;
    while (tokens < order.size() &&
           probability[order[tokens]] >= double{params.min_p} * probability[order[0]]) {
        ++tokens;
    }
    keep(tokens);
    return probability;
}

}  // namespace kd
