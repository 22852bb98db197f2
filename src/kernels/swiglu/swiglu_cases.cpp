#include "kernels/swiglu/swiglu_cases.h"

namespace kd {

std::span<const SwigluCase> swiglu_cases() {
    static constexpr SwigluCase kCases[] = {
        {"one", 1, 1, 1},
        {"tail", 3, 21, 2},
        {"intermediate", 5, 1536, 3},
        {"chunk", 64, 100, 4},
    };
    return kCases;
}

double swiglu_tolerance(const SwigluCase&) {
    // The exponential is good to about 2 units in the last place (of 2^-23); addition, division
    // and product round once each.
    return 8 * 0x1p-24;
}

int64_t swiglu_bytes(const SwigluCase& test) {
    return test.rows * test.columns * 12;
}

double swiglu_flops(const SwigluCase& test) {
    return 20.0 * static_cast<double>(test.rows * test.columns);
}

}  // namespace kd
