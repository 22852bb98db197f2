#include "kernels/weight.h"

#include <algorithm>

namespace kd {

void dequantise_row(const WeightView& weights, int64_t row, float* out) {
    dequantise(weights.type, weights.row(row), weights.columns, out);
    const BlockScales& scales = weights.scales;
    if (scales.data == nullptr) return;
    for (int64_t begin = 0; begin < weights.columns; begin += scales.block_columns) {
        const float scale = scales.at(row, begin, weights.columns);
        const int64_t end = std::min(begin + scales.block_columns, weights.columns);
        for (int64_t k = begin; k < end; ++k) out[k] *= scale;
    }
}

}  // namespace kd
