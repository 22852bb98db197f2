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

/// Fast mode: the mask of a tile that reaches beyond the context. The rows' ancestors are at
/// `masks` in shared memory: in the step's last tiles it is what all others wait for.
__device__ __forceinline__ void mask_tail(uint32_t masks, const WorkUnit& unit, int32_t key,
                                          int32_t row, Scores& s) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const uint4 words = ptx::load_shared_128(masks + (row + 8 * half) * 16);
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

/// Deterministic mode: which keys this thread's two rows see of units that have these rows.
struct SeenKeys {
    int32_t depth[2] = {};  // in flight until a tile is masked
    int32_t node[2] = {};

    __device__ SeenKeys(const AttnVerifyMlaParams& p, const WorkUnit& unit, int32_t row) {
        if (unit.is_fast()) return;
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
            node[half] = (unit.row_begin + min(row + 8 * half, unit.rows - 1)) / p.heads;
            depth[half] = p.batch.depth[unit.first_node + node[half]];
        }
    }

    /// Of the tile that begins at `key`; `s` as soften() has it.
    template <int32_t kRows>
    __device__ __forceinline__ void mask(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                         int32_t key, float (&s)[kRows * kKeys / 4]) const {
        const int32_t own = key + threadIdx.x % 4 * 2;
#pragma unroll
        for (int32_t r = 0; r < kRows; ++r) {
            const int32_t position = unit.context + depth[r];
            const int32_t boundary = path_boundary(position, p.batch.max_depth);
            // Of a path unit: where the row's own path begins.
            const int32_t begin =
                unit.path_node >= 0 ? (node[r] - unit.path_node) * p.batch.path_keys : 0;
            const int32_t end =
                unit.path_node >= 0 ? begin + position + 1 - boundary : min(boundary, unit.key_end);
#pragma unroll
            for (int32_t i = 0; i < kKeys / 4; ++i) {
                const int32_t column = i / 2 * 8 + i % 2;
                if (column < begin - own || column >= end - own)
                    s[(i / 2 * kRows + r) * 2 + i % 2] = -INFINITY;
            }
        }
    }
};

// The sum of a score goes over the chunks 5, 6, 7, 8, 4, 0, 1, 2, 3 in this order, whoever adds it
// up: a block with whole units, or two blocks one after the other (bf16_halves.cuh).

/// S = the sum over the chunks of Q in shared memory; `query` and `keys`: chunk kRegisterChunks.
__device__ __forceinline__ void shared_products(uint64_t query, uint64_t keys, Scores& s) {
#pragma unroll
    for (int32_t step = 0; step < kSharedChunks * 4; ++step)
        wgmma::ss_n48(s, query + step / 4 * (kQChunkBytes >> 4) + step % 4 * 2,
                      keys + step / 4 * (kChunkBytes >> 4) + step % 4 * 2, step > 0);
}

/// S = Q K^T; calls `between` when kHandOverAfter of its products are under way.
template <class Between>
__device__ __forceinline__ void compute_scores(uint64_t query, uint64_t keys,
                                               const QueryRegisters& q, Scores& s,
                                               const Between& between) {
    wgmma::fence();
    shared_products(query, keys + kRegisterChunks * (kChunkBytes >> 4), s);
#pragma unroll
    for (int32_t step = 0; step < kRegisterChunks * 4; ++step) {
        if (step == kHandOverAfter - kSharedChunks * 4) between();
        const int32_t of_q = (step + kRegisterChunks * 4 - 4) % (kRegisterChunks * 4);
        wgmma::rs_n48(s, q[of_q], keys + of_q / 4 * (kChunkBytes >> 4) + of_q % 4 * 2, true);
    }
    wgmma::commit();
    wgmma::wait<0>();
    wgmma::touch(s);
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
