// edge_scores: log-probabilities of a depth's candidates given each candidate of the depth before,
// from low-rank factors; the conditional edges of a draft lattice.
#pragma once

#include <cstdint>

#include "backends/stream.h"

namespace kd {

/// edge[d, p, c] = log_mass[d] + log softmax over c of (logit[d, c] + parent[d, p] . child[d, c]),
/// and of these probabilities, where there is a `power`, p^power / Z over c and what all c leave
/// of 1, which counts as one more. Of `states` parents and children a depth the first `parents[d]`
/// and `children[d]` are there; the other edges are not written. A row without a finite score is
/// -inf.
struct EdgeScoresParams {
    int64_t depths = 0;
    int32_t states = 0;
    int64_t rank = 0;
    const int32_t* parents = nullptr;   // [depths]
    const int32_t* children = nullptr;  // [depths]
    const float* parent = nullptr;      // [depths, states, rank]
    const float* child = nullptr;       // [depths, states, rank]
    const float* logit = nullptr;       // [depths, states]
    const float* log_mass = nullptr;    // [depths] that the children share, <= 0
    const float* power = nullptr;       // [depths] above 0, or null: 1
    float* edge = nullptr;              // [depths, states, states]
};

/// How a parent's factor takes up what its depth knows.
enum class EdgeGate : uint8_t {
    silu_sum,         // parent[d, p] = silu(parent[d, p] + gate[d])
    sigmoid_product,  // parent[d, p] = parent[d, p] * sigmoid(gate[d, p])
};

struct EdgeGateParams {
    EdgeGate type = EdgeGate::silu_sum;
    int64_t depths = 0;
    int32_t states = 0;
    int64_t rank = 0;
    const float* gate = nullptr;  // [depths, rank] or [depths, states, rank]
    float* parent = nullptr;      // [depths, states, rank]
};

void edge_gate(const EdgeGateParams& params, Stream& stream);
void edge_gate_ref(const EdgeGateParams& params);

void edge_scores(const EdgeScoresParams& params, Stream& stream);
void edge_scores_ref(const EdgeScoresParams& params);

}  // namespace kd
