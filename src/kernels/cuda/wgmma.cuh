// Warpgroup matrix products of sm_90a: D[64 rows, N] (+)= A[64, 16] B[16, N], 16-bit operands,
// float accumulators in registers, B in shared memory in the 128-byte-swizzled layout, A likewise
// (ss_) or in registers (rs_). Operands are K-major; _bt: B MN-major.
//
// Layout of an operand tile: chunks of 64 16-bit values (128 bytes), each chunk [rows][128 bytes],
// whose 16-byte unit u of row r stands at unit u ^ (r % 8); a chunk starts at a multiple of 1024
// bytes. Read along a row it is a K-major operand (Q, K, P); read down a column an MN-major one
// (V).
//
// Accumulators: thread t of the warpgroup holds rows 16 * (t / 32) + (t % 32) / 4 and that + 8;
// d[4 j + {0, 1}] are columns 8 j + 2 (t % 4) + {0, 1} of the first row, d[4 j + {2, 3}] of the
// second. A in registers: a[0] and a[2] are columns 2 (t % 4) + {0, 1} and that + 8 of the thread's
// first row, a[1] and a[3] of its second.
#pragma once

#include <cstdint>

namespace kd::wgmma {

/// Matrix descriptor of a K-major operand that starts at shared-memory address `address`. The next
/// 16 values of K are 32 bytes, that is 2 units of the descriptor, further.
__device__ __forceinline__ uint64_t k_major(uint32_t address) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
    return kSwizzle128 | kEightRows | (uint64_t{1} << 16) | ((address & 0x3ffff) >> 4);
}
/// Matrix descriptor of an MN-major operand: 64 columns a chunk, chunks `chunk_bytes` apart. The
/// next 16 rows of K are 2048 bytes, that is 128 units, further.
__device__ __forceinline__ uint64_t mn_major(uint32_t address, uint32_t chunk_bytes) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
    return kSwizzle128 | kEightRows | (uint64_t{chunk_bytes >> 4} << 16) |
           ((address & 0x3ffff) >> 4);
}

/// The same in rows of 64 bytes, which swizzle by 16-byte units within pairs of rows: unit u of row
/// r stands at unit u ^ (r / 2 % 4); starts at a multiple of 512 bytes.
__device__ __forceinline__ uint64_t k_major_64(uint32_t address) {
    constexpr uint64_t kSwizzle64 = uint64_t{2} << 62;
    constexpr uint64_t kEightRows = uint64_t{512 >> 4} << 32;
    return kSwizzle64 | kEightRows | (uint64_t{1} << 16) | ((address & 0x3ffff) >> 4);
}

/// Orders register accesses before the products that follow: needed before the first product after
/// registers that it reads or writes were touched.
__device__ __forceinline__ void fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending committed groups of this warp are unfinished.
template <int32_t kPending>
__device__ __forceinline__ void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving accesses of accumulators over a wait.
template <int32_t kCount>
__device__ __forceinline__ void touch(float (&d)[kCount]) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// The operand type of a product as its instruction spells it.
template <bool kF16>
struct OperandType {
    static constexpr char kName[] = "bf16";
};
template <>
struct OperandType<true> {
    static constexpr char kName[] = "f16";
};

// Accumulators as operands of an asm statement, d[i ...], and as its text names them.
#define KD_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KD_F8(d, i) KD_F4(d, i), KD_F4(d, i + 4)
#define KD_F16(d, i) KD_F8(d, i), KD_F8(d, i + 8)
#define KD_F24(d, i) KD_F16(d, i), KD_F8(d, i + 16)
#define KD_F32(d, i) KD_F24(d, i), KD_F8(d, i + 24)
#define KD_F64(d, i) KD_F32(d, i), KD_F32(d, i + 32)
#define KD_A4(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define KD_D4 "%0, %1, %2, %3"
#define KD_D8 KD_D4 ", %4, %5, %6, %7"
#define KD_D16 KD_D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define KD_D24 KD_D16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define KD_D32 KD_D24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define KD_D64                                                                           \
    KD_D32                                                                               \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// D[64, n] (+)= A B; `a_b` names the two operands, `accumulate` the flag, `major` says which of
// those in shared memory are MN-major.
#define KD_PRODUCT(n, type, d, a_b, accumulate, major)                                   \
    "{ .reg .pred accumulate; setp.ne.b32 accumulate, " accumulate                       \
    ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" d "}, " a_b \
    ", accumulate, 1, 1, " major "; }"

// accumulate false: D = A B. The first three are of bf16, the others of either type.

