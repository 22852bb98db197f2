// Cases of swiglu, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <span>

namespace kd {

struct SwigluCase {
    const char* name;
    int64_t rows;
    int64_t columns;
    uint32_t seed;
};

std::span<const SwigluCase> swiglu_cases();

/// |fast - exact| <= this times |exact|, plus the smallest normal number times |up|.
double swiglu_tolerance(const SwigluCase& test);
int64_t swiglu_bytes(const SwigluCase& test);
double swiglu_flops(const SwigluCase& test);

}  // namespace kd
