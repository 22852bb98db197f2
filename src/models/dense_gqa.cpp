// Dense transformers with grouped-query attention: the Llama family. A flat list of ops a layer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backends/cpu/lazy_array.h"
#include "base/check.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/swiglu/swiglu.h"
#include "models/model.h"
#include "models/weights.h"

namespace kd {

namespace {

struct Layer {
    std::span<const float> attn_norm;  // [hidden]
    std::span<const float> ffn_norm;   // [hidden]
    LinearWeights qkv;                 // hidden -> (heads + 2 kv_heads) * head_dim
    LinearWeights attn_output;         // heads * head_dim -> hidden
    LinearWeights gate_up;             // hidden -> 2 * intermediate
    LinearWeights down;                // intermediate -> hidden
};

/// Memory of intermediate values, sized once. Pages are touched only as far as batches reach.
struct Workspace {
    Workspace(const ModelConfig& c, const ForwardLimits& limits, int threads)
        : x(floats(limits.rows, c.hidden)),
          normed(floats(limits.rows, c.hidden)),
          qkv(floats(limits.rows, int64_t{c.heads + 2 * c.kv_heads} * c.head_dim)),
          attended(floats(limits.rows, int64_t{c.heads} * c.head_dim)),
          gate_up(floats(limits.rows, int64_t{2} * c.intermediate)),
          activated(floats(limits.rows, c.intermediate)),
          angles(floats(limits.rows, c.rope_dim)),
          attn_scratch(attn_verify_gqa_scratch_floats(c.heads, c.head_dim, limits.keys, threads)),
          quantised(QuantRows::bytes(limits.rows,
                                     std::max({c.hidden, c.heads * c.head_dim, c.intermediate}))) {}

    static int64_t floats(int64_t rows, int64_t columns) { return rows * columns; }

    LazyArray<float> x;          // [rows, hidden] residual stream
    LazyArray<float> normed;     // [rows, hidden]
    LazyArray<float> qkv;        // [rows, (heads + 2 kv_heads) * head_dim]
    LazyArray<float> attended;   // [rows, heads * head_dim]
    LazyArray<float> gate_up;    // [rows, 2 * intermediate]
    LazyArray<float> activated;  // [rows, intermediate]
    LazyArray<float> angles;     // [rows, rope_dim / 2, 2]
    LazyArray<float> attn_scratch;
    LazyArray<std::byte> quantised;
};

class DenseGqa final : public Model {
  public:
    DenseGqa(const GgufFile& file, const ModelConfig& model_config, const ForwardLimits& limits,
             Stream& stream);
    void forward(const ForwardBatch& batch, Stream& stream) override;

  private:
    void project(const LinearWeights& weights, const float* x, int64_t rows, const float* residual,
                 float* y, Stream& stream);
    void attention(const ForwardBatch& batch, const Layer& layer, int32_t index, Stream& stream);
    void feed_forward(const Layer& layer, int64_t rows, Stream& stream);
    void copy_features(const ForwardBatch& batch, int32_t layer) const;
    void head(const ForwardBatch& batch, Stream& stream);

