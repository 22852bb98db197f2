// DeepSeek-V2, DeepSeek-V3 and Kimi-K2: multi-head latent attention (MLA) and mixture of experts. A
// flat list of ops a layer.
//
// Attention runs absorbed (DeepSeek-V2, section 2.1): W_UK, which makes a head's key of a latent,
// is applied to the query in place of every key, and W_UV to the weighted sum of latents in place
// of every value. So the cache holds one row a token: the latent and the rotated key that all heads
// share.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/cpu/lazy_array.h"
#include "kernels/attn_verify_mla/attn_verify_mla_cpu.h"
#include "kernels/embed/embed.h"
#include "kernels/linear_heads/linear_heads.h"
#include "kernels/mla_append/mla_append.h"
#include "kernels/moe_experts/moe_experts.h"
#include "kernels/moe_route/moe_route.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/swiglu/swiglu.h"
#include "models/architectures.h"
#include "models/deepseek_weights.h"
#include "models/layer_ops.h"
#include "models/rope.h"

namespace kd {

namespace {

/// Of the latents' own norms: all published code has it fixed, whatever the other norms use.
constexpr float kLatentNormEpsilon = 1e-6f;

/// A feed-forward layer that every row runs through: a dense one, or the shared experts.
struct FeedForward {
    Projection gate_up;        // hidden -> 2 * intermediate
    Projection down;           // intermediate -> hidden
    int32_t intermediate = 0;  // 0: none
};

struct Layer {
    std::vector<float> attn_norm;     // [hidden]
    std::vector<float> ffn_norm;      // [hidden]
    std::unique_ptr<Projection> q_a;  // hidden -> q_lora; null: Q is one projection
    std::vector<float> q_a_norm;      // [q_lora]
    Projection q;                     // q_lora or hidden -> heads * (nope + rope)
    Projection kv_a;                  // hidden -> latent + rope
    std::vector<float> kv_a_norm;     // [latent]
    AbsorbedWeights absorbed;
    Projection attn_output;  // heads * value -> hidden

    std::unique_ptr<FeedForward> dense;  // dense layer, or shared experts; null: none
    std::unique_ptr<Projection> router;  // hidden -> experts; null: a dense layer
    std::vector<float> router_bias;      // [experts] or empty
    std::vector<WeightView> gate_experts, up_experts, down_experts;  // [experts]
};

/// Inputs of the widest projection.
int64_t widest_input(const ModelConfig& c) {
    return std::max({int64_t{c.hidden}, int64_t{c.mla.q_lora}, int64_t{c.heads} * c.mla.value,
                     int64_t{c.intermediate}, int64_t{c.moe.shared} * c.moe.intermediate});
}

/// Memory of intermediate values, sized once. Pages are touched only as far as batches reach.
struct Workspace {
    Workspace(const ModelConfig& c, int64_t rows)
        : x(rows * c.hidden),
          normed(rows * c.hidden),
          q_a(rows * c.mla.q_lora),
          q(rows * c.heads * c.head_dim),
          kv_a(rows * (c.mla.kv_lora + c.mla.rope)),
          q_latent(rows * c.heads * (c.mla.kv_lora + c.mla.rope)),
          attended(rows * c.heads * c.mla.kv_lora),
          values(rows * c.heads * c.mla.value),
          gate_up(rows * 2 * widest_input(c)),
          activated(rows * widest_input(c)),
          router(rows * c.moe.experts),
          expert_ids(rows * c.moe.used),
          expert_weights(rows * c.moe.used),
          expert_activated(rows * c.moe.used * c.moe.intermediate),
          angles(rows * c.rope_dim),
          quantised(QuantRows::bytes(rows, widest_input(c))) {}

