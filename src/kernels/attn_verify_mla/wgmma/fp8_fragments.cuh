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

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}
__device__ __forceinline__ float load_shared_float(uint32_t address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t* words, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t* words, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void store_matrices_transposed(uint32_t to, uint32_t m0, uint32_t m1,
                                                          uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
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
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
/// Two bf16 as f16: exact between 2^-14 and 65504, which queries and rope keys stay within.
__device__ __forceinline__ uint32_t bf16_to_f16(uint32_t pair) {
    return ptx::pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

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

/// D[64, 64] (+)= A B, A in registers, B K-major in shared memory, f16.
__device__ __forceinline__ void rs_n64_f16(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                           bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, accumulate, 1, 1, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int32_t>(accumulate)));
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