    ForwardLimits limits_;
    std::span<const float> output_norm_;
    std::vector<Layer> layers_;
    std::unique_ptr<LinearWeights> output_;
    RopeTable rope_;
    Workspace workspace_;
};

/// Where the tensors of a layer lie in the file.
struct LayerViews {
    std::span<const float> attn_norm;
    std::span<const float> ffn_norm;
    WeightView q, k, v, attn_output, gate, up, down;
};

LayerViews read_layer(WeightReader& reader, const ModelConfig& c, int32_t layer) {
    const int64_t q_rows = int64_t{c.heads} * c.head_dim;
    const int64_t kv_rows = int64_t{c.kv_heads} * c.head_dim;
    const auto name = [layer](std::string_view part) {
        return fmt::format("blk.{}.{}.weight", layer, part);
    };
    const auto matrix = [&](std::string_view part, int64_t rows, int64_t columns) {
        return reader.matrix(name(part), rows, columns);
    };
    const LayerViews views = {.attn_norm = reader.vector(name("attn_norm"), c.hidden),
                              .ffn_norm = reader.vector(name("ffn_norm"), c.hidden),
                              .q = matrix("attn_q", q_rows, c.hidden),
                              .k = matrix("attn_k", kv_rows, c.hidden),
                              .v = matrix("attn_v", kv_rows, c.hidden),
                              .attn_output = matrix("attn_output", c.hidden, q_rows),
                              .gate = matrix("ffn_gate", c.intermediate, c.hidden),
                              .up = matrix("ffn_up", c.intermediate, c.hidden),
                              .down = matrix("ffn_down", c.hidden, c.intermediate)};
    reader.expect_one_kind({views.q, views.k, views.v}, name("attn_q"));
    reader.expect_one_kind({views.gate, views.up}, name("ffn_gate"));
    return views;
}

/// The tensors around the layers.
struct OuterViews {
    WeightView embedding;
    std::span<const float> output_norm;
    WeightView head;
};

OuterViews read_outer(WeightReader& reader, const ModelConfig& c) {
    OuterViews views = {.embedding = reader.matrix("token_embd.weight", c.vocabulary, c.hidden),
                        .output_norm = reader.vector("output_norm.weight", c.hidden)};
    // Without its own matrix the head shares the embedding's.
    views.head = reader.has("output.weight")
                     ? reader.matrix("output.weight", c.vocabulary, c.hidden)
                     : views.embedding;
    return views;
}

LinearWeights linear_weights(std::initializer_list<WeightView> parts, Stream& stream) {
    return LinearWeights(std::span(parts.begin(), parts.size()), stream);
}

DenseGqa::DenseGqa(const GgufFile& file, const ModelConfig& model_config,
                   const ForwardLimits& limits, Stream& stream)
    : Model(model_config), limits_(limits), workspace_(config, limits, stream.threads->threads()) {
    WeightReader reader(file);
    const OuterViews outer = read_outer(reader, config);
    output_norm_ = outer.output_norm;
    for (int32_t i = 0; i < config.layers; ++i) {
        const LayerViews views = read_layer(reader, config, i);
        layers_.push_back({.attn_norm = views.attn_norm,
                           .ffn_norm = views.ffn_norm,
                           .qkv = linear_weights({views.q, views.k, views.v}, stream),
                           .attn_output = linear_weights({views.attn_output}, stream),
                           .gate_up = linear_weights({views.gate, views.up}, stream),
                           .down = linear_weights({views.down}, stream)});
    }
    output_ = std::make_unique<LinearWeights>(std::span(&outer.head, 1), stream);
    shared_ = {.embedding = outer.embedding, .head = output_.get()};
    reader.expect_all_taken();
    if (stream.kernels == Kernels::fast) file.release();

    for (int32_t i = 0; i < config.rope_dim / 2; ++i) {
        rope_.inverse_frequency.push_back(std::pow(config.rope_base, -2.0 * i / config.rope_dim));
    }
}

/// y = residual + x W^T, on rows in the form that the weights' kernel takes.
void DenseGqa::project(const LinearWeights& weights, const float* x, int64_t rows,
                       const float* residual, float* y, Stream& stream) {
    LinearParams params{.weights = &weights, .rows = rows, .residual = residual, .y = y};
    QuantRows quantised;
    if (stream.kernels == Kernels::fast && weights.wants_quantised_rows()) {
        quantised = QuantRows::in(workspace_.quantised.data(), rows, weights.columns());
        quant_rows({.x = x, .out = quantised}, stream);
        params.quantised = &quantised;
    } else {
        params.x = x;
    }
    linear(params, stream);
}

void DenseGqa::attention(const ForwardBatch& batch, const Layer& layer, int32_t index,
                         Stream& stream) {
    const ModelConfig& c = config;
    Workspace& w = workspace_;
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    rmsnorm({.x = w.x.data(),
             .weight = layer.attn_norm.data(),
             .y = w.normed.data(),
             .rows = rows,
             .columns = c.hidden,
             .epsilon = static_cast<float>(c.norm_epsilon)},
            stream);
    project(layer.qkv, w.normed.data(), rows, nullptr, w.qkv.data(), stream);
    rope_append({.rows = rows,
                 .heads = c.heads,
                 .kv_heads = c.kv_heads,
                 .head_dim = c.head_dim,
                 .rotated = c.rope_dim,
                 .pairing = c.rope_adjacent_pairs ? RopePairing::adjacent : RopePairing::half,
                 .qkv = w.qkv.data(),
                 .angles = w.angles.data(),
                 .slots = batch.slots,
                 .kv = batch.kv,
                 .layer = index},
                stream);
    attn_verify_gqa({.heads = c.heads,
                     .kv_heads = c.kv_heads,
                     .head_dim = c.head_dim,
                     .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                     .q = w.qkv.data(),
                     .q_stride = int64_t{c.heads + 2 * c.kv_heads} * c.head_dim,
                     .out = w.attended.data(),
                     .segments = batch.segments,
                     .kv = batch.kv,
                     .layer = index,
                     .scratch = w.attn_scratch.data()},
                    stream);
    project(layer.attn_output, w.attended.data(), rows, w.x.data(), w.x.data(), stream);
}

void DenseGqa::feed_forward(const Layer& layer, int64_t rows, Stream& stream) {
    Workspace& w = workspace_;
    rmsnorm({.x = w.x.data(),
             .weight = layer.ffn_norm.data(),
             .y = w.normed.data(),
             .rows = rows,
             .columns = config.hidden,
             .epsilon = static_cast<float>(config.norm_epsilon)},
            stream);
    project(layer.gate_up, w.normed.data(), rows, nullptr, w.gate_up.data(), stream);
    swiglu({.gate_up = w.gate_up.data(),
            .y = w.activated.data(),
            .rows = rows,
            .columns = config.intermediate},
           stream);
    project(layer.down, w.activated.data(), rows, w.x.data(), w.x.data(), stream);
}

/// The residual stream behind `layer` to its places among the features.
void DenseGqa::copy_features(const ForwardBatch& batch, int32_t layer) const {
    if (batch.features.data == nullptr) return;
    for (size_t tap = 0; tap < limits_.feature_layers.size(); ++tap) {
        if (limits_.feature_layers[tap] != layer) continue;
        for (size_t row = 0; row < batch.tokens.size(); ++row) {
            const auto at = static_cast<int64_t>(row);
            std::memcpy(batch.features.row(at) + static_cast<int64_t>(tap) * config.hidden,
                        workspace_.x.data() + at * config.hidden,
                        static_cast<size_t>(config.hidden) * sizeof(float));
        }
    }
}

/// Final norm and head, only for the rows whose logits are read.
void DenseGqa::head(const ForwardBatch& batch, Stream& stream) {
    Workspace& w = workspace_;
    const auto rows = static_cast<int64_t>(batch.logit_rows.size());
    if (rows == 0) return;
    // logit_rows ascend, so a row moves only towards the front and the gather is safe in place.
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = batch.logit_rows[static_cast<size_t>(i)];
        if (row != i) {
            std::memcpy(w.x.data() + i * config.hidden, w.x.data() + row * config.hidden,
                        static_cast<size_t>(config.hidden) * sizeof(float));
        }
    }
    rmsnorm({.x = w.x.data(),
             .weight = output_norm_.data(),
             .y = w.normed.data(),
             .rows = rows,
             .columns = config.hidden,
             .epsilon = static_cast<float>(config.norm_epsilon)},
            stream);
    project(*output_, w.normed.data(), rows, nullptr, batch.logits.data, stream);
}

void DenseGqa::forward(const ForwardBatch& batch, Stream& stream) {
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    KD_CHECK(rows > 0 && rows <= limits_.rows, "{} rows, limit {}", rows, limits_.rows);
    KD_CHECK(batch.logits.rows >= static_cast<int64_t>(batch.logit_rows.size()) &&
                 batch.logits.stride == config.vocabulary,
             "logits [{}, {}] for {} rows of {}", batch.logits.rows, batch.logits.stride,
             batch.logit_rows.size(), config.vocabulary);
    KD_CHECK(batch.features.data == nullptr ||
                 batch.features.columns ==
                     std::ssize(limits_.feature_layers) * int64_t{config.hidden},
             "features of {} values for {} layers", batch.features.columns,
             limits_.feature_layers.size());
    for (const AttnSegment& segment : batch.segments) {
        KD_CHECK(std::ssize(segment.context) + segment.rows <= limits_.keys,
                 "{} rows behind {} tokens, limit {}", segment.rows, segment.context.size(),
                 limits_.keys);
    }
    embed({.table = shared_.embedding, .tokens = batch.tokens, .out = workspace_.x.data()}, stream);
    rope_angles(batch.positions, rope_, workspace_.angles.data());
    for (int32_t i = 0; i < config.layers; ++i) {
        const Layer& layer = layers_[static_cast<size_t>(i)];
        attention(batch, layer, i, stream);
        feed_forward(layer, rows, stream);
        copy_features(batch, i);
    }
    head(batch, stream);
}

}  // namespace

std::unique_ptr<Model> load_model(const GgufFile& file, const ForwardLimits& limits,
                                  Stream& stream) {
    return std::make_unique<DenseGqa>(file, read_model_config(file), limits, stream);
}

void check_tensors(const GgufFile& file, const ModelConfig& config,
                   std::vector<std::string>& faults) {
    WeightReader reader(file, faults);
    read_outer(reader, config);
    for (int32_t i = 0; i < config.layers; ++i) read_layer(reader, config, i);
    reader.expect_all_taken();
}

}  // namespace kd
