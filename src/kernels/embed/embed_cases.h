// Cases of embed, for tests and benchmarks. The result is exact.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace kd {

struct EmbedCase {
    const char* name;
    DType type;
    int64_t vocabulary;
    int64_t hidden;
    int64_t rows;
    uint32_t seed;
};

std::span<const EmbedCase> embed_cases();

int64_t embed_bytes(const EmbedCase& test);
double embed_flops(const EmbedCase& test);

}  // namespace kd
