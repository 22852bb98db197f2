// Cases of rope_append, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/rope_append/rope_append.h"

namespace kd {

struct RopeAppendCase {
    const char* name;
    int64_t rows;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t rotated;
    RopePairing pairing;
    DType cache;
    uint32_t seed;
};

std::span<const RopeAppendCase> rope_append_cases();

/// |fast - exact| <= this times (|first| + |second|) of the pair; f16 cache rows may besides be one
/// step apart.
double rope_append_tolerance(const RopeAppendCase& test);
int64_t rope_append_bytes(const RopeAppendCase& test);
double rope_append_flops(const RopeAppendCase& test);

}  // namespace kd
