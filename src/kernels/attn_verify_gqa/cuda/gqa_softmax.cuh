// A consumer thread's two rows of a tile: scores to probabilities, base 2.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attn_verify_gqa/cuda/gqa_config.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reference_maximum.h"

namespace kd::gqa {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// Scores of a thread's two rows to powers of two: score * factor[row], after prepare().
struct ScoreScale {
    float factor[2];  // positive
    float inner[2];   // of prepare(): cap: 2 log2(e) / cap of the score; else its whole factor
    float cap_log2e;
    bool prepared;  // a cap

    /// `row_scale`: positive.
    __device__ ScoreScale(float score_scale, float cap, const float (&row_scale)[2])
        : cap_log2e(cap > 0 ? cap * kLog2E : 0.0f), prepared(cap > 0) {
#pragma unroll
        for (int32_t row = 0; row < 2; ++row) {
            factor[row] = prepared ? 1.0f : row_scale[row] * (score_scale * kLog2E);
            inner[row] = row_scale[row] * (score_scale * kLog2E * (cap > 0 ? 2 / cap : 1.0f));
        }
    }

    /// tanh(x) = 1 - 2 / (1 + exp(2 x)): tanh.approx errs by 5e-4, too much for a capped score.
    /// No fminf: of a NaN it would make the cap.
    __device__ __forceinline__ float capped(float twice) const {
        const float e = ptx::exp2_approx(twice > 64.0f ? 64.0f : twice);
        return cap_log2e * (1.0f - __fdividef(2.0f, 1.0f + e));
    }

    template <int32_t kCount>
    __device__ __forceinline__ void prepare(float (&s)[kCount]) const {
        if (!prepared) return;
#pragma unroll
        for (int32_t i = 0; i < kCount; ++i) s[i] *= inner[i % 4 / 2];
        if (cap_log2e == 0) return;
#pragma unroll
        for (int32_t i = 0; i < kCount; ++i) s[i] = capped(s[i]);
    }
};

/// Reference maximum and sum (of this thread's columns alone) of its two rows.
struct Running {
    float max[2] = {kNothingSeen, kNothingSeen};
    float sum[2] = {};
};

/// -inf where the column's bit is not set: `seen` has the first row's 16 (first_columns()), then
/// the second's. s[4 n + e]: row e / 2, column 2 n + e % 2.
template <int32_t kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], uint32_t seen) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
        const int32_t bit = i % 4 / 2 * 16 + i / 4 * 2 + i % 2;
        if ((seen >> bit & 1) == 0) s[i] = -INFINITY;
    }
}

/// Largest score of a thread's row `row` in the tile; -inf: it sees none of the keys.
template <int32_t kCount>
__device__ __forceinline__ float row_maximum(const float (&s)[kCount], int32_t row) {
    float top = -INFINITY;
#pragma unroll
    for (int32_t i = 2 * row; i < kCount; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    return fmaxf(top, __shfl_xor_sync(~0u, top, 2));
}

/// The reference maximum of rows that see their first key in this tile, as softmax() would find it
/// in a second attempt.
template <int32_t kCount>
__device__ __forceinline__ void begin_rows(const float (&s)[kCount], const float (&factor)[2],
                                           Running& running) {
#pragma unroll
    for (int32_t row = 0; row < 2; ++row) {
        const float top = row_maximum(s, row);
        if (top > -INFINITY && running.max[row] == kNothingSeen)
            running.max[row] = top * factor[row];
    }
}

/// Probabilities p of a tile's scores, relative to the rows' reference maxima. True where the
/// reference of some row of the warp moved: earlier outputs are then to be multiplied by `rescale`,
/// exactly 1 for a row whose reference stays. Whether it moves is the row's own decision: its
/// result depends on nothing but its keys. `kFirst`: rows have seen nothing yet, so that those
/// which see a key now move.
template <bool kFirst, int32_t kCount>
__device__ __forceinline__ bool softmax(const float (&s)[kCount], const float (&factor)[2],
                                        int32_t lane, Running& running, float (&p)[kCount],
                                        float (&rescale)[2]) {
    float sum[2];
    const auto attempt = [&] {
        float part[2][2] = {};
#pragma unroll
        for (int32_t i = 0; i < kCount; ++i) {
            const int32_t row = i % 4 / 2;
            p[i] = ptx::exp2_approx(__fmaf_rn(s[i], factor[row], -running.max[row]));
            part[row][i % 2] += p[i];
        }
        for (int32_t row = 0; row < 2; ++row) sum[row] = part[row][0] + part[row][1];
    };
    uint32_t moving[2] = {~0u, ~0u};
    if constexpr (!kFirst) {
        attempt();
        for (int32_t row = 0; row < 2; ++row) moving[row] = __ballot_sync(~0u, sum[row] > kMostSum);
    }
    const bool moves = kFirst || (moving[0] | moving[1]) != 0;
    if (moves) [[unlikely]] {
#pragma unroll
        for (int32_t row = 0; row < 2; ++row) {
            float top = row_maximum(s, row);
            const bool own = kFirst ? top > -INFINITY  // elsewhere: of the row's four lanes
                                    : (moving[row] >> (lane & ~3) & 15) != 0;
            top *= factor[row];
            rescale[row] = own ? ptx::exp2_approx(running.max[row] - top) : 1.0f;
            running.max[row] = own ? top : running.max[row];
            running.sum[row] *= rescale[row];
        }
        attempt();
    }
#pragma unroll
    for (int32_t row = 0; row < 2; ++row) running.sum[row] += sum[row];
    return moves;
}

/// Fragment of k-step `step` (16 keys) of the second product: accumulators 2 step and 2 step + 1
/// hold, in pairs, what the left operand wants.
template <bool kF16, int32_t kCount>
__device__ __forceinline__ void pack_probabilities(uint32_t (&a)[4], const float (&p)[kCount],
                                                   int32_t step) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        const float low = p[8 * step + 2 * i];
        const float high = p[8 * step + 2 * i + 1];
        a[i] = kF16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
    }
}

}  // namespace kd::gqa
