#include "models/dflash_lattice.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kd {

namespace {

double sum_of_powers(std::span<const float> log_probs, double power) {
    double sum = 0;
    for (const float each : log_probs) sum += std::exp(power * double{each});
    return sum;
}

}  // namespace

void fill_marginals(const DraftCandidates& candidates, int32_t depths,
                    std::span<const int32_t> target_ids, LatticeView lattice) {
    *lattice.has_edges = false;
    *lattice.depths = 0;
    for (int32_t depth = 0; depth < depths; ++depth) {
        const int64_t first = int64_t{depth} * candidates.states;
        int32_t states = 0;
        for (; states < candidates.states && candidates.index[first + states] >= 0; ++states) {
            const int32_t id = candidates.index[first + states];
            const int64_t at = lattice.at(depth, states);
            lattice.token[at] = target_ids.empty() ? id : target_ids[static_cast<size_t>(id)];
            lattice.log_prob[at] = candidates.value[first + states] - candidates.lse[depth];
        }
        if (states == 0) return;
        lattice.state_count[depth] = states;
        *lattice.depths = depth + 1;
    }
}

float log_mass(std::span<const float> log_probs) {
    return static_cast<float>(std::min(std::log(sum_of_powers(log_probs, 1)), 0.0));
}

void calibrate(std::span<float> log_probs, float power) {
    const double tail = std::max(1 - sum_of_powers(log_probs, 1), 0.0);
    const double shift = std::log(sum_of_powers(log_probs, power) + std::pow(tail, power));
    for (float& each : log_probs) each = static_cast<float>(power * double{each} - shift);
}

void calibrate_marginals(LatticeView lattice, std::span<const float> power) {
    for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
        const auto states = static_cast<size_t>(lattice.state_count[depth]);
        calibrate({lattice.log_prob + lattice.at(depth, 0), states},
                  power[static_cast<size_t>(depth)]);
    }
}

}  // namespace kd
