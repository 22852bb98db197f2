#include "kernels/quant_rows/quant_rows_cases.h"

namespace kd {

std::span<const QuantRowsCase> quant_rows_cases() {
    static constexpr QuantRowsCase kCases[] = {
        {"one_block", 1, 32, 1, 1},      {"hidden", 4, 576, 3, 2},
        {"intermediate", 3, 1536, 1, 3}, {"chunk", 64, 576, 100, 4},
        {"subnormal", 2, 64, 1e-41f, 5}, {"scale_underflows", 2, 64, 1e-44f, 6},
        {"huge", 2, 96, 3e38f, 7},
    };
    return kCases;
}

int64_t quant_rows_bytes(const QuantRowsCase& test) {
    return test.rows * (test.columns * 5 + test.columns / 32 * 12);
}

double quant_rows_flops(const QuantRowsCase& test) {
    return 3.0 * static_cast<double>(test.rows * test.columns);
}

}  // namespace kd
