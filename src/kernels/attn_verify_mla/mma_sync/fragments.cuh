// Fragments of mma.sync m16n8k16 as this kernel uses them, and where a lane finds them. Lane l has
// g = l / 4 and q = l % 4 (PTX: groupID, threadID_in_group).
//   A, 16 rows x 16:  word 0 row g columns 2q, 2q + 1 · 1 row g + 8 · 2 row g columns 2q + 8, + 9
//                     · 3 row g + 8, likewise
//   B, 16 x 8:        word 0 rows 2q, 2q + 1 of column g · 1 rows 2q + 8, + 9
//   C, 16 rows x 8:   0, 1 row g columns 2q, 2q + 1 · 2, 3 row g + 8
//
// e4m3 caches: a word that ldmatrix returns holds 4 values instead of 2. For K (row = key) these
// are the dimensions 4q .. 4q + 3 of a block of 16, taken as k = 2q, 2q + 1, 2q + 8, 2q + 9; the
// query fragment is loaded in the same order, which leaves the dot product what it is. For V
// (transposed) they are the dimensions 2g, 2g + 1 of keys 2q, 2q + 1: one output tile of 8 columns
// takes the even dimensions of a block of 16, the next one the odd ones, so that in C the two tiles
// together give lane (g, q) the dimensions 4q .. 4q + 3.
#pragma once

#include <cstdint>

#include "kernels/attn_verify_mla/mma_sync/config.cuh"
#include "kernels/cuda/mma.cuh"

namespace kd::mla_mma {

/// Bytes from the first of 16 rows to where lane `lane` of an ldmatrix.x4 points. Words 0 and 1 of
/// the result are the first and the second 16 bytes of rows 0..7, words 2 and 3 those of rows
/// 8..15: B fragments of K, which must lie in neighbouring registers.
__host__ __device__ constexpr int32_t key_offset(int32_t lane, int32_t stride) {
    return ((lane & 7) + (lane >> 4) * 8) * stride + (lane >> 3 & 1) * 16;
}
/// Words 0 and 1 are the first 16 bytes of rows 0..7 and 8..15, words 2 and 3 the second 16 bytes:
/// A fragments of Q and P, B fragments of V (transposed).
__host__ __device__ constexpr int32_t row_offset(int32_t lane, int32_t stride) {
    return (lane & 15) * stride + (lane >> 4) * 16;
}
/// Byte of the 16-byte piece `chunk` (0..7) of row `row` in a 16-row x 128-byte area, arranged so
/// that neither pieces of one row nor one piece of eight rows meet in a bank.
__host__ __device__ constexpr int32_t staged_offset(int32_t row, int32_t chunk) {
    return row * 128 + ((chunk ^ (row & 7)) * 16);
}

// ---- results -----------------------------------------------------------------------------------

__device__ __forceinline__ void store_global(void* to, uint4 value) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}

}  // namespace kd::mla_mma
