// Operand A of the fp8 loops, from the cache's bytes. Lane l has g = l / 4 and q = l % 4; of a
// warp's 16 rows, words 0 and 2 of A are row g, words 1 and 3 row g + 8. f16: columns 2q, 2q + 1 in
// words 0 and 1, columns 2q + 8, 2q + 9 in words 2 and 3; e4m3: columns 4q .. 4q + 3, and those
// + 16.
//
// K, row = key: what ldmatrix returns is A in e4m3. For f16 a word's 4 values, dimensions 4q ..
// 4q + 3 of a block of 16, are taken as columns 2q, 2q + 1, 2q + 8, 2q + 9; Q is stored in the same
// order. V^T, row = dimension: ldmatrix.trans returns dimensions 2g, 2g + 1 of keys 2q, 2q + 1; row
// g is taken as dimension 2g of a block of 16, row g + 8 as dimension 2g + 1. So the results of one
// lane are neighbours in a row of O. e4m3: of 16 keys, columns 2i and 2i + 1 are keys i and i + 8;
// P is stored in the same order, which is that of a lane's scores.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_config.cuh"
#include "kernels/cuda/mma.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Operands A of kProducts products, 16 columns each.
template <int32_t kProducts>
using Operands = uint32_t[kProducts][4];

/// Keeps the registers of operands that products still read from being given to anything else: to
/// be called once those products are done.
template <int32_t kProducts>
__device__ __forceinline__ void hold(Operands<kProducts>& a) {
#pragma unroll
    for (auto& of : a)
        asm volatile("" : "+r"(of[0]), "+r"(of[1]), "+r"(of[2]), "+r"(of[3])::"memory");
}

/// D[64, kCount * 2 columns] (+)= A B of f16, 16 deep, B K-major.
template <int32_t kCount>
__device__ __forceinline__ void multiply_f16(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b,
                                             bool accumulate) {
    if constexpr (kCount == 4) {
        wgmma::rs_n8<true>(d, a, b, accumulate);
    } else if constexpr (kCount == 8) {
        wgmma::rs_n16<true>(d, a, b, accumulate);
    } else if constexpr (kCount == 16) {
        wgmma::rs_n32<true>(d, a, b, accumulate);
    } else {
        wgmma::rs_n64<true>(d, a, b, accumulate);
    }
}
/// The same of e4m3, 32 deep.
template <int32_t kCount>
__device__ __forceinline__ void multiply_e4m3(float (&d)[kCount], const uint32_t (&a)[4],
                                              uint64_t b, bool accumulate) {
    if constexpr (kCount == 8) {
        wgmma::rs_n16_e4m3(d, a, b, accumulate);
    } else if constexpr (kCount == 16) {
        wgmma::rs_n32_e4m3(d, a, b, accumulate);
    } else {
        wgmma::rs_n64_e4m3(d, a, b, accumulate);
    }
}

/// Operands K of 16 kProducts dimensions, a turn, as f16, and the words they are made of.
template <kdt_kv_format kFormat, int32_t kProducts>
struct KeyOperands {
    using Row = Fp8Row<kFormat>;
    static constexpr int32_t kDims = 16 * kProducts;
    static constexpr int32_t kTurns = kMlaHeadDim / kDims;
    using Words = uint32_t[Row::kScaled ? 4 * kProducts : 2 * kProducts];

    __device__ __forceinline__ static bool bf16(int32_t turn) {
        return Row::kScaled && turn * kDims >= kMlaLatent;
    }
    /// `from`: where this lane points in its warp's 16 rows.
    __device__ __forceinline__ static void read(uint32_t from, int32_t turn, Words& words) {
        if (bf16(turn)) {
            const uint32_t rope = from + Row::kRope + (turn * kDims - kMlaLatent) * 2;
#pragma unroll
            for (int32_t i = 0; i < kProducts; ++i)
                ptx::load_matrices(words + 4 * i, rope + 32 * i);
        } else {
#pragma unroll
            for (int32_t i = 0; i < kProducts / 2; ++i)
                ptx::load_matrices(words + 4 * i, from + turn * kDims + 32 * i);
        }
    }
    /// `scales`: f16 pairs, of keys g and g + 8.
    __device__ __forceinline__ static void make(const Words& words, int32_t turn,
                                                const uint32_t (&scales)[2],
                                                Operands<kProducts>& a) {
#pragma unroll
        for (int32_t step = 0; step < kProducts; ++step) {
            if (bf16(turn)) {
                const uint32_t* const four = words + 4 * step;
#pragma unroll
                for (int32_t i = 0; i < 4; ++i) a[step][i] = ptx::bf16_to_f16(four[i]);
                continue;
            }
            const uint32_t* const pair = words + 2 * step;
            ptx::widen_e4m3(pair[0], a[step][0], a[step][2]);
            ptx::widen_e4m3(pair[1], a[step][1], a[step][3]);
            if constexpr (Row::kScaled) {
#pragma unroll
                for (int32_t i = 0; i < 4; ++i)
                    a[step][i] = ptx::multiply_f16(a[step][i], scales[i % 2]);
            }
        }
    }
};

/// Operand V^T of 16 dimensions a warp and 32 keys, e4m3, in place of the words of ldmatrix.trans.
__device__ __forceinline__ void value_operand(uint32_t (&a)[4]) {
#pragma unroll
    for (int32_t i = 0; i < 4; i += 2) {
        const uint32_t even = __byte_perm(a[i], a[i + 1], 0x6240);
        a[i + 1] = __byte_perm(a[i], a[i + 1], 0x7351);
        a[i] = even;
    }
}

/// Operands V^T of 16 dimensions a warp and 16 kProducts keys as f16, from the words of
/// ldmatrix.trans. `scales`: f16 pairs, of keys 8 i + 2 q + {0, 1}.
template <kdt_kv_format kFormat, int32_t kProducts>
__device__ __forceinline__ void value_operands_f16(const uint32_t (&words)[2 * kProducts],
                                                   const uint32_t (&scales)[2 * kProducts],
                                                   Operands<kProducts>& a) {
#pragma unroll
    for (int32_t i = 0; i < 2 * kProducts; ++i) {
        uint32_t& even = a[i / 2][i % 2 * 2];
        uint32_t& odd = a[i / 2][i % 2 * 2 + 1];
        // key 2q dimensions 2g, 2g + 1, key 2q + 1 likewise -> by dimension
        ptx::widen_e4m3(__byte_perm(words[i], 0, 0x3120), even, odd);
        if constexpr (Fp8Row<kFormat>::kScaled) {
            even = ptx::multiply_f16(even, scales[i]);
            odd = ptx::multiply_f16(odd, scales[i]);
        }
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
