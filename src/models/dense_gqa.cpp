// Dense transformers with grouped-query attention: Llama, Qwen2 and Qwen3, which differ by optional
// weights only. A flat list of ops a layer.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/cpu/lazy_array.h"
#include "kernels/embed/embed.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/swiglu/swiglu.h"
#include "models/architectures.h"
#include "models/layer_ops.h"
#include "models/rope.h"
#include "models/weights.h"

namespace kd {

namespace {

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
    void project(const Projection& projection, const float* x, int64_t rows, const float* residual,
                 float* y, Stream& stream);
    void attention(const ForwardBatch& batch, const Layer& layer, int32_t index, Stream& stream);
    void feed_forward(const Layer& layer, int64_t rows, Stream& stream);
    void head(const ForwardBatch& batch, Stream& stream);

    ForwardLimits limits_;
    std::vector<float> output_norm_;
    std::vector<Layer> layers_;
    std::unique_ptr<Projection> output_;
    RopeTable rope_;
    Workspace workspace_;
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
    ProjectionView head;
    std::vector<float> rope_divisors;  // [rope_dim / 2] or empty
};

OuterViews read_outer(WeightReader& reader, const ModelConfig& c) {
    OuterViews views = {.embedding = reader.matrix("token_embd.weight", c.vocabulary, c.hidden),
                        .output_norm = reader.vector("output_norm.weight", c.hidden)};
    // Without its own matrix the head shares the embedding's.
    views.head.weight = reader.has("output.weight")
                            ? reader.matrix("output.weight", c.vocabulary, c.hidden)
                            : views.embedding;
    if (reader.has("rope_freqs.weight")) {
        views.rope_divisors = reader.positive_vector("rope_freqs.weight", c.rope_dim / 2);
    }
    return views;
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
    output_ = std::make_unique<Projection>(stack({&outer.head}, stream));
    shared_ = {.embedding = outer.embedding, .head = &output_->weights};
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

void DenseGqa::project(const Projection& projection, const float* x, int64_t rows,
                       const float* residual, float* y, Stream& stream) {
    kd::project({.projection = &projection,
                 .x = x,
                 .rows = rows,
                 .residual = residual,
                 .y = y,
                 .quantised = workspace_.quantised.span()},
                stream);
}

void DenseGqa::attention(const ForwardBatch& batch, const Layer& layer, int32_t index,
                         Stream& stream) {
    const ModelConfig& c = config;
    Workspace& w = workspace_;
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    norm(layer.attn_norm, w.x.data(), rows, w.normed.data(), stream);
    project(layer.qkv, w.normed.data(), rows, nullptr, w.qkv.data(), stream);
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
    project(layer.attn_output, w.attended.data(), rows, w.x.data(), w.x.data(), stream);
}

void DenseGqa::feed_forward(const Layer& layer, int64_t rows, Stream& stream) {
    Workspace& w = workspace_;
    norm(layer.ffn_norm, w.x.data(), rows, w.normed.data(), stream);
    project(layer.gate_up, w.normed.data(), rows, nullptr, w.gate_up.data(), stream);
    swiglu({.gate_up = w.gate_up.data(),
            .y = w.activated.data(),
            .rows = rows,
            .columns = config.intermediate},
           stream);
    project(layer.down, w.activated.data(), rows, w.x.data(), w.x.data(), stream);
}

/// Final norm and head, only for the rows whose logits are read.
void DenseGqa::head(const ForwardBatch& batch, Stream& stream) {
    Workspace& w = workspace_;
    const auto rows = static_cast<int64_t>(batch.logit_rows.size());
    if (rows == 0) return;
    gather_logit_rows(batch, w.x.data(), config.hidden);
    norm(output_norm_, w.x.data(), rows, w.normed.data(), stream);
    project(*output_, w.normed.data(), rows, nullptr, batch.logits.data, stream);
}

void DenseGqa::forward(const ForwardBatch& batch, Stream& stream) {
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    check_batch(batch, limits_, config);
    embed({.table = shared_.embedding, .tokens = batch.tokens, .out = workspace_.x.data()}, stream);
    rope_angles(batch.positions, rope_, workspace_.angles.data());
    for (int32_t i = 0; i < config.layers; ++i) {
        const Layer& layer = layers_[static_cast<size_t>(i)];
        attention(batch, layer, i, stream);
        feed_forward(layer, rows, stream);
        copy_features(batch, limits_, i, workspace_.x.data(), config.hidden);
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
