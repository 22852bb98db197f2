// The softmax of a tile of the bf16 loop.
#pragma once

#include "kernels/attn_verify_mla/wgmma/bf16_scores.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Softmax of one tile: its P, packed, and the factor of what was accumulated before it.
template <int32_t kRows>
struct Published {
    uint32_t p[kKeys / 8][kRows];
    float factor[kRows];
    bool rescale;  // the factor of some row of the warp may not be 1
};

/// P of a tile relative to the references that stand; where it shows that a row's has to move, made
/// again. `s`: of kRows rows of this thread's, by turns, 2 of every 8 keys; times `to_log2` they
/// are powers of two. `first`: of the unit, so that all references move. `thread`: of the
/// warpgroup.
template <int32_t kRows>
__device__ __forceinline__ Published<kRows> soften(const float (&s)[kRows * kKeys / 4],
                                                   float to_log2, int32_t thread, bool first,
                                                   RowState (&rows)[kRows]) {
    Published<kRows> out;
    float sum[kRows];  // of this thread
    for (float& of_row : sum) of_row = INFINITY;
    const auto attempt = [&] {
        float part[kRows][2] = {};  // two short chains a row
#pragma unroll
        for (int32_t j = 0; j < kKeys / 8; ++j) {
#pragma unroll
            for (int32_t r = 0; r < kRows; ++r) {
                float e[2];
#pragma unroll
                for (int32_t i = 0; i < 2; ++i) {
                    e[i] = ptx::exp2_approx(
                        __fmaf_rn(s[(j * kRows + r) * 2 + i], to_log2, -rows[r].maximum));
                    part[r][i] += e[i];
                }
                out.p[j][r] = ptx::pack_bf16(e[0], e[1]);
            }
        }
        for (int32_t r = 0; r < kRows; ++r) sum[r] = part[r][0] + part[r][1];
    };
    if (!first) attempt();
    float most = sum[0];
    if (kRows == 2) most = fmaxf(most, sum[kRows - 1]);
    out.rescale = __any_sync(0xffffffff, most > kMostSum);
    for (float& factor : out.factor) factor = 1.0f;
    if (out.rescale) [[unlikely]] {
        float top[kRows];
        for (float& of_row : top) of_row = -INFINITY;
#pragma unroll
        for (int32_t i = 0; i < kRows * kKeys / 4; ++i)
            top[i / 2 % kRows] = fmaxf(top[i / 2 % kRows], s[i]);
#pragma unroll
        for (int32_t r = 0; r < kRows; ++r) {
            top[r] = __fmul_rn(quad_max(top[r]), to_log2);  // never fused
            const uint32_t moving = __ballot_sync(0xffffffff, sum[r] > kMostSum);
            // Whether the row's, that is of one of its four threads.
            const bool own = (moving >> (thread % 32 & ~3) & 15) != 0 && top[r] > -INFINITY;
            out.factor[r] = own ? ptx::exp2_approx(rows[r].maximum - top[r]) : 1.0f;
            rows[r].maximum = own ? top[r] : rows[r].maximum;
            rows[r].sum = __fmul_rn(rows[r].sum, out.factor[r]);
        }
        attempt();
    }
    for (int32_t r = 0; r < kRows; ++r) rows[r].sum += sum[r];
#pragma unroll
    for (int32_t j = 0; j < kKeys / 8; ++j) {
        // Packed here, not when it is published: by then s is another tile's.
#pragma unroll
        for (int32_t r = 0; r < kRows; ++r) asm volatile("" : "+r"(out.p[j][r]));
    }
    return out;
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
