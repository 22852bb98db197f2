// wgmma with 16-bit operands and float accumulators: d[kFirst ...] (+)= a b, 64 rows and 16 k a
// call. Accumulator register 4 j + e of a thread: row 16 * warp + lane / 4 + 8 * (e / 2), column 8
// j + 2 * (lane % 4) + e % 2. Only for sm_90a code.
#pragma once

#include <cstdint>

namespace kd::ptx {

/// Before the first product after registers that it reads or writes were touched.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending committed groups of products of this warp are unfinished.
template <int32_t kPending = 0>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of accumulators across this point.
template <int32_t kCount>
__device__ __forceinline__ void pin_registers(float (&d)[kCount]) {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// a from registers, b from shared memory.
template <bool kF16, int32_t kMnMajor, int32_t kFirst, int32_t kCount>
__device__ __forceinline__ void wgmma_m64n64(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b,
                                             int32_t accumulate) {
    static_assert(kFirst + 32 <= kCount);
    if constexpr (kF16) {
        asm volatile(
            "{\n"
            ".reg .pred accumulate;\n"
            "setp.ne.b32 accumulate, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "{%32, %33, %34, %35}, %36, accumulate, 1, 1, %38;\n"
            "}\n"
            : "+f"(d[kFirst + 0]), "+f"(d[kFirst + 1]), "+f"(d[kFirst + 2]), "+f"(d[kFirst + 3]),
              "+f"(d[kFirst + 4]), "+f"(d[kFirst + 5]), "+f"(d[kFirst + 6]), "+f"(d[kFirst + 7]),
              "+f"(d[kFirst + 8]), "+f"(d[kFirst + 9]), "+f"(d[kFirst + 10]), "+f"(d[kFirst + 11]),
              "+f"(d[kFirst + 12]), "+f"(d[kFirst + 13]), "+f"(d[kFirst + 14]),
              "+f"(d[kFirst + 15]), "+f"(d[kFirst + 16]), "+f"(d[kFirst + 17]),
              "+f"(d[kFirst + 18]), "+f"(d[kFirst + 19]), "+f"(d[kFirst + 20]),
              "+f"(d[kFirst + 21]), "+f"(d[kFirst + 22]), "+f"(d[kFirst + 23]),
              "+f"(d[kFirst + 24]), "+f"(d[kFirst + 25]), "+f"(d[kFirst + 26]),
              "+f"(d[kFirst + 27]), "+f"(d[kFirst + 28]), "+f"(d[kFirst + 29]),
              "+f"(d[kFirst + 30]), "+f"(d[kFirst + 31])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kMnMajor));
    } else {
        asm volatile(
            "{\n"
            ".reg .pred accumulate;\n"
            "setp.ne.b32 accumulate, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "{%32, %33, %34, %35}, %36, accumulate, 1, 1, %38;\n"
            "}\n"
            : "+f"(d[kFirst + 0]), "+f"(d[kFirst + 1]), "+f"(d[kFirst + 2]), "+f"(d[kFirst + 3]),
              "+f"(d[kFirst + 4]), "+f"(d[kFirst + 5]), "+f"(d[kFirst + 6]), "+f"(d[kFirst + 7]),
              "+f"(d[kFirst + 8]), "+f"(d[kFirst + 9]), "+f"(d[kFirst + 10]), "+f"(d[kFirst + 11]),
              "+f"(d[kFirst + 12]), "+f"(d[kFirst + 13]), "+f"(d[kFirst + 14]),
              "+f"(d[kFirst + 15]), "+f"(d[kFirst + 16]), "+f"(d[kFirst + 17]),
              "+f"(d[kFirst + 18]), "+f"(d[kFirst + 19]), "+f"(d[kFirst + 20]),
              "+f"(d[kFirst + 21]), "+f"(d[kFirst + 22]), "+f"(d[kFirst + 23]),
              "+f"(d[kFirst + 24]), "+f"(d[kFirst + 25]), "+f"(d[kFirst + 26]),
              "+f"(d[kFirst + 27]), "+f"(d[kFirst + 28]), "+f"(d[kFirst + 29]),
              "+f"(d[kFirst + 30]), "+f"(d[kFirst + 31])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kMnMajor));
    }
}

