#include "kernels/edge_scores/edge_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/views.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/edge_scores/edge_scores.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr int64_t kLane = static_cast<int64_t>(kLanes);

/// Four partial sums, vector i going to sum i % 4: one order, whatever the batch.
HWY_INLINE float dot(const float* a, const float* b, int64_t count) {
    const F32 d;
    F32Vec sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    int64_t at = 0;
    for (; at + 4 * kLane <= count; at += 4 * kLane) {
        for (int64_t i = 0; i < 4; ++i) {
            const F32Vec x = hn::LoadU(d, a + at + i * kLane);
            sums[i] = hn::MulAdd(x, hn::LoadU(d, b + at + i * kLane), sums[i]);
        }
    }
    for (int64_t i = 0; at < count; ++i, at += kLane) {
        const auto left = static_cast<size_t>(count - at);
        const bool whole = left >= kLanes;
        const F32Vec x = whole ? hn::LoadU(d, a + at) : load_first(d, a + at, left);
        const F32Vec y = whole ? hn::LoadU(d, b + at) : load_first(d, b + at, left);
        sums[i] = hn::MulAdd(x, y, sums[i]);
    }
    return sum_of(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

HWY_INLINE F32Vec gated(F32 d, EdgeGate type, F32Vec parent, F32Vec gate) {
    const bool sum = type == EdgeGate::silu_sum;
    const F32Vec value = sum ? hn::Add(parent, gate) : parent;
    const F32Vec below = exp_of(d, hn::Neg(sum ? value : gate));
    return hn::Div(value, hn::Add(hn::Set(d, 1.0f), below));
}

/// Parents [begin, end), counted over all depths.
void edge_gate_rows(const EdgeGateParams& params, int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
        float* parent = params.parent + row * params.rank;
        const int64_t gate_row = params.type == EdgeGate::silu_sum ? row / params.states : row;
        const float* gate = params.gate + gate_row * params.rank;
        int64_t i = 0;
        for (; i + kLane <= params.rank; i += kLane) {
            hn::StoreU(gated(d, params.type, hn::LoadU(d, parent + i), hn::LoadU(d, gate + i)), d,
                       parent + i);
        }
        if (const auto left = static_cast<size_t>(params.rank - i); left > 0) {
            const F32Vec last = gated(d, params.type, load_first(d, parent + i, left),
                                      load_first(d, gate + i, left));
            store_first(d, last, parent + i, left);
        }
    }
}

/// Scores of one parent's children, padded with -inf to whole vectors.
struct Scores {
    static constexpr int64_t kMost = 64;
    HWY_ALIGN float at[kMost];
    int64_t count;  // a multiple of kLane

    /// at = factor * at + shift; returns the sum of exp(at).
    float scale(float factor, float shift) {
        const F32 d;
        F32Vec sum = hn::Zero(d);
        for (int64_t i = 0; i < count; i += kLane) {
            const F32Vec x = hn::Load(d, at + i);
            const F32Vec y = hn::MulAdd(x, hn::Set(d, factor), hn::Set(d, shift));
            hn::Store(y, d, at + i);
            sum = hn::Add(sum, exp_of(d, y));
        }
        return sum_of(d, sum);
    }
};

/// Returns the largest score.
HWY_INLINE float score_children(const EdgeScoresParams& params, int64_t row, int32_t children,
                                Scores& scores) {
    const int64_t first_child = row / params.states * params.states;
    float largest = -kInfinity;
    scores.count = (children + kLane - 1) / kLane * kLane;
    std::fill_n(scores.at, scores.count, -kInfinity);
    for (int64_t c = 0; c < children; ++c) {
        const float* child = params.child + (first_child + c) * params.rank;
        const float score = params.logit[first_child + c] +
                            dot(params.parent + row * params.rank, child, params.rank);
        if (!std::isfinite(score)) continue;
        scores.at[c] = score;
        largest = std::max(largest, score);
    }
    return largest;
}

/// Parents [begin, end), counted over all depths.
void edge_scores_rows(const EdgeScoresParams& params, int64_t begin, int64_t end) {
    Scores scores;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t depth = row / params.states;
        const int32_t children = params.children[depth];
        if (row % params.states >= params.parents[depth]) continue;
        const float largest = score_children(params, row, children, scores);
        if (largest > -kInfinity) {
            const float log_mass = params.log_mass[depth];
            const float sum = scores.scale(1, -largest);
            const float power = params.power != nullptr ? params.power[depth] : 1;
            const float shared = scores.scale(power, power * (log_mass - std::log(sum)));
            if (params.power != nullptr) {
                scores.scale(1, -std::log(shared + std::pow(-std::expm1(log_mass), power)));
            }
        }
        std::copy_n(scores.at, children, params.edge + row * params.states);
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(edge_gate_rows);
HWY_EXPORT(edge_scores_rows);

void edge_gate(const EdgeGateParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return edge_gate_ref(params);
    stream.threads->parallel_for(params.depths * params.states, 16,
                                 [&](int64_t begin, int64_t end) {
                                     HWY_DYNAMIC_DISPATCH(edge_gate_rows)(params, begin, end);
                                 });
}

void edge_scores(const EdgeScoresParams& params, Stream& stream) {
    for (int64_t depth = 0; depth < params.depths; ++depth) {
        KD_CHECK(params.parents[depth] <= params.states && params.children[depth] <= params.states,
                 "{} parents, {} children, {} states", params.parents[depth],
                 params.children[depth], params.states);
    }
    KD_CHECK(params.states <= kMaxDraftStates, "{} states", params.states);
    if (stream.kernels == Kernels::reference) return edge_scores_ref(params);
    stream.threads->parallel_for(params.depths * params.states, 4, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(edge_scores_rows)(params, begin, end);
    });
}

}  // namespace kd
#endif
