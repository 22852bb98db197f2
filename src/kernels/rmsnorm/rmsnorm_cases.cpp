#include "kernels/rmsnorm/rmsnorm_cases.h"

namespace kd {

std::span<const RmsnormCase> rmsnorm_cases() {
    static constexpr RmsnormCase kCases[] = {
        {"one", 1, 1, 1},     {"tail", 3, 37, 2},       {"hidden", 8, 576, 3},
        {"wide", 2, 4096, 4}, {"odd_chunk", 65, 99, 5},
    };
    return kCases;
}

double rmsnorm_tolerance(const RmsnormCase& test) {
    // Every square is added with at most columns roundings (far fewer in lanes), halved by the
    // root; division, root and the two products add a handful.
    return (static_cast<double>(test.columns) / 2 + 6) * 0x1p-24;
}

int64_t rmsnorm_bytes(const RmsnormCase& test) {
    return test.rows * test.columns * 8 + test.columns * 4;
}

double rmsnorm_flops(const RmsnormCase& test) {
    return 4.0 * static_cast<double>(test.rows * test.columns);
}

}  // namespace kd
