// A tile's scores in the score warpgroup of the bf16 loop: the products, the cap, the masks.
#pragma once

#include "kernels/attn_verify_mla/wgmma/bf16_query.cuh"
#include "kernels/cuda/reference_maximum.h"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Running softmax of one row; `sum` is this thread's share of it, relative to the reference
/// `maximum`.
struct RowState {
    float maximum = kNothingSeen;
    float sum = 0.0f;
};

/// S of a tile: rows r and r + 8 of this thread, 2 of every 8 keys.
using Scores = float[kKeys / 2];

/// tanh(s * scale / cap), from an exponential: tanh.approx is too coarse for scores.
template <int32_t kCount>
__device__ __forceinline__ void cap_scores(const AttnVerifyMlaParams& p, float (&s)[kCount]) {
    constexpr float kTwoLog2E = 2.8853900817779268f;
    const float inner = p.scale / p.logit_cap * kTwoLog2E;
#pragma unroll
    for (float& x : s) x = 1.0f - __fdividef(2.0f, 1.0f + ptx::exp2_approx(x * inner));
}

/// What a row sees of a tile that begins `tail` keys behind the context (or before: negative), in
/// fast mode: bit c for the tile's key c. `ancestors`: the node's words.
__device__ __forceinline__ uint64_t tail_mask(uint64_t low, uint64_t high, int32_t tail) {
    if (tail <= 0) return low << -tail | ((uint64_t{1} << -tail) - 1);
    return tail < 64 ? low >> tail | high << 1 << (63 - tail) : high >> (tail - 64);
}

/// What says which keys a unit's row sees. Fast mode: its node's ancestor words; else the node's
/// index in the request, the boundary of its position, and how many keys its path has from there.
template <bool kFast>
__device__ __forceinline__ uint4 row_sees(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                          int32_t row) {
    const int32_t node = (unit.row_begin + min(row, unit.rows - 1)) / p.heads;
    if (!kFast) {
        const int32_t position = unit.context + p.batch.depth[unit.first_node + node];
        const int32_t boundary = path_boundary(position, p.batch.max_depth);
        return make_uint4(node, boundary, position + 1 - boundary, 0);
    }
    const uint64_t* words = p.batch.ancestors + 2 * int64_t{unit.first_node + node};
    return make_uint4(words[0], words[0] >> 32, words[1], words[1] >> 32);
}

/// Fast mode: the mask of a tile that reaches beyond the context. What row_sees() says of the rows
/// is at `sees` in shared memory: in the step's last tiles it is what all others wait for.
__device__ __forceinline__ void mask_tail(uint32_t sees, const WorkUnit& unit, int32_t key,
                                          int32_t row, Scores& s) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const uint4 words = ptx::load_shared_128(sees + (row + 8 * half) * 16);
        uint64_t seen = tail_mask(words.x | uint64_t{words.y} << 32,
                                  words.z | uint64_t{words.w} << 32, key - unit.context);
        seen &= ~uint64_t{0} >> (64 - min(unit.key_end - key, 64));
        seen >>= threadIdx.x % 4 * 2;
        const auto low = static_cast<uint32_t>(seen);
        const auto high = static_cast<uint32_t>(seen >> 32);
#pragma unroll
        for (int32_t i = 0; i < kKeys / 2; ++i) {
            if ((i >> 1 & 1) != half) continue;
            const int32_t column = i / 4 * 8 + i % 2;
            if (((column < 32 ? low : high) >> column % 32 & 1) == 0) s[i] = -INFINITY;
        }
    }
}

/// Deterministic mode: which keys this thread's kRows rows, `first` and `first` + 8, see of units
/// that have them.
template <int32_t kRows>
struct SeenKeys {
    uint4 row[kRows];  // row_sees()

    /// In flight until a tile is masked.
    __device__ SeenKeys(const AttnVerifyMlaParams& p, const WorkUnit& unit, int32_t first) {
#pragma unroll
        for (int32_t r = 0; r < kRows; ++r) row[r] = row_sees<false>(p, unit, first + 8 * r);
    }
    /// `sees`: as mask_tail() has it.
    __device__ SeenKeys(uint32_t sees, int32_t first) {
#pragma unroll
        for (int32_t r = 0; r < kRows; ++r)
            row[r] = ptx::load_shared_128(sees + (first + 8 * r) * 16);
    }

    /// Of the tile that begins at `key`; `s` as soften() has it.
    __device__ __forceinline__ void mask(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                         int32_t key, float (&s)[kRows * kKeys / 4]) const {
        const int32_t own = key + threadIdx.x % 4 * 2;
#pragma unroll
        for (int32_t r = 0; r < kRows; ++r) {
            const auto node = static_cast<int32_t>(row[r].x);
            // Of a path unit: where the row's own path begins.
            const int32_t begin =
                unit.path_node >= 0 ? (node - unit.path_node) * p.batch.path_keys : 0;
            const int32_t end = unit.path_node >= 0
                                    ? begin + static_cast<int32_t>(row[r].z)
                                    : min(static_cast<int32_t>(row[r].y), unit.key_end);
#pragma unroll
            for (int32_t i = 0; i < kKeys / 4; ++i) {
                const int32_t column = i / 2 * 8 + i % 2;
                if (column < begin - own || column >= end - own)
                    s[(i / 2 * kRows + r) * 2 + i % 2] = -INFINITY;
            }
        }
    }
};

// In deterministic mode a score is the sum over the chunks 5, 6, 7, 8, 4 plus the sum over the
// chunks 0, 1, 2, 3, each in this order, whoever adds them up: a block with whole units, or two
// blocks side by side (bf16_halves.cuh). In fast mode it is one sum over both, without the
// registers and the additions that two take.

/// S = the sum over the chunks of Q in shared memory; `query` and `keys`: chunk kRegisterChunks.
__device__ __forceinline__ void shared_products(uint64_t query, uint64_t keys, Scores& s) {
#pragma unroll
    for (int32_t step = 0; step < kSharedChunks * 4; ++step)
        wgmma::ss_n48(s, query + step / 4 * (kQChunkBytes >> 4) + step % 4 * 2,
                      keys + step / 4 * (kChunkBytes >> 4) + step % 4 * 2, step > 0);
}

/// S = Q K^T; calls `between` when kHandOverAfter of its products are under way.
template <bool kFast, class Between>
__device__ __forceinline__ void compute_scores(uint64_t query, uint64_t keys,
                                               const QueryRegisters& q, Scores& s,
                                               const Between& between) {
    Scores low;
    wgmma::fence();
    shared_products(query, keys + kRegisterChunks * (kChunkBytes >> 4), s);
#pragma unroll
    for (int32_t step = 0; step < kRegisterChunks * 4; ++step) {
        if (step == kHandOverAfter - kSharedChunks * 4) between();
        const int32_t of_q = (step + kLowChunks * 4) % (kRegisterChunks * 4);
        wgmma::rs_n48(kFast || of_q >= kLowChunks * 4 ? s : low, q[of_q],
                      keys + of_q / 4 * (kChunkBytes >> 4) + of_q % 4 * 2, kFast || of_q != 0);
    }
    wgmma::commit();
    wgmma::wait<0>();
    wgmma::touch(s);
    if (kFast) return;
    wgmma::touch(low);
#pragma unroll
    for (int32_t i = 0; i < kKeys / 2; ++i) s[i] += low[i];
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
