// mma.sync m16n8k16 with 16-bit operands, ldmatrix, and what makes f16 operands of other types.
#pragma once

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
