#include "models/deepseek_weights.h"

#include <fmt/format.h>

namespace kd {

namespace {

/// Reads the tensors of one layer.
class LayerReader {
  public:
    LayerReader(WeightReader& reader, const ModelConfig& config, int32_t layer)
        : reader_(reader), c_(config), layer_(layer) {}

    DeepseekLayerViews read() {
        DeepseekLayerViews views;
        views.attn_norm = reader_.vector(name("attn_norm.weight"), c_.hidden);
        views.ffn_norm = reader_.vector(name("ffn_norm.weight"), c_.hidden);
        read_attention(views);
        if (layer_ < c_.moe.first_dense || c_.moe.experts == 0) {
            views.dense = feed_forward("", c_.intermediate);
        } else {
            read_experts(views);
        }
        return views;
    }

  private:
    std::string name(std::string_view part) const { return fmt::format("blk.{}.{}", layer_, part); }
    WeightView matrix(std::string_view part, int64_t rows, int64_t columns) {
        return reader_.matrix(name(part) + ".weight", rows, columns);
    }
    ProjectionView projection(std::string_view part, int64_t rows, int64_t columns) {
        ProjectionView view = {.weight = matrix(part, rows, columns)};
        if (reader_.has(name(part) + ".bias"))
            view.bias = reader_.vector(name(part) + ".bias", rows);
        return view;
    }
    FeedForwardViews feed_forward(std::string_view suffix, int32_t intermediate) {
        const auto part = [&](std::string_view side) {
            return fmt::format("ffn_{}{}", side, suffix);
        };
        const FeedForwardViews views = {
            .gate = {.weight = matrix(part("gate"), intermediate, c_.hidden)},
            .up = {.weight = matrix(part("up"), intermediate, c_.hidden)},
            .down = {.weight = matrix(part("down"), c_.hidden, intermediate)},
            .intermediate = intermediate};
        reader_.expect_one_kind({views.gate.weight, views.up.weight},
                                name(part("gate")) + ".weight");
        return views;
    }
    void read_attention(DeepseekLayerViews& views) {
        const MlaShape& mla = c_.mla;
        const int64_t q_rows = int64_t{c_.heads} * c_.head_dim;
        if (mla.q_lora > 0) {
            views.q_a = projection("attn_q_a", mla.q_lora, c_.hidden);
            views.q_a_norm = reader_.vector(name("attn_q_a_norm.weight"), mla.q_lora);
            views.q = projection("attn_q_b", q_rows, mla.q_lora);
        } else {
            views.q = projection("attn_q", q_rows, c_.hidden);
        }
        views.kv_a = projection("attn_kv_a_mqa", mla.kv_lora + mla.rope, c_.hidden);
        views.kv_a_norm = reader_.vector(name("attn_kv_a_norm.weight"), mla.kv_lora);
        if (reader_.has(name("attn_k_b.weight"))) {
            views.k_b = reader_.matrices(name("attn_k_b.weight"), c_.heads, mla.kv_lora, mla.nope);
            views.v_b = reader_.matrices(name("attn_v_b.weight"), c_.heads, mla.value, mla.kv_lora);
        } else {
            views.kv_b =
                matrix("attn_kv_b", int64_t{c_.heads} * (mla.nope + mla.value), mla.kv_lora);
        }
        views.attn_output = projection("attn_output", c_.hidden, int64_t{c_.heads} * mla.value);
    }
    void read_experts(DeepseekLayerViews& views) {
        const MoeShape& moe = c_.moe;
        views.router.weight = matrix("ffn_gate_inp", moe.experts, c_.hidden);
        if (moe.scoring == MoeScoring::sigmoid) {
            views.router_bias = reader_.vector(name("exp_probs_b.bias"), moe.experts);
        }
        const auto stack = [&](std::string_view part, int64_t rows, int64_t columns) {
            return reader_.experts(layer_, part, moe.experts, rows, columns);
        };
        views.gate_experts = stack("ffn_gate", moe.intermediate, c_.hidden);
        views.up_experts = stack("ffn_up", moe.intermediate, c_.hidden);
        views.down_experts = stack("ffn_down", c_.hidden, moe.intermediate);
        if (moe.shared > 0) views.dense = feed_forward("_shexp", moe.shared * moe.intermediate);
    }

    WeightReader& reader_;
    const ModelConfig& c_;
    const int32_t layer_;
};

}  // namespace

DeepseekLayerViews read_deepseek_layer(WeightReader& reader, const ModelConfig& config,
                                       int32_t layer) {
    return LayerReader(reader, config, layer).read();
}

DeepseekOuterViews read_deepseek_outer(WeightReader& reader, const ModelConfig& c) {
    DeepseekOuterViews views = {
        .embedding = reader.matrix("token_embd.weight", c.vocabulary, c.hidden),
        .output_norm = reader.vector("output_norm.weight", c.hidden)};
    // Without its own matrix the head shares the embedding's.
    views.head.weight = reader.has("output.weight")
                            ? reader.matrix("output.weight", c.vocabulary, c.hidden)
                            : views.embedding;
    return views;
}

AbsorbedWeights absorb(const DeepseekLayerViews& views, const ModelConfig& c) {
    const MlaShape& mla = c.mla;
    const size_t heads = static_cast<size_t>(c.heads), latent = static_cast<size_t>(mla.kv_lora),
                 nope = static_cast<size_t>(mla.nope), value = static_cast<size_t>(mla.value);
    AbsorbedWeights out;
    out.k_b.resize(heads * latent * nope);
    out.v_b.resize(heads * value * latent);
    std::vector<float> row(latent);
    for (size_t h = 0; h < heads; ++h) {
        float* k = out.k_b.data() + h * latent * nope;
        float* v = out.v_b.data() + h * value * latent;
        if (!views.k_b.empty()) {
            for (size_t l = 0; l < latent; ++l) {
                dequantise_row(views.k_b[h], static_cast<int64_t>(l), k + l * nope);
            }
            for (size_t i = 0; i < value; ++i) {
                dequantise_row(views.v_b[h], static_cast<int64_t>(i), v + i * latent);
            }
            continue;
        }
        const size_t first = h * (nope + value);
        for (size_t n = 0; n < nope; ++n) {
            dequantise_row(views.kv_b, static_cast<int64_t>(first + n), row.data());
            for (size_t l = 0; l < latent; ++l) k[l * nope + n] = row[l];
        }
        for (size_t i = 0; i < value; ++i) {
            dequantise_row(views.kv_b, static_cast<int64_t>(first + nope + i), v + i * latent);
        }
    }
    return out;
}

}  // namespace kd
