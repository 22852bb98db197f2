// Registers of the fp8 loops' math warpgroups, the reductions over keys, caps and masks.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_fragments.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// S^T of a tile: keys g and g + 8 of the warp's 16; [4 j + {0, 1}] are rows 8 j + 2 q + {0, 1} of
/// key g, [4 j + {2, 3}] of key g + 8.
template <int32_t kRows>
using ColumnScores = float[kRows / 2];
/// O^T of a warpgroup, [64 columns of its 256]: dimensions 2 g and 2 g + 1 of the warp's 16 in
/// [4 j + {0, 1}] and [4 j + {2, 3}], rows 8 j + 2 q + {0, 1}.
template <int32_t kRows>
using ColumnOutput = float[4][kRows / 2];
/// One value for each of a lane's rows: [2 j + e] is row 8 j + 2 q + e.
template <int32_t kRows>
using OfRows = float[kRows / 4];

/// Combines kValues values over the 8 lanes with equal q: afterwards a lane has, in v[0] and v[1],
/// the results of rows 8 j + 2 q + {0, 1} of j = reduced_rows<kValues>(lane). The order in which
/// values meet does not depend on kValues.
template <int32_t kValues, int32_t kDistance = 16, int32_t kCount, class Combine>
__device__ __forceinline__ void reduce_keys(float (&v)[kCount], int32_t lane,
                                            const Combine& combine) {
    constexpr bool kSplit = kValues > 2;  // half of the rows for either lane
    constexpr int32_t kKept = kSplit ? kValues / 2 : 2;
    const bool upper = lane & kDistance;
#pragma unroll
    for (int32_t i = 0; i < kKept; ++i) {
        float mine = v[i];
        float given = v[i];
        if constexpr (kSplit) (upper ? mine : given) = v[kKept + i];
        v[i] = combine(mine, __shfl_xor_sync(0xffffffff, given, kDistance));
    }
    if constexpr (kDistance > 4) reduce_keys<kKept, kDistance / 2>(v, lane, combine);
}
template <int32_t kValues>
__device__ __forceinline__ int32_t reduced_rows(int32_t lane) {
    int32_t j = 0;
#pragma unroll
    for (int32_t values = kValues, bit = 16; values > 2; values /= 2, bit /= 2)
        j = 2 * j + ((lane & bit) != 0);
    return j;
}

/// cap * tanh(s / cap) in powers of two, s times `unit` being in these; from an exponential:
/// tanh.approx is too coarse for scores.
template <int32_t kRows>
__device__ __forceinline__ void cap_scores(float logit_cap, float unit, ColumnScores<kRows>& s) {
    const float cap = logit_cap * kLog2E;
    const float inner = 2.0f / logit_cap * unit;
#pragma unroll
    for (float& x : s) x = cap - __fdividef(2.0f * cap, 1.0f + ptx::exp2_approx(x * inner));
}

/// Takes away the scores of keys that their rows don't see, of the warp's 16 keys from `first_key`
/// on.
template <int32_t kRows>
__device__ __forceinline__ void mask_scores(const RowVisibility* visibility, int32_t first_key,
                                            int32_t key_end, int32_t lane, ColumnScores<kRows>& s) {
    const RowVisibility* const rows = visibility + lane % 4 * 2;
    int32_t key[2];    // this lane's, beyond all if they do not exist
    uint32_t word[2];  // where their bits are in the rows' ancestors
    uint32_t bit[2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        key[half] = first_key + lane / 4 + 8 * half;
        const auto node = static_cast<uint32_t>(key[half] - rows->context);  // of all rows
        const bool exists = key[half] < key_end;
        if (!exists) key[half] = INT32_MAX;
        word[half] = node / 32 % 4;
        bit[half] = exists && node < 128 ? 1u << node % 32 : 0;
    }
#pragma unroll
    for (int32_t i = 0; i < kRows / 4; ++i) {
        const RowVisibility& row = rows[i / 2 * 8 + i % 2];
        const auto* const ancestors = reinterpret_cast<const uint32_t*>(row.ancestors);
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
            const bool in_tree = (ancestors[word[half]] & bit[half]) != 0;
            const bool sees = key[half] < row.limit ? key[half] >= row.first : in_tree;
            if (!sees) s[i / 2 * 4 + 2 * half + i % 2] = -INFINITY;
        }
    }
}

/// The same in fast mode without a sliding window, where rows see all of the context: the block
/// with the step's tail is what all others wait for. A row has one word for the warp's keys.
template <int32_t kRows>
__device__ __forceinline__ void mask_tail_columns(const RowVisibility* visibility,
                                                  int32_t first_key, int32_t key_end,
                                                  int32_t context, int32_t lane,
                                                  ColumnScores<kRows>& s) {
    const RowVisibility* const rows = visibility + lane % 4 * 2;
    const int32_t tail = first_key / 32 * 32 - context;  // the word's first key, as a node
    const int32_t index = tail >> 5;
    const int32_t key = first_key + lane / 4;  // and key + 8
    const uint32_t bit[2] = {key < key_end ? 1u << key % 32 : 0,
                             key + 8 < key_end ? 1u << (key + 8) % 32 : 0};
#pragma unroll
    for (int32_t i = 0; i < kRows / 4; ++i) {
        const auto* const ancestors =
            reinterpret_cast<const uint32_t*>(rows[i / 2 * 8 + i % 2].ancestors);
        const auto word = [&](int32_t at) { return at < 0 ? ~0u : at < 4 ? ancestors[at] : 0u; };
        const uint32_t seen = __funnelshift_r(word(index), word(index + 1), tail);
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
            if ((seen & bit[half]) == 0) s[i / 2 * 4 + 2 * half + i % 2] = -INFINITY;
        }
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
