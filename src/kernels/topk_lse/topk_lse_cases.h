// Cases of topk_lse, for tests and benchmarks. Indices and values are exact.
#pragma once

#include <cstdint>
#include <span>

namespace kd {

struct TopkLseCase {
    const char* name;
    int64_t rows;
    int64_t columns;
    int32_t k;
    float magnitude;  // of the values
    bool ties;        // values of a few levels only
    uint32_t seed;
};

std::span<const TopkLseCase> topk_lse_cases();

/// |fast - exact| <= this, of lse.
double topk_lse_tolerance(const TopkLseCase& test);
int64_t topk_lse_bytes(const TopkLseCase& test);
double topk_lse_flops(const TopkLseCase& test);

}  // namespace kd
