#include "kernels/rope_append/rope_append_cases.h"

namespace kd {

std::span<const RopeAppendCase> rope_append_cases() {
    using enum RopePairing;
    static constexpr RopeAppendCase kCases[] = {
        {"smol_half", 5, 9, 3, 64, 64, half, DType::f16, 1},
        {"smol_adjacent", 5, 9, 3, 64, 64, adjacent, DType::f16, 2},
        {"f32_cache", 3, 4, 4, 128, 128, half, DType::f32, 3},
        {"partial_half", 2, 2, 1, 80, 36, half, DType::f16, 4},
        {"partial_adjacent", 2, 2, 1, 80, 36, adjacent, DType::f32, 5},
        {"chunk", 64, 9, 3, 64, 64, half, DType::f16, 6},
        {"unrotated", 2, 1, 1, 8, 0, half, DType::f16, 7},
    };
    return kCases;
}

double rope_append_tolerance(const RopeAppendCase&) {
    // Two rounded products and a rounded sum.
    return 3 * 0x1p-24;
}

int64_t rope_append_bytes(const RopeAppendCase& test) {
    const int64_t q = int64_t{test.heads} * test.head_dim;
    const int64_t kv = 2 * int64_t{test.kv_heads} * test.head_dim;
    return test.rows * (8 * q + 4 * kv + bytes_of(test.cache, kv) + 4 * test.rotated);
}

double rope_append_flops(const RopeAppendCase& test) {
    return 3.0 * static_cast<double>(test.rows * (test.heads + test.kv_heads) * test.rotated);
}

}  // namespace kd