/// a from registers, b from shared memory.
template <bool kF16, int32_t kMnMajor, int32_t kFirst, int32_t kCount>
__device__ __forceinline__ void wgmma_m64n128(float (&d)[kCount], const uint32_t (&a)[4],
                                              uint64_t b, int32_t accumulate) {
    static_assert(kFirst + 64 <= kCount);
    if constexpr (kF16) {
        asm volatile(
            "{\n"
            ".reg .pred accumulate;\n"
            "setp.ne.b32 accumulate, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "{%64, %65, %66, %67}, %68, accumulate, 1, 1, %70;\n"
            "}\n"
            : "+f"(d[kFirst + 0]), "+f"(d[kFirst + 1]), "+f"(d[kFirst + 2]), "+f"(d[kFirst + 3]),
              "+f"(d[kFirst + 4]), "+f"(d[kFirst + 5]), "+f"(d[kFirst + 6]), "+f"(d[kFirst + 7]),
              "+f"(d[kFirst + 8]), "+f"(d[kFirst + 9]), "+f"(d[kFirst + 10]), "+f"(d[kFirst + 11]),
              "+f"(d[kFirst + 12]), "+f"(d[kFirst + 13]), "+f"(d[kFirst + 14]),
              "+f"(d[kFirst + 15]), "+f"(d[kFirst + 16]), "+f"(d[kFirst + 17]),
              "+f"(d[kFirst + 18]), "+f"(d[kFirst + 19]), "+f"(d[kFirst + 20]),
              "+f"(d[kFirst + 21]), "+f"(d[kFirst + 22]), "+f"(d[kFirst + 23]),
              "+f"(d[kFirst + 24]), "+f"(d[kFirst + 25]), "+f"(d[kFirst + 26]),
              "+f"(d[kFirst + 27]), "+f"(d[kFirst + 28]), "+f"(d[kFirst + 29]),
              "+f"(d[kFirst + 30]), "+f"(d[kFirst + 31]), "+f"(d[kFirst + 32]),
              "+f"(d[kFirst + 33]), "+f"(d[kFirst + 34]), "+f"(d[kFirst + 35]),
              "+f"(d[kFirst + 36]), "+f"(d[kFirst + 37]), "+f"(d[kFirst + 38]),
              "+f"(d[kFirst + 39]), "+f"(d[kFirst + 40]), "+f"(d[kFirst + 41]),
              "+f"(d[kFirst + 42]), "+f"(d[kFirst + 43]), "+f"(d[kFirst + 44]),
              "+f"(d[kFirst + 45]), "+f"(d[kFirst + 46]), "+f"(d[kFirst + 47]),
              "+f"(d[kFirst + 48]), "+f"(d[kFirst + 49]), "+f"(d[kFirst + 50]),
              "+f"(d[kFirst + 51]), "+f"(d[kFirst + 52]), "+f"(d[kFirst + 53]),
              "+f"(d[kFirst + 54]), "+f"(d[kFirst + 55]), "+f"(d[kFirst + 56]),
              "+f"(d[kFirst + 57]), "+f"(d[kFirst + 58]), "+f"(d[kFirst + 59]),
              "+f"(d[kFirst + 60]), "+f"(d[kFirst + 61]), "+f"(d[kFirst + 62]), "+f"(d[kFirst + 63])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kMnMajor));
    } else {
        asm volatile(
            "{\n"
            ".reg .pred accumulate;\n"
            "setp.ne.b32 accumulate, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "{%64, %65, %66, %67}, %68, accumulate, 1, 1, %70;\n"
            "}\n"
            : "+f"(d[kFirst + 0]), "+f"(d[kFirst + 1]), "+f"(d[kFirst + 2]), "+f"(d[kFirst + 3]),
              "+f"(d[kFirst + 4]), "+f"(d[kFirst + 5]), "+f"(d[kFirst + 6]), "+f"(d[kFirst + 7]),
              "+f"(d[kFirst + 8]), "+f"(d[kFirst + 9]), "+f"(d[kFirst + 10]), "+f"(d[kFirst + 11]),
              "+f"(d[kFirst + 12]), "+f"(d[kFirst + 13]), "+f"(d[kFirst + 14]),
              "+f"(d[kFirst + 15]), "+f"(d[kFirst + 16]), "+f"(d[kFirst + 17]),
              "+f"(d[kFirst + 18]), "+f"(d[kFirst + 19]), "+f"(d[kFirst + 20]),
              "+f"(d[kFirst + 21]), "+f"(d[kFirst + 22]), "+f"(d[kFirst + 23]),
              "+f"(d[kFirst + 24]), "+f"(d[kFirst + 25]), "+f"(d[kFirst + 26]),
              "+f"(d[kFirst + 27]), "+f"(d[kFirst + 28]), "+f"(d[kFirst + 29]),
              "+f"(d[kFirst + 30]), "+f"(d[kFirst + 31]), "+f"(d[kFirst + 32]),
              "+f"(d[kFirst + 33]), "+f"(d[kFirst + 34]), "+f"(d[kFirst + 35]),
              "+f"(d[kFirst + 36]), "+f"(d[kFirst + 37]), "+f"(d[kFirst + 38]),
              "+f"(d[kFirst + 39]), "+f"(d[kFirst + 40]), "+f"(d[kFirst + 41]),
              "+f"(d[kFirst + 42]), "+f"(d[kFirst + 43]), "+f"(d[kFirst + 44]),
              "+f"(d[kFirst + 45]), "+f"(d[kFirst + 46]), "+f"(d[kFirst + 47]),
              "+f"(d[kFirst + 48]), "+f"(d[kFirst + 49]), "+f"(d[kFirst + 50]),
              "+f"(d[kFirst + 51]), "+f"(d[kFirst + 52]), "+f"(d[kFirst + 53]),
              "+f"(d[kFirst + 54]), "+f"(d[kFirst + 55]), "+f"(d[kFirst + 56]),
              "+f"(d[kFirst + 57]), "+f"(d[kFirst + 58]), "+f"(d[kFirst + 59]),
              "+f"(d[kFirst + 60]), "+f"(d[kFirst + 61]), "+f"(d[kFirst + 62]), "+f"(d[kFirst + 63])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kMnMajor));
    }
}

