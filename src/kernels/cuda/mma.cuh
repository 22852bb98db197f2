// mma.sync m16n8k16 with 16-bit operands, ldmatrix, and what makes f16 operands of other types.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace kd::ptx {

/// Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8 and
/// gets of matrix i, in words[i] (i < 4), row l / 4, columns 2 (l % 4) and the next.
__device__ __forceinline__ void load_matrices(uint32_t* words, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}
/// Two of them; lanes 0..15 give the addresses.
__device__ __forceinline__ void load_matrix_pair(uint32_t (&words)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(address)
                 : "memory");
}
/// Four, transposed: rows 2 (l % 4) and the next, column l / 4.
__device__ __forceinline__ void load_matrices_transposed(uint32_t* words, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

/// c[4] += a b, of bf16 or f16 values in float: rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the
/// next.
template <bool kF16>
__device__ __forceinline__ void multiply_add(float* c, const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    if constexpr (kF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

/// Four e4m3 values as f16, exactly: `low` has bytes 0 and 1.
__device__ __forceinline__ void widen_e4m3(uint32_t bytes, uint32_t& low, uint32_t& high) {
    asm("{\n"
        ".reg .b16 a, b;\n"
        "mov.b32 {a, b}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n"
        "}\n"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
}
/// Four floats to e4m3, rounded to the nearest, at most 448 in magnitude; byte i is x[i].
__device__ __forceinline__ uint32_t pack_e4m3(const float (&x)[4]) {
    uint32_t word;
    asm("{\n"
        ".reg .b16 a, b;\n"
        "cvt.rn.satfinite.e4m3x2.f32 a, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 b, %4, %3;\n"
        "mov.b32 %0, {a, b};\n"
        "}\n"
        : "=r"(word)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
    return word;
}
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
/// Two f16 to e4m3, rounded to the nearest, at most 448 in magnitude.
__device__ __forceinline__ uint16_t narrow_e4m3(uint32_t pair) {
    uint16_t bytes;
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(bytes) : "r"(pair));
    return bytes;
}
/// Four f16 as the sum of two e4m3 values each, of 4 significant bits, the second times kLowScale,
/// 1 to 16: exact for a bf16 value not below 0.25 / kLowScale, else to 2^-10 / kLowScale.
/// Magnitudes are at most 448.
struct SplitE4m3 {
    uint32_t high;
    uint32_t low;

    template <int32_t kLowScale>
    __device__ __forceinline__ static SplitE4m3 of(uint32_t x01, uint32_t x23) {
        const uint32_t x[2] = {x01, x23};
        uint16_t parts[2][2];
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
            parts[0][i] = narrow_e4m3(x[i]);
            uint32_t high;
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"(parts[0][i]));
            uint32_t rest;
            asm("sub.f16x2 %0, %1, %2;" : "=r"(rest) : "r"(x[i]), "r"(high));
            if constexpr (kLowScale != 1) {
                static_assert(std::has_single_bit(uint32_t{kLowScale}) && kLowScale <= 16);
                constexpr uint32_t kF16 = 0x3c00 + (std::countr_zero(uint32_t{kLowScale}) << 10);
                rest = multiply_f16(rest, kF16 << 16 | kF16);
            }
            parts[1][i] = narrow_e4m3(rest);
        }
        return {parts[0][0] | uint32_t{parts[0][1]} << 16,
                parts[1][0] | uint32_t{parts[1][1]} << 16};
    }
};
/// Powers of two: `up` takes values of which `top` is the largest to below 256, that one to 128 or
/// more, for SplitE4m3; `down` undoes it. Both are normal floats; zeros, which need none, get one
/// that stays normal times other factors.
struct E4m3Scale {
    float up;
    float down;

    __device__ __forceinline__ explicit E4m3Scale(float top) {
        const int32_t exponent =
            top == 0 ? 127 : min(max(static_cast<int32_t>(__float_as_uint(top) >> 23), 8), 254);
        up = __uint_as_float(static_cast<uint32_t>(261 - exponent) << 23);
        // What saturates would hide that an infinity was there: the row's scores are NaN then.
        down = __uint_as_float(top < INFINITY ? static_cast<uint32_t>(exponent - 7) << 23
                                              : 0x7fc00000u);
    }
};
/// Two bf16 as f16: exact between 2^-14 and 65504.
__device__ __forceinline__ uint32_t bf16_to_f16(uint32_t pair) {
    return pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/// Transposes a 4 x 4 matrix of words over the four threads of a quad: word i of thread t becomes
/// word t of thread i.
__device__ __forceinline__ void quad_transpose(uint32_t (&w)[4], int32_t lane) {
    const bool odd = lane & 1;
    const bool high = lane & 2;
    const uint32_t a = __shfl_xor_sync(0xffffffff, odd ? w[0] : w[1], 1);
    const uint32_t b = __shfl_xor_sync(0xffffffff, odd ? w[2] : w[3], 1);
    (odd ? w[0] : w[1]) = a;
    (odd ? w[2] : w[3]) = b;
    const uint32_t c = __shfl_xor_sync(0xffffffff, high ? w[0] : w[2], 2);
    const uint32_t d = __shfl_xor_sync(0xffffffff, high ? w[1] : w[3], 2);
    (high ? w[0] : w[2]) = c;
    (high ? w[1] : w[3]) = d;
}

}  // namespace kd::ptx