__device__ __forceinline__ void ss_n48(float (&d)[24], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(KD_PRODUCT("48", "bf16", KD_D24, "%24, %25", "%26", "0, 0")
                 : KD_F24(d, 0)
                 : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}
__device__ __forceinline__ void rs_n48(float (&d)[24], const uint32_t (&a)[4], uint64_t b,
                                       bool accumulate) {
    asm volatile(KD_PRODUCT("48", "bf16", KD_D24, "{%24, %25, %26, %27}, %28", "%29", "0")
                 : KD_F24(d, 0)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}
__device__ __forceinline__ void ss_n128_bt(float (&d)[64], uint64_t a, uint64_t b,
                                           bool accumulate) {
    asm volatile(KD_PRODUCT("128", "bf16", KD_D64, "%64, %65", "%66", "0, 1")
                 : KD_F64(d, 0)
                 : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}

template <bool kF16>
__device__ __forceinline__ void ss_n64(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(KD_PRODUCT("64", "%35", KD_D32, "%32, %33", "%34", "0, 0")
                 : KD_F32(d, 0)
                 : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)),
                   "C"(OperandType<kF16>::kName));
}
template <bool kF16>
__device__ __forceinline__ void rs_n8(float (&d)[4], const uint32_t (&a)[4], uint64_t b,
                                      bool accumulate) {
    asm volatile(KD_PRODUCT("8", "%10", KD_D4, "{%4, %5, %6, %7}, %8", "%9", "0")
                 : KD_F4(d, 0)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)),
                   "C"(OperandType<kF16>::kName));
}
template <bool kF16>
__device__ __forceinline__ void rs_n16(float (&d)[8], const uint32_t (&a)[4], uint64_t b,
                                       bool accumulate) {
    asm volatile(KD_PRODUCT("16", "%14", KD_D8, "{%8, %9, %10, %11}, %12", "%13", "0")
                 : KD_F8(d, 0)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)),
                   "C"(OperandType<kF16>::kName));
}
template <bool kF16>
__device__ __forceinline__ void rs_n32(float (&d)[16], const uint32_t (&a)[4], uint64_t b,
                                       bool accumulate) {
    asm volatile(KD_PRODUCT("32", "%22", KD_D16, "{%16, %17, %18, %19}, %20", "%21", "0")
                 : KD_F16(d, 0)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)),
                   "C"(OperandType<kF16>::kName));
}
/// kMnMajor 1: B is MN-major.
template <bool kF16, int32_t kMnMajor = 0>
__device__ __forceinline__ void rs_n64(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                       bool accumulate) {
    asm volatile(KD_PRODUCT("64", "%39", KD_D32, "{%32, %33, %34, %35}, %36", "%37", "%38")
                 : KD_F32(d, 0)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)), "n"(kMnMajor),
                   "C"(OperandType<kF16>::kName));
}
/// D is d[kFirst ... kFirst + 63].
template <bool kF16, int32_t kFirst, int32_t kCount>
__device__ __forceinline__ void rs_n128_bt(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b,
                                           bool accumulate) {
    static_assert(kFirst + 64 <= kCount);
    asm volatile(KD_PRODUCT("128", "%70", KD_D64, "{%64, %65, %66, %67}, %68", "%69", "1")
                 : KD_F64(d, kFirst)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)),
                   "C"(OperandType<kF16>::kName));
}

// Of e4m3 values, 32 deep: a[0] and a[2] are columns 4 (t % 4) + {0 .. 3} and that + 16 of the
// thread's first row, a[1] and a[3] of its second. Sums keep about 13 fraction bits.
#define KD_PRODUCT_E4M3(n, d, a_b, accumulate)                                   \
    "{ .reg .pred accumulate; setp.ne.b32 accumulate, " accumulate               \
    ", 0; wgmma.mma_async.sync.aligned.m64n" n "k32.f32.e4m3.e4m3 {" d "}, " a_b \
    ", accumulate, 1, 1; }"

__device__ __forceinline__ void rs_n16_e4m3(float (&d)[8], const uint32_t (&a)[4], uint64_t b,
                                            bool accumulate) {
    asm volatile(KD_PRODUCT_E4M3("16", KD_D8, "{%8, %9, %10, %11}, %12", "%13")
                 : KD_F8(d, 0)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}
__device__ __forceinline__ void rs_n32_e4m3(float (&d)[16], const uint32_t (&a)[4], uint64_t b,
                                            bool accumulate) {
    asm volatile(KD_PRODUCT_E4M3("32", KD_D16, "{%16, %17, %18, %19}, %20", "%21")
                 : KD_F16(d, 0)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}
__device__ __forceinline__ void rs_n64_e4m3(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                            bool accumulate) {
    asm volatile(KD_PRODUCT_E4M3("64", KD_D32, "{%32, %33, %34, %35}, %36", "%37")
                 : KD_F32(d, 0)
                 : KD_A4(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}

#undef KD_PRODUCT_E4M3
#undef KD_PRODUCT
#undef KD_D64
#undef KD_D32
#undef KD_D24
#undef KD_D16
#undef KD_D8
#undef KD_D4
#undef KD_A4
#undef KD_F64
#undef KD_F32
#undef KD_F24
#undef KD_F16
#undef KD_F8
#undef KD_F4

}  // namespace kd::wgmma
