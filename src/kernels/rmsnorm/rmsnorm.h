// rmsnorm: root-mean-square normalisation of rows.
#pragma once

#include <cstdint>

#include "backends/stream.h"

namespace kd {

struct RmsnormParams {
    const float* x = nullptr;       // [rows, columns]
    const float* weight = nullptr;  // [columns]
    float* y = nullptr;             // [rows, columns]; may be x
    int64_t rows = 0;
    int64_t columns = 0;
    float epsilon = 0;
};

/// y = x / sqrt(mean(x^2) + epsilon) * weight, each row by itself in one fixed order.
void rmsnorm(const RmsnormParams& params, Stream& stream);
void rmsnorm_ref(const RmsnormParams& params);

}  // namespace kd