/// Both from shared memory, K-major.
template <bool kF16, int32_t kFirst, int32_t kCount>
__device__ __forceinline__ void wgmma_m64n64_shared(float (&d)[kCount], uint64_t a, uint64_t b,
                                                    int32_t accumulate) {
    static_assert(kFirst + 32 <= kCount);
    if constexpr (kF16) {
        asm volatile(
            "{\n"
            ".reg .pred accumulate;\n"
            "setp.ne.b32 accumulate, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "%32, %33, accumulate, 1, 1, 0, 0;\n"
            "}\n"
            : "+f"(d[kFirst + 0]), "+f"(d[kFirst + 1]), "+f"(d[kFirst + 2]), "+f"(d[kFirst + 3]),
              "+f"(d[kFirst + 4]), "+f"(d[kFirst + 5]), "+f"(d[kFirst + 6]), "+f"(d[kFirst + 7]),
              "+f"(d[kFirst + 8]), "+f"(d[kFirst + 9]), "+f"(d[kFirst + 10]), "+f"(d[kFirst + 11]),
              "+f"(d[kFirst + 12]), "+f"(d[kFirst + 13]), "+f"(d[kFirst + 14]),
              "+f"(d[kFirst + 15]), "+f"(d[kFirst + 16]), "+f"(d[kFirst + 17]),
              "+f"(d[kFirst + 18]), "+f"(d[kFirst + 19]), "+f"(d[kFirst + 20]),
              "+f"(d[kFirst + 21]), "+f"(d[kFirst + 22]), "+f"(d[kFirst + 23]),
              "+f"(d[kFirst + 24]), "+f"(d[kFirst + 25]), "+f"(d[kFirst + 26]),
              "+f"(d[kFirst + 27]), "+f"(d[kFirst + 28]), "+f"(d[kFirst + 29]),
              "+f"(d[kFirst + 30]), "+f"(d[kFirst + 31])
            : "l"(a), "l"(b), "r"(accumulate));
    } else {
        asm volatile(
            "{\n"
            ".reg .pred accumulate;\n"
            "setp.ne.b32 accumulate, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "%32, %33, accumulate, 1, 1, 0, 0;\n"
            "}\n"
            : "+f"(d[kFirst + 0]), "+f"(d[kFirst + 1]), "+f"(d[kFirst + 2]), "+f"(d[kFirst + 3]),
              "+f"(d[kFirst + 4]), "+f"(d[kFirst + 5]), "+f"(d[kFirst + 6]), "+f"(d[kFirst + 7]),
              "+f"(d[kFirst + 8]), "+f"(d[kFirst + 9]), "+f"(d[kFirst + 10]), "+f"(d[kFirst + 11]),
              "+f"(d[kFirst + 12]), "+f"(d[kFirst + 13]), "+f"(d[kFirst + 14]),
              "+f"(d[kFirst + 15]), "+f"(d[kFirst + 16]), "+f"(d[kFirst + 17]),
              "+f"(d[kFirst + 18]), "+f"(d[kFirst + 19]), "+f"(d[kFirst + 20]),
              "+f"(d[kFirst + 21]), "+f"(d[kFirst + 22]), "+f"(d[kFirst + 23]),
              "+f"(d[kFirst + 24]), "+f"(d[kFirst + 25]), "+f"(d[kFirst + 26]),
              "+f"(d[kFirst + 27]), "+f"(d[kFirst + 28]), "+f"(d[kFirst + 29]),
              "+f"(d[kFirst + 30]), "+f"(d[kFirst + 31])
            : "l"(a), "l"(b), "r"(accumulate));
    }
}

}  // namespace kd::ptx
