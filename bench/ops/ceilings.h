// What this machine can do at most, measured with the instructions that the fast kernels use.
#pragma once

#include "backends/cpu/threads.h"
#include "kernels/simd/memory_read.h"

namespace kd {

/// All threads together; the best of several runs, because a ceiling is what is possible.
struct Ceilings {
    double read_gb_s = 0;   // reading 256 MB, more than any cache here
    double fp32_gop_s = 0;  // fused multiply-adds in registers; one is two operations
    double int8_gop_s = 0;  // int8 products and their sums; a product and its addition are two
};

Ceilings measure_ceilings(ThreadPool& threads);

}  // namespace kd
