// Operand A of the fp8 loops, from the cache's bytes. Lane l has g = l / 4 and q = l % 4; of a
// warp's 16 rows and 16 columns, word 0 of A is row g columns 2q, 2q + 1, word 1 row g + 8, word 2
// row g columns 2q + 8, 2q + 9, word 3 row g + 8 of those.
//
// K, row = key: a word that ldmatrix returns has 4 values, dimensions 4q .. 4q + 3 of a block of
// 16, taken as columns 2q, 2q + 1, 2q + 8, 2q + 9. Q is stored in the same order. V^T, row =
// dimension: ldmatrix.trans returns dimensions 2g, 2g + 1 of keys 2q, 2q + 1; row g is taken as
// dimension 2g of a block of 16, row g + 8 as dimension 2g + 1. So the results of one lane are
// neighbours in a row of O.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_config.cuh"
#include "kernels/cuda/mma.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Operands A of four products, and of two.
using FourA = uint32_t[4][4];
using TwoA = uint32_t[2][4];

/// Keeps the registers of operands that products still read from being given to anything else: to
/// be called once those products are done.
template <int32_t kCount>
__device__ __forceinline__ void hold(uint32_t (&a)[kCount][4]) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i)
        asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
