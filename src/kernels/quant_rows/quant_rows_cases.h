// Cases of quant_rows, for tests and benchmarks. Fast and reference agree to the bit.
#pragma once

#include <cstdint>
#include <span>

namespace kd {

struct QuantRowsCase {
    const char* name;
    int64_t rows;
    int64_t columns;
    float magnitude;
    uint32_t seed;
};

std::span<const QuantRowsCase> quant_rows_cases();

int64_t quant_rows_bytes(const QuantRowsCase& test);
double quant_rows_flops(const QuantRowsCase& test);

}  // namespace kd
