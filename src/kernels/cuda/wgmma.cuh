// Warpgroup matrix products of sm_90a: D[64 rows, N] (+)= A[64, 16] B[16, N], float accumulators in
// registers, A and B in shared memory in the 128-byte-swizzled layout.
//
// Layout of an operand tile: chunks of 64 16-bit values (128 bytes), each chunk [rows][128 bytes],
// whose 16-byte unit u of row r stands at unit u ^ (r % 8); a chunk starts at a multiple of 1024
// bytes. Read along a row it is a K-major operand (Q, K, P); read down a column an MN-major one
// (V).
//
// Accumulators: thread t of the warpgroup holds rows 16 * (t / 32) + (t % 32) / 4 and that + 8;
// d[4 j + {0, 1}] are columns 8 j + 2 (t % 4) + {0, 1} of the first row, d[4 j + {2, 3}] of the
// second.
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

/// Orders register accesses before the products that follow.
__device__ __forceinline__ void fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving accesses of accumulators over a wait.
template <int kCount>
__device__ __forceinline__ void touch(float (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define KD_F8(d, i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define KD_F32(d, i) KD_F8(d, i), KD_F8(d, i + 8), KD_F8(d, i + 16), KD_F8(d, i + 24)

/// A and B K-major in shared memory, bf16; accumulate false: D = A B.
__device__ __forceinline__ void ss_n48(float (&d)[24], uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %26, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23"
        "}, %24, %25, accumulate, 1, 1, 0, 0;\n"
        "}\n"
        : KD_F8(d, 0), KD_F8(d, 8), KD_F8(d, 16)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}
/// A in registers: a[0] and a[2] are columns 2 (t % 4) + {0, 1} and that + 8 of the thread's first
/// row, a[1] and a[3] of its second. B K-major in shared memory, bf16.
__device__ __forceinline__ void rs_n48(float (&d)[24], const uint32_t (&a)[4], uint64_t b,
                                       bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %29, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23"
        "}, {%24, %25, %26, %27}, %28, accumulate, 1, 1, 0;\n"
        "}\n"
        : KD_F8(d, 0), KD_F8(d, 8), KD_F8(d, 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int32_t>(accumulate)));
}
/// A and B K-major in shared memory, f16; accumulate false: D = A B.
__device__ __forceinline__ void ss_n48_f16(float (&d)[24], uint64_t a, uint64_t b,
                                           bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %26, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23"
        "}, %24, %25, accumulate, 1, 1, 0, 0;\n"
        "}\n"
        : KD_F8(d, 0), KD_F8(d, 8), KD_F8(d, 16)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}
/// A in registers: a[0] and a[2] are columns 2 (t % 4) + {0, 1} and that + 8 of the thread's first
/// row, a[1] and a[3] of its second. B K-major in shared memory, f16.
__device__ __forceinline__ void rs_n48_f16(float (&d)[24], const uint32_t (&a)[4], uint64_t b,
                                           bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %29, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23"
        "}, {%24, %25, %26, %27}, %28, accumulate, 1, 1, 0;\n"
        "}\n"
        : KD_F8(d, 0), KD_F8(d, 8), KD_F8(d, 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
          "r"(static_cast<int32_t>(accumulate)));
}
/// A K-major, B MN-major, both in shared memory, bf16.
__device__ __forceinline__ void ss_n128_bt(float (&d)[64], uint64_t a, uint64_t b,
                                           bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, accumulate, 1, 1, 0, 1;\n"
        "}\n"
        : KD_F32(d, 0), KD_F32(d, 32)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}
/// A K-major, B MN-major, both in shared memory, f16.
__device__ __forceinline__ void ss_n128_bt_f16(float (&d)[64], uint64_t a, uint64_t b,
                                               bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred accumulate;\n"
        "setp.ne.b32 accumulate, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, accumulate, 1, 1, 0, 1;\n"
        "}\n"
        : KD_F32(d, 0), KD_F32(d, 32)
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}

#undef KD_F32
#undef KD_F8

}  // namespace kd::wgmma
