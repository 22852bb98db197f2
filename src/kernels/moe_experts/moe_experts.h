// moe_experts: the routed experts' feed-forward layers, each row through its own.
//
// A row's result is a function of its own values, ids and weights: every sum runs in one fixed
// order, whatever the number of rows and threads.
#pragma once

#include <cstdint>
#include <span>

#include "backends/stream.h"
#include "kernels/weight.h"

namespace kd {

struct MoeExpertsParams {
    int64_t rows = 0;
    int64_t hidden = 0;
    int64_t intermediate = 0;
    int32_t used = 0;                  // experts of a row
    std::span<const WeightView> gate;  // [experts] each [intermediate, hidden], any type
    std::span<const WeightView> up;    // [experts] each [intermediate, hidden]
    std::span<const WeightView> down;  // [experts] each [hidden, intermediate]
    const float* x = nullptr;          // [rows, hidden]
    const int32_t* ids = nullptr;      // [rows, used]
    const float* weights = nullptr;    // [rows, used]
    const float* residual = nullptr;   // [rows, hidden] added to the result, or null; may be y
    float* y = nullptr;                // [rows, hidden]
    float* activated = nullptr;        // [rows, used, intermediate] scratch
};

/// y = residual + sum over k of weights[k] * down(silu(gate x) * up x) of expert ids[k], k rising.
/// Weights are dequantised row by row; products accumulate in double.
void moe_experts(const MoeExpertsParams& params, Stream& stream);
void moe_experts_ref(const MoeExpertsParams& params);

}  // namespace kd