    LazyArray<float> x;                 // [rows, hidden] residual stream
    LazyArray<float> normed;            // [rows, hidden]
    LazyArray<float> q_a;               // [rows, q_lora]
    LazyArray<float> q;                 // [rows, heads, nope + rope]
    LazyArray<float> kv_a;              // [rows, latent + rope]
    LazyArray<float> q_latent;          // [rows, heads, latent + rope]
    LazyArray<float> attended;          // [rows, heads, latent]
    LazyArray<float> values;            // [rows, heads, value]
    LazyArray<float> gate_up;           // [rows, 2 * intermediate]
    LazyArray<float> activated;         // [rows, intermediate]
    LazyArray<float> router;            // [rows, experts]
    LazyArray<int32_t> expert_ids;      // [rows, used]
    LazyArray<float> expert_weights;    // [rows, used]
    LazyArray<float> expert_activated;  // [rows, used, expert intermediate]
    LazyArray<float> angles;            // [rows, rope / 2, 2]
    LazyArray<std::byte> quantised;
};

class DeepseekMlaMoe final : public Model {
  public:
    DeepseekMlaMoe(const ModelFile& file, const ModelConfig& model_config,
                   const ForwardLimits& limits, Stream& stream);
    void forward(const ForwardBatch& batch, Stream& stream) override;

  private:
    void norm(const std::vector<float>& weight, int64_t rows, Stream& stream);
    void latent_norm(const std::vector<float>& weight, float* x, int64_t stride, int64_t rows,
                     Stream& stream) const;
    void project(const Projection& projection, const float* x, int64_t rows, const float* residual,
                 float* y, Stream& stream);
    void queries(const Layer& layer, int64_t rows, Stream& stream);
    void attention(const ForwardBatch& batch, const Layer& layer, int32_t index, Stream& stream);
    void experts(const Layer& layer, int64_t rows, Stream& stream);
    void feed_forward(const Layer& layer, int64_t rows, Stream& stream);
    void head(const ForwardBatch& batch, Stream& stream);

