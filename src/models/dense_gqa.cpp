// Dense transformers with grouped-query attention: Llama, Qwen2 and Qwen3, which differ by optional
// weights only. A flat list of ops a layer.
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
#include "models/architectures.h"
#include "models/rope.h"
#include "models/weights.h"

namespace kd {

namespace {

/// y = W x + bias.
struct Projection {
    LinearWeights weights;
    std::vector<float> bias;  // [outputs] or empty
};

struct Layer {
    std::vector<float> attn_norm;  // [hidden]
    std::vector<float> ffn_norm;   // [hidden]
    std::vector<float> q_norm;     // [head_dim] or empty: of each head
    std::vector<float> k_norm;     // [head_dim] or empty
    Projection qkv;                // hidden -> (heads + 2 kv_heads) * head_dim
    Projection attn_output;        // heads * head_dim -> hidden
    Projection gate_up;            // hidden -> 2 * intermediate
    Projection down;               // intermediate -> hidden
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
    DenseGqa(const ModelFile& file, const ModelConfig& model_config, const ForwardLimits& limits,
             Stream& stream);
    void forward(const ForwardBatch& batch, Stream& stream) override;

  private:
    void norm(const std::vector<float>& weight, const float* x, int64_t rows, float* y,
              Stream& stream) const;
    void head_norm(const std::vector<float>& weight, float* x, int32_t heads, int64_t rows,
                   Stream& stream) const;
    void project(const LinearWeights& weights, const std::vector<float>& bias, const float* x,
                 int64_t rows, const float* residual, float* y, Stream& stream);
    void attention(const ForwardBatch& batch, const Layer& layer, int32_t index, Stream& stream);
    void feed_forward(const Layer& layer, int64_t rows, Stream& stream);
    void copy_features(const ForwardBatch& batch, int32_t layer) const;
    void head(const ForwardBatch& batch, Stream& stream);

