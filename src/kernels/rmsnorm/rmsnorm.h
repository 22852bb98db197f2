// rmsnorm: root-mean-square normalisation of rows.
#pragma once

#include <cstdint>

#include "backends/stream.h"

namespace kd {

/// A row holds `groups` vectors of `columns` values one after the other (the heads of Q, for
/// example), and begins `stride` values behind the one before it, in x and y alike.
struct RmsnormParams {
    const float* x = nullptr;       // [rows, groups, columns]
    const float* weight = nullptr;  // [columns]
    float* y = nullptr;             // [rows, groups, columns]; may be x
    int64_t rows = 0;
    int64_t groups = 1;
    int64_t columns = 0;
    int64_t stride = 0;  // 0: groups * columns
    float epsilon = 0;

    int64_t vectors() const { return rows * groups; }
    /// Where vector v begins.
    int64_t offset(int64_t v) const {
        const int64_t row_stride = stride > 0 ? stride : groups * columns;
        return v / groups * row_stride + v % groups * columns;
    }
};

/// y = x / sqrt(mean(x^2) + epsilon) * weight, each vector by itself in one fixed order.
void rmsnorm(const RmsnormParams& params, Stream& stream);
void rmsnorm_ref(const RmsnormParams& params);

}  // namespace kd
