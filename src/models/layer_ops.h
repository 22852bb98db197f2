// What the forward passes of all architectures do in the same way.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "models/model.h"

namespace kd {

/// y = W x + bias.
struct Projection {
    LinearWeights weights;
    std::vector<float> bias;  // [outputs] or empty
};

/// A matrix as it lies in the file, and its bias.
struct ProjectionView {
    WeightView weight;
    std::vector<float> bias;  // empty: none
};

/// The matrices stacked by rows, and so their biases (of all or none).
Projection stack(std::initializer_list<const ProjectionView*> parts, Stream& stream);

/// linear() of the float rows params.x in the form that the weights' kernel takes. scratch: at
/// least QuantRows::bytes(rows, inputs) where it wants them quantised; aborts for less.
void linear_of_floats(LinearParams params, std::span<std::byte> scratch, Stream& stream);

/// y = residual + W x + bias, by linear_of_floats.
struct ProjectParams {
    const Projection* projection = nullptr;
    const float* x = nullptr;  // [rows, inputs]
    int64_t rows = 0;
    const float* residual = nullptr;  // [rows, outputs] or null; may be y
    float* y = nullptr;               // [rows, outputs]
    std::span<std::byte> quantised;   // scratch
};
void project(const ProjectParams& params, Stream& stream);

/// Aborts for a batch beyond what the model was loaded for.
void check_batch(const ForwardBatch& batch, const ForwardLimits& limits, const ModelConfig& config);

/// The residual stream x [rows, hidden] behind `layer` to its places among the batch's features.
void copy_features(const ForwardBatch& batch, const ForwardLimits& limits, int32_t layer,
                   const float* x, int32_t hidden);

/// Moves the rows whose logits are wanted to the front of x [rows, hidden].
void gather_logit_rows(const ForwardBatch& batch, float* x, int32_t hidden);

}  // namespace kd
