#include "kernels/topk_lse/topk_lse_cases.h"

namespace kd {

std::span<const TopkLseCase> topk_lse_cases() {
    static constexpr TopkLseCase kCases[] = {
        {"one", 1, 1, 1, 1, false, 1},       {"all", 3, 37, 37, 4, false, 2},
        {"tiny", 4, 320, 32, 4, false, 3},   {"smol", 7, 49152, 32, 10, false, 4},
        {"ties", 5, 1000, 64, 3, true, 5},   {"wide", 2, 65537, 16, 30, false, 6},
        {"steep", 3, 2049, 8, 80, false, 7},
    };
    return kCases;
}

double topk_lse_tolerance(const TopkLseCase& test) {
    // A difference and an exponential of three units in the last place each term, at most 64
    // additions in a lane and a handful across; the result is rounded to float.
    return (test.magnitude + 80) * 0x1p-23;
}

int64_t topk_lse_bytes(const TopkLseCase& test) {
    return test.rows * (test.columns * 4 + test.k * 8 + 4);
}

double topk_lse_flops(const TopkLseCase& test) {
    return 20.0 * static_cast<double>(test.rows * test.columns);
}

}  // namespace kd
