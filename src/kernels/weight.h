// A weight matrix as it lies in a model file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace kd {

/// Row-major [rows (outputs), columns (inputs)]; rows are contiguous, bytes_of(type, columns) each,
/// and may begin at any address.
struct WeightView {
    DType type = DType::f32;
    const std::byte* data = nullptr;
    int64_t rows = 0;
    int64_t columns = 0;
    BlockScales scales;  // of f8_e4m3 and int4

    int64_t row_bytes() const { return bytes_of(type, columns); }
    const std::byte* row(int64_t r) const { return data + r * row_bytes(); }
};

/// Row `row` as floats, scales included: out [columns].
void dequantise_row(const WeightView& weights, int64_t row, float* out);

}  // namespace kd
