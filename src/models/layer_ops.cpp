#include "models/layer_ops.h"

#include <cstring>

#include "base/check.h"

namespace kd {

Projection stack(std::initializer_list<const ProjectionView*> parts, Stream& stream) {
    std::vector<WeightView> weights;
    std::vector<float> bias;
    for (const ProjectionView* part : parts) {
        weights.push_back(part->weight);
        bias.insert(bias.end(), part->bias.begin(), part->bias.end());
    }
    return {.weights = LinearWeights(weights, stream), .bias = std::move(bias)};
}

void linear_of_floats(LinearParams params, std::span<std::byte> scratch, Stream& stream) {
    QuantRows quantised;
    if (stream.kernels == Kernels::fast && params.weights->wants_quantised_rows()) {
        const int64_t columns = params.weights->columns();
        const size_t bytes = QuantRows::bytes(params.rows, columns);
        KD_CHECK(bytes <= scratch.size(), "rows [{}, {}] need {} bytes of {}", params.rows, columns,
                 bytes, scratch.size());
        quantised = QuantRows::in(scratch.data(), params.rows, columns);
        quant_rows({.x = params.x, .out = quantised}, stream);
        params.x = nullptr;
        params.quantised = &quantised;
    }
    linear(params, stream);
}

void project(const ProjectParams& params, Stream& stream) {
    const Projection& projection = *params.projection;
    linear_of_floats({.weights = &projection.weights,
                      .x = params.x,
                      .rows = params.rows,
                      .bias = projection.bias.empty() ? nullptr : projection.bias.data(),
                      .residual = params.residual,
                      .y = params.y},
                     params.quantised, stream);
}

void check_batch(const ForwardBatch& batch, const ForwardLimits& limits,
                 const ModelConfig& config) {
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    KD_CHECK(rows > 0 && rows <= limits.rows, "{} rows, limit {}", rows, limits.rows);
    KD_CHECK(batch.logits.rows >= static_cast<int64_t>(batch.logit_rows.size()) &&
                 batch.logits.stride == config.vocabulary,
             "logits [{}, {}] for {} rows of {}", batch.logits.rows, batch.logits.stride,
             batch.logit_rows.size(), config.vocabulary);
    KD_CHECK(
        batch.features.data == nullptr ||
            batch.features.columns == std::ssize(limits.feature_layers) * int64_t{config.hidden},
        "features of {} values for {} layers", batch.features.columns,
        limits.feature_layers.size());
    for (const AttnSegment& segment : batch.segments) {
        KD_CHECK(std::ssize(segment.context) + segment.rows <= limits.keys,
                 "{} rows behind {} tokens, limit {}", segment.rows, segment.context.size(),
                 limits.keys);
    }
}

void copy_features(const ForwardBatch& batch, const ForwardLimits& limits, int32_t layer,
                   const float* x, int32_t hidden) {
    if (batch.features.data == nullptr) return;
    for (size_t tap = 0; tap < limits.feature_layers.size(); ++tap) {
        if (limits.feature_layers[tap] != layer) continue;
        for (int64_t row = 0; row < std::ssize(batch.tokens); ++row) {
            std::memcpy(batch.features.row(row) + static_cast<int64_t>(tap) * hidden,
                        x + row * hidden, static_cast<size_t>(hidden) * sizeof(float));
        }
    }
}

void gather_logit_rows(const ForwardBatch& batch, float* x, int32_t hidden) {
    // logit_rows ascend, so a row moves only towards the front and the gather is safe in place.
    for (int64_t i = 0; i < std::ssize(batch.logit_rows); ++i) {
        const int64_t row = batch.logit_rows[static_cast<size_t>(i)];
        if (row == i) continue;
        std::memcpy(x + i * hidden, x + row * hidden, static_cast<size_t>(hidden) * sizeof(float));
    }
}

}  // namespace kd
