// Where the tensors of a DeepSeek model lie in its file, and the form in which attention multiplies
// with them.
#pragma once

#include <cstdint>
#include <vector>

#include "models/layer_ops.h"
#include "models/weights.h"

namespace kd {

struct FeedForwardViews {
    ProjectionView gate, up, down;
    int32_t intermediate = 0;  // 0: none
};

/// Where the tensors of a layer lie in the file.
struct DeepseekLayerViews {
    std::vector<float> attn_norm, ffn_norm, q_a_norm, kv_a_norm, router_bias;
    ProjectionView q_a, q, kv_a, attn_output;
    WeightView kv_b;                   // [heads * (nope + value), latent], or in its place
    std::vector<WeightView> k_b, v_b;  // [heads] each [latent, nope]; each [value, latent]
    FeedForwardViews dense;            // dense layer, or shared experts
    ProjectionView router;
    std::vector<WeightView> gate_experts, up_experts, down_experts;
};

/// The tensors around the layers.
struct DeepseekOuterViews {
    WeightView embedding;
    std::vector<float> output_norm;
    ProjectionView head;
};

/// They throw, or keep as faults, what WeightReader does.
DeepseekLayerViews read_deepseek_layer(WeightReader& reader, const ModelConfig& config,
                                       int32_t layer);
DeepseekOuterViews read_deepseek_outer(WeightReader& reader, const ModelConfig& config);

/// kv_b as absorbed attention uses it.
struct AbsorbedWeights {
    std::vector<float> k_b;  // [heads, latent, nope] W_UK, transposed
    std::vector<float> v_b;  // [heads, value, latent] W_UV
};
AbsorbedWeights absorb(const DeepseekLayerViews& views, const ModelConfig& config);

}  // namespace kd