    ForwardLimits limits_;
    std::vector<float> output_norm_;
    std::vector<Layer> layers_;
    std::unique_ptr<LinearWeights> output_;
    RopeTable rope_;
    Workspace workspace_;
};

/// A matrix as it lies in the file, and its bias.
struct ProjectionView {
    WeightView weight;
    std::vector<float> bias;  // empty: none
};

/// Where the tensors of a layer lie in the file.
struct LayerViews {
    std::vector<float> attn_norm, ffn_norm, q_norm, k_norm;
    ProjectionView q, k, v, attn_output, gate, up, down;
};

/// Reads matrix and bias of `part` ("blk.3.attn_q"). with_bias: it must have one.
ProjectionView read_projection(WeightReader& reader, const std::string& part, bool with_bias,
                               int64_t rows, int64_t columns) {
    ProjectionView view = {.weight = reader.matrix(part + ".weight", rows, columns)};
    if (with_bias) view.bias = reader.vector(part + ".bias", rows);
    return view;
}

LayerViews read_layer(WeightReader& reader, const ModelConfig& c, int32_t layer) {
    const int64_t q_rows = int64_t{c.heads} * c.head_dim;
    const int64_t kv_rows = int64_t{c.kv_heads} * c.head_dim;
    const auto name = [layer](std::string_view part) {
        return fmt::format("blk.{}.{}", layer, part);
    };
    const auto has_bias = [&](std::string_view part) { return reader.has(name(part) + ".bias"); };
    // Matrices of one linear layer have biases together or not at all.
    const bool qkv_bias = c.architecture == "qwen2" || has_bias("attn_q");
    const bool gate_up_bias = has_bias("ffn_gate");
    const auto read = [&](std::string_view part, bool bias, int64_t rows, int64_t columns) {
        return read_projection(reader, name(part), bias, rows, columns);
    };
    LayerViews views = {
        .attn_norm = reader.vector(name("attn_norm.weight"), c.hidden),
        .ffn_norm = reader.vector(name("ffn_norm.weight"), c.hidden),
        .q = read("attn_q", qkv_bias, q_rows, c.hidden),
        .k = read("attn_k", qkv_bias, kv_rows, c.hidden),
        .v = read("attn_v", qkv_bias, kv_rows, c.hidden),
        .attn_output = read("attn_output", has_bias("attn_output"), c.hidden, q_rows),
        .gate = read("ffn_gate", gate_up_bias, c.intermediate, c.hidden),
        .up = read("ffn_up", gate_up_bias, c.intermediate, c.hidden),
        .down = read("ffn_down", has_bias("ffn_down"), c.hidden, c.intermediate)};
    if (c.architecture == "qwen3") {
        views.q_norm = reader.vector(name("attn_q_norm.weight"), c.head_dim);
        views.k_norm = reader.vector(name("attn_k_norm.weight"), c.head_dim);
    }
    reader.expect_one_kind({views.q.weight, views.k.weight, views.v.weight}, name("attn_q.weight"));
    reader.expect_one_kind({views.gate.weight, views.up.weight}, name("ffn_gate.weight"));
    return views;
}

/// The tensors around the layers.
struct OuterViews {
    WeightView embedding;
    std::vector<float> output_norm;
    WeightView head;
    std::vector<float> rope_divisors;  // [rope_dim / 2] or empty
};

OuterViews read_outer(WeightReader& reader, const ModelConfig& c) {
    OuterViews views = {.embedding = reader.matrix("token_embd.weight", c.vocabulary, c.hidden),
                        .output_norm = reader.vector("output_norm.weight", c.hidden)};
    // Without its own matrix the head shares the embedding's.
    views.head = reader.has("output.weight")
                     ? reader.matrix("output.weight", c.vocabulary, c.hidden)
                     : views.embedding;
    if (reader.has("rope_freqs.weight")) {
        views.rope_divisors = reader.positive_vector("rope_freqs.weight", c.rope_dim / 2);
    }
    return views;
}

/// The matrices stacked by rows, and so their biases.
Projection stack(std::initializer_list<const ProjectionView*> parts, Stream& stream) {
    std::vector<WeightView> weights;
    std::vector<float> bias;
    for (const ProjectionView* part : parts) {
        weights.push_back(part->weight);
        bias.insert(bias.end(), part->bias.begin(), part->bias.end());
    }
    return {.weights = LinearWeights(weights, stream), .bias = std::move(bias)};
}

DenseGqa::DenseGqa(const ModelFile& file, const ModelConfig& model_config,
                   const ForwardLimits& limits, Stream& stream)
    : Model(model_config), limits_(limits), workspace_(config, limits, stream.threads->threads()) {
    WeightReader reader(file);
    OuterViews outer = read_outer(reader, config);
    output_norm_ = std::move(outer.output_norm);
    for (int32_t i = 0; i < config.layers; ++i) {
        LayerViews views = read_layer(reader, config, i);
        layers_.push_back({.attn_norm = std::move(views.attn_norm),
                           .ffn_norm = std::move(views.ffn_norm),
                           .q_norm = std::move(views.q_norm),
                           .k_norm = std::move(views.k_norm),
                           .qkv = stack({&views.q, &views.k, &views.v}, stream),
                           .attn_output = stack({&views.attn_output}, stream),
                           .gate_up = stack({&views.gate, &views.up}, stream),
                           .down = stack({&views.down}, stream)});
    }
    output_ = std::make_unique<LinearWeights>(std::span(&outer.head, 1), stream);
    shared_ = {.embedding = outer.embedding, .head = output_.get()};
    reader.expect_all_taken(config.architecture);
    if (stream.kernels == Kernels::fast) file.release();
    rope_ = rope_table(config, outer.rope_divisors);
}

void DenseGqa::norm(const std::vector<float>& weight, const float* x, int64_t rows, float* y,
                    Stream& stream) const {
    rmsnorm({.x = x,
             .weight = weight.data(),
             .y = y,
             .rows = rows,
             .columns = config.hidden,
             .epsilon = static_cast<float>(config.norm_epsilon)},
            stream);
}

/// Each of `heads` heads by itself, in place, in rows of Q, K and V.
void DenseGqa::head_norm(const std::vector<float>& weight, float* x, int32_t heads, int64_t rows,
                         Stream& stream) const {
    if (weight.empty()) return;
    rmsnorm({.x = x,
             .weight = weight.data(),
             .y = x,
             .rows = rows,
             .groups = heads,
             .columns = config.head_dim,
             .stride = int64_t{config.heads + 2 * config.kv_heads} * config.head_dim,
             .epsilon = static_cast<float>(config.norm_epsilon)},
            stream);
}

/// y = residual + x W^T + bias, on rows in the form that the weights' kernel takes.
void DenseGqa::project(const LinearWeights& weights, const std::vector<float>& bias, const float* x,
                       int64_t rows, const float* residual, float* y, Stream& stream) {
    LinearParams params{.weights = &weights,
                        .rows = rows,
                        .bias = bias.empty() ? nullptr : bias.data(),
                        .residual = residual,
                        .y = y};
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
    norm(layer.attn_norm, w.x.data(), rows, w.normed.data(), stream);
    project(layer.qkv.weights, layer.qkv.bias, w.normed.data(), rows, nullptr, w.qkv.data(),
            stream);
    head_norm(layer.q_norm, w.qkv.data(), c.heads, rows, stream);
    head_norm(layer.k_norm, w.qkv.data() + int64_t{c.heads} * c.head_dim, c.kv_heads, rows, stream);
    rope_append({.rows = rows,
                 .heads = c.heads,
                 .kv_heads = c.kv_heads,
                 .head_dim = c.head_dim,
                 .rotated = c.rope_dim,
                 .pairing = c.rope_pairing,
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
    project(layer.attn_output.weights, layer.attn_output.bias, w.attended.data(), rows, w.x.data(),
            w.x.data(), stream);
}

void DenseGqa::feed_forward(const Layer& layer, int64_t rows, Stream& stream) {
    Workspace& w = workspace_;
    norm(layer.ffn_norm, w.x.data(), rows, w.normed.data(), stream);
    project(layer.gate_up.weights, layer.gate_up.bias, w.normed.data(), rows, nullptr,
            w.gate_up.data(), stream);
    swiglu({.gate_up = w.gate_up.data(),
            .y = w.activated.data(),
            .rows = rows,
            .columns = config.intermediate},
           stream);
    project(layer.down.weights, layer.down.bias, w.activated.data(), rows, w.x.data(), w.x.data(),
            stream);
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
    norm(output_norm_, w.x.data(), rows, w.normed.data(), stream);
    project(*output_, {}, w.normed.data(), rows, nullptr, batch.logits.data, stream);
}

void DenseGqa::forward(const ForwardBatch& batch, Stream& stream) {
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    KD_CHECK(rows > 0 && rows <= limits_.rows, "{} rows, limit {}", rows, limits_.rows);
    KD_CHECK(batch.logits.rows >= static_cast<int64_t>(batch.logit_rows.size()) &&
                 batch.logits.stride == config.vocabulary,
             "logits [{}, {}] for {} rows of {}", batch.logits.rows, batch.logits.stride,
             batch.logit_rows.size(), config.vocabulary);
    KD_CHECK(
        batch.features.data == nullptr ||
            batch.features.columns == std::ssize(limits_.feature_layers) * int64_t{config.hidden},
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

std::unique_ptr<Model> load_dense_gqa(const ModelFile& file, const ModelConfig& config,
                                      const ForwardLimits& limits, Stream& stream) {
    return std::make_unique<DenseGqa>(file, config, limits, stream);
}

void check_dense_gqa(const ModelFile& file, const ModelConfig& config,
                     std::vector<std::string>& faults) {
    WeightReader reader(file, faults);
    read_outer(reader, config);
    for (int32_t i = 0; i < config.layers; ++i) read_layer(reader, config, i);
    reader.expect_all_taken(config.architecture);
}

}  // namespace kd
