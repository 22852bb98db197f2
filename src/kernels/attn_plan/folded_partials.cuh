// The partials of the bf16 MLA loop on sm_90a, stored straight from the registers of its
// accumulators, so that values lie as the threads of a quad have them (quad_values_at). In fast
// mode they are normalised bf16, as all others are.
//
// In deterministic mode the loop may fold them: where a block takes consecutive segments of the
// same rows, those of a group (kFoldedSegments) become one partial. The first is stored, the others
// are added to it where it lies; attn_combine folds segments of different blocks in the same way,
// to the same bits, so that a row does not depend on which block took what.
//
// A row's partial is the numerator of its softmax, not normalised: f16 values times a power of two,
// `exponent`, one for each 256 columns, beside the base-2 log-sum-exp. So what is added is scaled
// by a power of two, which is exact, and sums that are rounded to 11 bits twice or four times are
// still finer than the output's 8.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_plan.h"
#include "kernels/cuda/ptx.cuh"

namespace kd {

/// Of a thread of a quad: it has 2 of every 8 columns, which are 16 bytes of 32 columns of a row.
/// Index, in values, of those of columns [32 group, 32 group + 32): value i is column 32 group + i
/// / 2 * 8 + 2 quad + i % 2.
constexpr int32_t quad_values_at(int32_t row, int32_t group, int32_t quad) {
    return row * kFoldedDim + group * 32 + quad * 8;
}
/// Index of the columns `column` and the next of a row, `column` even.
constexpr int32_t quad_pair_at(int32_t row, int32_t column) {
    return quad_values_at(row, column / 32, column % 8 / 2) + column % 32 / 8 * 2;
}
/// Index of a row's exponent for columns [256 half, 256 half + 256) of partial `partial`.
constexpr int32_t folded_exponent_at(int32_t partial, int32_t half, int32_t row) {
    return (partial * kFoldedExponents + half) * kTileRows + row;
}

/// Exponent of a row that has seen no key: below all others.
inline constexpr float kNoExponent = -1e30f;

/// How a segment's values are added to those of the segments before it in its group.
struct Fold {
    bool replaces;    // those before are below 2^-15 of it: they vanish
    uint32_t factor;  // f16 x 2, what its values are multiplied with if not

    __device__ Fold(float exponent_before, float exponent) {
        constexpr float kMostShift = 15;  // values are below 1, and f16 ends at 2^16
        const float shift = exponent - exponent_before;
        replaces = shift > kMostShift;
        const float power = ptx::exp2_approx(shift);
        factor = ptx::pack_f16(power, power);
    }
    __device__ uint32_t scaled(uint32_t words) const {
        uint32_t product;
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(words), "r"(factor));
        return product;
    }
    __device__ uint32_t sum(uint32_t before, uint32_t words) const {
        uint32_t result;
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(before), "r"(scaled(words)));
        return replaces ? words : result;
    }
};

/// Log-sum-exp of two segments.
__device__ __forceinline__ float folded_lse(float before, float lse) {
    const float largest = fmaxf(before, lse);
    if (largest == __int_as_float(0xff800000)) return largest;
    return largest + __log2f(ptx::exp2_approx(before - largest) + ptx::exp2_approx(lse - largest));
}

}  // namespace kd
