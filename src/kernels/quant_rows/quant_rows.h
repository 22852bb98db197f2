// quant_rows: activations as int8 in blocks of 32 columns, once per row before the linear layers
// that read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/stream.h"

namespace kd {

/// x[r, c] ~ scale[r, c / 32] * q[r, c]. `sum` holds the exact integer sum of each block's q, which
/// the linear op needs for weights with an offset; `scaled_sum` is for weights with a minimum.
struct QuantRows {
    int64_t rows = 0;
    int64_t columns = 0;          // a multiple of 32
    int8_t* q = nullptr;          // [rows, columns], in -127..127
    float* scale = nullptr;       // [rows, columns / 32]
    int32_t* sum = nullptr;       // [rows, columns / 32]
    float* scaled_sum = nullptr;  // [rows, columns / 32] scale * sum

    static size_t bytes(int64_t rows, int64_t columns);
    /// Lays the four arrays out in `memory` (64-byte aligned, at least bytes(rows, columns)).
    static QuantRows in(std::byte* memory, int64_t rows, int64_t columns);
};

struct QuantRowsParams {
    const float* x = nullptr;  // [rows, columns]
    QuantRows out;
};

/// scale = max|x| / 127 of the block, q = round to nearest even of x / scale (both divisions in
/// float); all zero where the scale is 0. A NaN or infinity in x makes the block's scale and
/// scaled_sum NaN and its q and sum 0 (it must not pass unseen).
void quant_rows(const QuantRowsParams& params, Stream& stream);
void quant_rows_ref(const QuantRowsParams& params);

}  // namespace kd
