// topk_lse: the largest values of rows of logits, and the logarithm of the sum of all exponentials,
// which turns logits into log-probabilities.
#pragma once

#include <cstdint>

#include "backends/stream.h"

namespace kd {

/// Values that are not finite are left out, as if the row did not have them.
struct TopkLseParams {
    const float* x = nullptr;  // [rows, columns]
    int64_t rows = 0;
    int64_t columns = 0;
    int32_t k = 0;             // at most columns
    int32_t* index = nullptr;  // [rows, k] by (value descending, index ascending); -1: none is left
    float* value = nullptr;    // [rows, k] -inf where there is none
    float* lse = nullptr;      // [rows] natural; -inf where no value is finite
};

void topk_lse(const TopkLseParams& params, Stream& stream);
void topk_lse_ref(const TopkLseParams& params);

}  // namespace kd
