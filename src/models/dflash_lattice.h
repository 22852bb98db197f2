// From a block drafter's logits to a lattice: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "base/views.h"

namespace kd {

/// The candidates of consecutive drafts, as topk_lse leaves them.
struct DraftCandidates {
    const int32_t* index = nullptr;  // [depths, states] -1: none is left
    const float* value = nullptr;    // [depths, states]
    const float* lse = nullptr;      // [depths]
    int32_t states = 0;              // at most the lattice's capacity
};

/// Sets depths, states, tokens and marginal log-probabilities of the first `depths` depths; a depth
/// without candidates ends the lattice. has_edges becomes false. target_ids: of the drafter's
/// tokens; empty: the same.
void fill_marginals(const DraftCandidates& candidates, int32_t depths,
                    std::span<const int32_t> target_ids, LatticeView lattice);

/// log of the sum of the probabilities, at most 0. -inf where there are none.
float log_mass(std::span<const float> log_probs);

/// p -> p^power / Z over the candidates and what they leave of 1, which counts as one more: a
/// temperature for one depth, fitted so that probabilities are those with which the target agrees.
void calibrate(std::span<float> log_probs, float power);

/// The same for the marginals of each depth. Edges come calibrated (kernels/edge_scores).
void calibrate_marginals(LatticeView lattice, std::span<const float> power);

}  // namespace kd
