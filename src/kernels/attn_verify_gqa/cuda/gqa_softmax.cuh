// A consumer thread's two rows of a tile: scores to probabilities, base 2.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attn_verify_gqa/cuda/gqa_config.cuh"
#include "kernels/cuda/ptx.cuh"

namespace kd::gqa {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// A row's reference maximum stays until a score exceeds it by this many powers of two, so that
/// outputs are rescaled rarely. P is then below 2^8 in bf16 or f16, sums are floats.
inline constexpr float kLazyRescale = 8.0f;

/// Scores to powers of two: score * factor, after prepare().
struct ScoreScale {
    float factor;  // positive
    float inner;   // of prepare(): cap: 2 log2(e) / cap of the score; else its whole factor
    float cap_log2e;
    bool prepared;  // a cap, or a scale that turns the order of the scores round

    __device__ ScoreScale(float score_scale, float cap)
        : factor(score_scale * kLog2E),
          inner(cap > 0 ? score_scale * (2 * kLog2E / cap) : factor),
          cap_log2e(cap > 0 ? cap * kLog2E : 0.0f),
          prepared(cap > 0 || !(score_scale > 0)) {
        if (prepared) factor = 1.0f;
    }

    /// tanh(x) = 1 - 2 / (1 + exp(2 x)): tanh.approx errs by 5e-4, too much for a capped score.
    __device__ __forceinline__ float capped(float score) const {
        const float e = ptx::exp2_approx(fminf(score * inner, 64.0f));
        return cap_log2e * (1.0f - __fdividef(2.0f, 1.0f + e));
    }

    template <int32_t kCount>
    __device__ __forceinline__ void prepare(float (&s)[kCount]) const {
        if (!prepared) return;
#pragma unroll
        for (int32_t i = 0; i < kCount; ++i) s[i] = cap_log2e > 0 ? capped(s[i]) : s[i] * inner;
    }
};

/// Reference maximum (at most kLazyRescale below the true one) and sum (of this thread's columns
/// alone) of its two rows.
struct Running {
    float max[2] = {-INFINITY, -INFINITY};
    float sum[2] = {};
};

/// -inf where the bit of the row's word is not set. s[4 n + e]: row e / 2, key 8 n + 2 (lane % 4) +
/// e % 2.
template <int32_t kCount>
__device__ __forceinline__ void mask_scores(float (&s)[kCount], const uint64_t (&visible)[2],
                                            int32_t lane) {
    uint32_t word[2][2];
#pragma unroll
    for (int32_t row = 0; row < 2; ++row) {
        const uint64_t shifted = visible[row] >> (2 * (lane % 4));
        word[row][0] = static_cast<uint32_t>(shifted);
        word[row][1] = static_cast<uint32_t>(shifted >> 32);
    }
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
        const int32_t bit = i / 4 * 8 + i % 2;
        if ((word[i % 4 / 2][bit / 32] >> (bit % 32) & 1) == 0) s[i] = -INFINITY;
    }
}

/// s becomes the probabilities relative to the row's reference maximum; `rescale` is what earlier
/// outputs are to be multiplied by, exactly 1 for a row whose reference stays. That is the row's
/// own decision: its result depends on nothing but its keys.
template <int32_t kCount>
__device__ __forceinline__ void softmax(float (&s)[kCount], float factor, Running& running,
                                        float (&rescale)[2]) {
    static_assert(kCount % 16 == 0);
    float top[2][4];  // several chains: a scheduler has two warps to choose from
#pragma unroll
    for (int32_t i = 0; i < kCount; i += 2) {
        float& chain = top[i % 4 / 2][i / 4 % 4];
        chain = i < 16 ? fmaxf(s[i], s[i + 1]) : fmaxf(chain, fmaxf(s[i], s[i + 1]));
    }
    float base[2];
#pragma unroll
    for (int32_t row = 0; row < 2; ++row) {
        float tile = fmaxf(fmaxf(top[row][0], top[row][1]), fmaxf(top[row][2], top[row][3]));
        tile = fmaxf(tile, __shfl_xor_sync(~0u, tile, 1));
        tile = fmaxf(tile, __shfl_xor_sync(~0u, tile, 2));
        tile *= factor;
        const bool moves = tile > running.max[row] + kLazyRescale;
        rescale[row] = moves ? ptx::exp2_approx(running.max[row] - tile) : 1.0f;
        running.max[row] = moves ? tile : running.max[row];
        // A row that has seen nothing yet.
        base[row] = running.max[row] == -INFINITY ? 0.0f : running.max[row];
    }
    float sum[2][2] = {};
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
        s[i] = ptx::exp2_approx(__fmaf_rn(s[i], factor, -base[i % 4 / 2]));
        sum[i % 4 / 2][i % 2] += s[i];
    }
#pragma unroll
    for (int32_t row = 0; row < 2; ++row)
        running.sum[row] = running.sum[row] * rescale[row] + (sum[row][0] + sum[row][1]);
}

/// Fragment of k-step `step` (16 keys) of the second product: accumulators 2 step and 2 step + 1
/// hold, in pairs, what the left operand wants.
template <bool kF16, int32_t kCount>
__device__ __forceinline__ void pack_probabilities(uint32_t (&p)[4], const float (&s)[kCount],
                                                   int32_t step) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        const float low = s[8 * step + 2 * i];
        const float high = s[8 * step + 2 * i + 1];
        p[i] = kF16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
    }
}

}  // namespace kd::gqa