    ForwardLimits limits_;
    float attention_scale_ = 0;
    std::vector<float> output_norm_;
    std::vector<Layer> layers_;
    std::unique_ptr<Projection> output_;
    RopeTable rope_;
    Workspace workspace_;
};

Layer make_layer(DeepseekLayerViews views, const ModelConfig& c, Stream& stream) {
    Layer layer = {.attn_norm = std::move(views.attn_norm),
                   .ffn_norm = std::move(views.ffn_norm),
                   .q_a_norm = std::move(views.q_a_norm),
                   .q = stack({&views.q}, stream),
                   .kv_a = stack({&views.kv_a}, stream),
                   .kv_a_norm = std::move(views.kv_a_norm),
                   .attn_output = stack({&views.attn_output}, stream),
                   .router_bias = std::move(views.router_bias),
                   .gate_experts = std::move(views.gate_experts),
                   .up_experts = std::move(views.up_experts),
                   .down_experts = std::move(views.down_experts)};
    layer.absorbed = absorb(views, c);
    if (c.mla.q_lora > 0) layer.q_a = std::make_unique<Projection>(stack({&views.q_a}, stream));
    if (views.router.weight.data != nullptr) {
        layer.router = std::make_unique<Projection>(stack({&views.router}, stream));
    }
    if (const FeedForwardViews& dense = views.dense; dense.intermediate > 0) {
        layer.dense = std::make_unique<FeedForward>(
            FeedForward{.gate_up = stack({&dense.gate, &dense.up}, stream),
                        .down = stack({&dense.down}, stream),
                        .intermediate = dense.intermediate});
    }
    return layer;
}

/// Scores are divided by the root of a head's elements; what yarn does to the magnitude of K and Q
/// by mscale_all_dim stands here, squared.
float attention_scale(const ModelConfig& c) {
    const RopeScaling& scaling = c.rope_scaling;
    double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    if (scaling.type == RopeScalingType::yarn && scaling.mscale_all_dim != 0) {
        const double mscale = yarn_mscale(scaling.factor, scaling.mscale_all_dim);
        scale *= mscale * mscale;
    }
    return static_cast<float>(scale);
}

DeepseekMlaMoe::DeepseekMlaMoe(const ModelFile& file, const ModelConfig& model_config,
                               const ForwardLimits& limits, Stream& stream)
    : Model(model_config),
      limits_(limits),
      attention_scale_(attention_scale(config)),
      rope_(rope_table(config)),
      workspace_(config, limits.rows) {
    WeightReader reader(file);
    DeepseekOuterViews outer = read_deepseek_outer(reader, config);
    output_norm_ = std::move(outer.output_norm);
    for (int32_t i = 0; i < config.layers; ++i) {
        layers_.push_back(make_layer(read_deepseek_layer(reader, config, i), config, stream));
    }
    output_ = std::make_unique<Projection>(stack({&outer.head}, stream));
    shared_ = {.embedding = outer.embedding, .head = &output_->weights};
    reader.skip_layers(config.layers, config.mtp_layers);
    reader.expect_all_taken(config.architecture);
    if (stream.kernels == Kernels::fast) file.release();
}

void DeepseekMlaMoe::norm(const std::vector<float>& weight, int64_t rows, Stream& stream) {
    rmsnorm({.x = workspace_.x.data(),
             .weight = weight.data(),
             .y = workspace_.normed.data(),
             .rows = rows,
             .columns = config.hidden,
             .epsilon = static_cast<float>(config.norm_epsilon)},
            stream);
}

/// Of the first values of each row, in place.
void DeepseekMlaMoe::latent_norm(const std::vector<float>& weight, float* x, int64_t stride,
                                 int64_t rows, Stream& stream) const {
    rmsnorm({.x = x,
             .weight = weight.data(),
             .y = x,
             .rows = rows,
             .columns = std::ssize(weight),
             .stride = stride,
             .epsilon = kLatentNormEpsilon},
            stream);
}

void DeepseekMlaMoe::project(const Projection& projection, const float* x, int64_t rows,
                             const float* residual, float* y, Stream& stream) {
    kd::project({.projection = &projection,
                 .x = x,
                 .rows = rows,
                 .residual = residual,
                 .y = y,
                 .quantised = workspace_.quantised.span()},
                stream);
}

void DeepseekMlaMoe::queries(const Layer& layer, int64_t rows, Stream& stream) {
    Workspace& w = workspace_;
    if (layer.q_a == nullptr) {
        project(layer.q, w.normed.data(), rows, nullptr, w.q.data(), stream);
    } else {
        project(*layer.q_a, w.normed.data(), rows, nullptr, w.q_a.data(), stream);
        latent_norm(layer.q_a_norm, w.q_a.data(), config.mla.q_lora, rows, stream);
        project(layer.q, w.q_a.data(), rows, nullptr, w.q.data(), stream);
    }
    linear_heads({.rows = rows,
                  .heads = config.heads,
                  .outputs = config.mla.kv_lora,
                  .inputs = config.mla.nope,
                  .weights = layer.absorbed.k_b.data(),
                  .x = w.q.data(),
                  .x_stride = config.head_dim,
                  .y = w.q_latent.data(),
                  .y_stride = config.mla.kv_lora + config.mla.rope},
                 stream);
}

void DeepseekMlaMoe::attention(const ForwardBatch& batch, const Layer& layer, int32_t index,
                               Stream& stream) {
    const MlaShape& mla = config.mla;
    Workspace& w = workspace_;
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    norm(layer.attn_norm, rows, stream);
    queries(layer, rows, stream);
    project(layer.kv_a, w.normed.data(), rows, nullptr, w.kv_a.data(), stream);
    latent_norm(layer.kv_a_norm, w.kv_a.data(), mla.kv_lora + mla.rope, rows, stream);
    mla_append({.rows = rows,
                .heads = config.heads,
                .latent = mla.kv_lora,
                .rope = mla.rope,
                .pairing = config.rope_pairing,
                .q = w.q.data(),
                .q_stride = config.head_dim,
                .q_latent = w.q_latent.data(),
                .kv = w.kv_a.data(),
                .angles = w.angles.data(),
                .slots = batch.slots,
                .cache = batch.kv,
                .layer = index},
               stream);
    attn_verify_mla_cpu({.heads = config.heads,
                         .latent = mla.kv_lora,
                         .rope = mla.rope,
                         .scale = attention_scale_,
                         .q = w.q_latent.data(),
                         .out = w.attended.data(),
                         .segments = batch.segments,
                         .kv = batch.kv,
                         .layer = index},
                        stream);
    linear_heads({.rows = rows,
                  .heads = config.heads,
                  .outputs = mla.value,
                  .inputs = mla.kv_lora,
                  .weights = layer.absorbed.v_b.data(),
                  .x = w.attended.data(),
                  .x_stride = mla.kv_lora,
                  .y = w.values.data(),
                  .y_stride = mla.value},
                 stream);
    project(layer.attn_output, w.values.data(), rows, w.x.data(), w.x.data(), stream);
}

/// The routed experts: x += their weighted sum.
void DeepseekMlaMoe::experts(const Layer& layer, int64_t rows, Stream& stream) {
    const MoeShape& moe = config.moe;
    Workspace& w = workspace_;
    project(*layer.router, w.normed.data(), rows, nullptr, w.router.data(), stream);
    moe_route({.rows = rows,
               .experts = moe.experts,
               .used = moe.used,
               .groups = moe.groups,
               .groups_used = moe.groups_used,
               .scoring = moe.scoring,
               .normalise = moe.normalise,
               .scale = static_cast<float>(moe.scale),
               .logits = w.router.data(),
               .bias = layer.router_bias.empty() ? nullptr : layer.router_bias.data(),
               .ids = w.expert_ids.data(),
               .weights = w.expert_weights.data()},
              stream);
    moe_experts({.rows = rows,
                 .hidden = config.hidden,
                 .intermediate = moe.intermediate,
                 .used = moe.used,
                 .gate = layer.gate_experts,
                 .up = layer.up_experts,
                 .down = layer.down_experts,
                 .x = w.normed.data(),
                 .ids = w.expert_ids.data(),
                 .weights = w.expert_weights.data(),
                 .residual = w.x.data(),
                 .y = w.x.data(),
                 .activated = w.expert_activated.data()},
                stream);
}

void DeepseekMlaMoe::feed_forward(const Layer& layer, int64_t rows, Stream& stream) {
    Workspace& w = workspace_;
    norm(layer.ffn_norm, rows, stream);
    if (layer.router != nullptr) experts(layer, rows, stream);
    if (layer.dense == nullptr) return;
    const FeedForward& dense = *layer.dense;
    project(dense.gate_up, w.normed.data(), rows, nullptr, w.gate_up.data(), stream);
    swiglu({.gate_up = w.gate_up.data(),
            .y = w.activated.data(),
            .rows = rows,
            .columns = dense.intermediate},
           stream);
    project(dense.down, w.activated.data(), rows, w.x.data(), w.x.data(), stream);
}

/// Final norm and head, only for the rows whose logits are read.
void DeepseekMlaMoe::head(const ForwardBatch& batch, Stream& stream) {
    const auto rows = static_cast<int64_t>(batch.logit_rows.size());
    if (rows == 0) return;
    gather_logit_rows(batch, workspace_.x.data(), config.hidden);
    norm(output_norm_, rows, stream);
    project(*output_, workspace_.normed.data(), rows, nullptr, batch.logits.data, stream);
}

void DeepseekMlaMoe::forward(const ForwardBatch& batch, Stream& stream) {
    check_batch(batch, limits_, config);
    Workspace& w = workspace_;
    embed({.table = shared_.embedding, .tokens = batch.tokens, .out = w.x.data()}, stream);
    rope_angles(batch.positions, rope_, w.angles.data());
    for (int32_t i = 0; i < config.layers; ++i) {
        const Layer& layer = layers_[static_cast<size_t>(i)];
        attention(batch, layer, i, stream);
        feed_forward(layer, std::ssize(batch.tokens), stream);
        copy_features(batch, limits_, i, w.x.data(), config.hidden);
    }
    head(batch, stream);
}

}  // namespace

std::unique_ptr<Model> load_deepseek(const ModelFile& file, const ModelConfig& config,
                                     const ForwardLimits& limits, Stream& stream) {
    return std::make_unique<DeepseekMlaMoe>(file, config, limits, stream);
}

void check_deepseek(const ModelFile& file, const ModelConfig& config,
                    std::vector<std::string>& faults) {
    WeightReader reader(file, faults);
    read_deepseek_outer(reader, config);
    for (int32_t i = 0; i < config.layers; ++i) read_deepseek_layer(reader, config, i);
    reader.skip_layers(config.layers, config.mtp_layers);
    reader.expect_all_taken(config.architecture);
}

}  // namespace kd
