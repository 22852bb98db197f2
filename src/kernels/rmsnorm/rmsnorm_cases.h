// Cases of rmsnorm, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <span>

namespace kd {

struct RmsnormCase {
    const char* name;
    int64_t rows;
    int64_t columns;
    uint32_t seed;
};

std::span<const RmsnormCase> rmsnorm_cases();

/// |fast - exact| <= this times |exact|.
double rmsnorm_tolerance(const RmsnormCase& test);
int64_t rmsnorm_bytes(const RmsnormCase& test);
double rmsnorm_flops(const RmsnormCase& test);

}  // namespace kd
