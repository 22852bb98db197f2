// linear_heads: every head's own small matrix on its own part of a row: MLA's way into the latent
// space (queries times W_UK) and out of it (attended latents times W_UV).
#pragma once

#include <cstdint>

#include "backends/stream.h"

namespace kd {

struct LinearHeadsParams {
    int64_t rows = 0;
    int32_t heads = 0;
    int32_t outputs = 0;
    int32_t inputs = 0;
    const float* weights = nullptr;  // [heads, outputs, inputs]
    const float* x = nullptr;        // [rows, heads, x_stride], the first `inputs` of each are read
    int64_t x_stride = 0;
    float* y = nullptr;  // [rows, heads, y_stride], the first `outputs` of each are written
    int64_t y_stride = 0;
};

/// y[row, h] = weights[h] x[row, h]; products added in input order, in double.
void linear_heads(const LinearHeadsParams& params, Stream& stream);
void linear_heads_ref(const LinearHeadsParams& params);

}  // namespace kd
