// A consumer thread's two rows of a tile: scores to probabilities, base 2.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attn_verify_gqa/cuda/gqa_config.cuh"
#include "kernels/cuda/ptx.cuh"

namespace kd::gqa {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// score * log2(e), with or without a cap.
struct ScoreScale {
    float scale;      // no cap: the whole factor; cap: 2 log2(e) / cap of the score
    float cap_log2e;  // 0: no cap

    __device__ ScoreScale(float score_scale, float cap)
        : scale(cap > 0 ? score_scale * (2 * kLog2E / cap) : score_scale * kLog2E),
          cap_log2e(cap * kLog2E) {}

    /// tanh(x) = 1 - 2 / (1 + exp(2 x)): tanh.approx errs by 5e-4, too much for a capped score.
    __device__ __forceinline__ float capped(float score) const {
        const float e = ptx::exp2_approx(fminf(score * scale, 64.0f));
        return cap_log2e * (1.0f - __fdividef(2.0f, 1.0f + e));
    }
};

/// Running maximum and sum (of this thread's columns alone) of its two rows.
struct Running {
    float max[2] = {-INFINITY, -INFINITY};
    float sum[2] = {};
};

template <int32_t kCount>
__device__ __forceinline__ void scale_scores(float (&s)[kCount], const ScoreScale& scale) {
    if (scale.cap_log2e > 0) {
#pragma unroll
        for (int32_t i = 0; i < kCount; ++i) s[i] = scale.capped(s[i]);
    } else {
#pragma unroll
        for (int32_t i = 0; i < kCount; ++i) s[i] *= scale.scale;
    }
}

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

/// s becomes the probabilities relative to the new maximum; `rescale` is what earlier sums and
/// outputs are to be multiplied by, exactly 1 for a row whose maximum stays.
template <int32_t kCount>
__device__ __forceinline__ void softmax(float (&s)[kCount], Running& running, float (&rescale)[2]) {
#pragma unroll
    for (int32_t row = 0; row < 2; ++row) {
        float top = running.max[row];
#pragma unroll
        for (int32_t i = 2 * row; i < kCount; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float base = top == -INFINITY ? 0.0f : top;  // a row that has seen nothing yet
        rescale[row] = ptx::exp2_approx(running.max[row] - base);
        float sum = 0;
#pragma unroll
        for (int32_t i = 2 * row; i < kCount; i += 4) {
            s[i] = ptx::exp2_approx(s[i] - base);
            s[i + 1] = ptx::exp2_approx(s[i + 1] - base);
            sum += s[i] + s[i + 1];
        }
        running.sum[row] = running.sum[row] * rescale[row] + sum;
        running.max[row] = top;
    }
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
