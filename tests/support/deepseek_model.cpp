#include "support/deepseek_model.h"

#include <cmath>
#include <map>
#include <sstream>

#include "base/check.h"
#include "support/counter_weights.h"
#include "support/tiny_model.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

struct Shape {
    std::string name;
    std::vector<int64_t> dims;

    int64_t count() const { return dims.size() == 1 ? dims[0] : dims[0] * dims[1]; }
};

class ShapeList {
  public:
    explicit ShapeList(const Json& config) : c_(config) {}

    std::vector<Shape> shapes() {
        add("model.embed_tokens.weight", {size("vocab_size"), hidden()});
        for (int64_t layer = 0; layer < size("num_hidden_layers"); ++layer) {
            const std::string prefix = fmt::format("model.layers.{}.", layer);
            add(prefix + "input_layernorm.weight", {hidden()});
            add_attention(prefix + "self_attn.");
            add(prefix + "post_attention_layernorm.weight", {hidden()});
            if (layer < size("first_k_dense_replace")) {
                add_mlp(prefix + "mlp.", size("intermediate_size"));
            } else {
                add_experts(prefix + "mlp.");
            }
        }
        add("model.norm.weight", {hidden()});
        if (!c_["tie_word_embeddings"]) add("lm_head.weight", {size("vocab_size"), hidden()});
        return std::move(shapes_);
    }

  private:
    int64_t size(const char* key) const { return c_[key].get<int64_t>(); }
    int64_t hidden() const { return size("hidden_size"); }
    void add(const std::string& name, std::vector<int64_t> dims) {
        shapes_.push_back({name, std::move(dims)});
    }
    void add_bias(const std::string& name, int64_t rows) {
        if (c_["attention_bias"]) add(name, {rows});
    }
    void add_attention(const std::string& prefix) {
        const int64_t heads = size("num_attention_heads");
        const int64_t q_rows = heads * (size("qk_nope_head_dim") + size("qk_rope_head_dim"));
        const int64_t kv_lora = size("kv_lora_rank");
        const int64_t value = size("v_head_dim");
        if (c_["q_lora_rank"].is_null()) {
            add(prefix + "q_proj.weight", {q_rows, hidden()});
        } else {
            add(prefix + "q_a_proj.weight", {size("q_lora_rank"), hidden()});
            add_bias(prefix + "q_a_proj.bias", size("q_lora_rank"));
            add(prefix + "q_a_layernorm.weight", {size("q_lora_rank")});
            add(prefix + "q_b_proj.weight", {q_rows, size("q_lora_rank")});
        }
        const int64_t kv_a = kv_lora + size("qk_rope_head_dim");
        add(prefix + "kv_a_proj_with_mqa.weight", {kv_a, hidden()});
        add_bias(prefix + "kv_a_proj_with_mqa.bias", kv_a);
        add(prefix + "kv_a_layernorm.weight", {kv_lora});
        add(prefix + "kv_b_proj.weight", {heads * (size("qk_nope_head_dim") + value), kv_lora});
        add(prefix + "o_proj.weight", {hidden(), heads * value});
        add_bias(prefix + "o_proj.bias", hidden());
    }
    void add_mlp(const std::string& prefix, int64_t intermediate) {
        add(prefix + "gate_proj.weight", {intermediate, hidden()});
        add(prefix + "up_proj.weight", {intermediate, hidden()});
        add(prefix + "down_proj.weight", {hidden(), intermediate});
    }
    void add_experts(const std::string& prefix) {
        const int64_t experts = size("n_routed_experts");
        const int64_t intermediate = size("moe_intermediate_size");
        add(prefix + "gate.weight", {experts, hidden()});
        if (c_["topk_method"] == "noaux_tc") {
            add(prefix + "gate.e_score_correction_bias", {experts});
        }
        for (int64_t e = 0; e < experts; ++e) {
            add_mlp(fmt::format("{}experts.{}.", prefix, e), intermediate);
        }
        add_mlp(prefix + "shared_experts.", intermediate * size("n_shared_experts"));
    }

    const Json& c_;
    std::vector<Shape> shapes_;
};

bool ends(const std::string& name, std::string_view end) {
    return name.ends_with(end);
}

/// Tensors that are stored as they are: the plain generator and its departures but formats.
std::vector<float> plain_values(const Shape& shape, const Json& weights) {
    const std::string& name = shape.name;
    if (ends(name, "norm.weight")) return counter_norm(name, shape.count());
    if (ends(name, "correction_bias")) {
        return counter_values(name, shape.count(), weights.value("bias_offset", 0.0), 0.5);
    }
    if (ends(name, ".bias")) return counter_bias(name, shape.count());
    if (ends(name, "embed_tokens.weight")) return counter_matrix(name, shape.count(), 1);
    std::vector<float> values = counter_matrix(name, shape.dims[0], shape.dims[1]);
    if (ends(name, ".q_a_proj.weight") || ends(name, ".kv_a_proj_with_mqa.weight")) {
        const float scale = weights.value("latent_scale", 1.0f);
        for (float& value : values) value *= scale;
    }
    return values;
}

template <class T>
std::string packed(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string bf16_bytes(const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (const float value : values) bits.push_back(f32_to_bf16(value));
    return packed(bits);
}

void add_fp8(const Shape& shape, const Json& config, std::vector<HfTensor>& out) {
    const auto block =
        config["quantization_config"]["weight_block_size"].get<std::vector<int64_t>>();
    const uint64_t hash = counter_hash(shape.name);
    std::string codes;
    for (int64_t i = 0; i < shape.count(); ++i) {
        auto code =
            static_cast<uint8_t>((counter_uniform(hash, static_cast<uint64_t>(i)) + 1) * 128);
        if ((code & 0x7f) == 0x7f) code ^= 1;
        codes.push_back(static_cast<char>(code));
    }
    const int64_t down = (shape.dims[0] + block[0] - 1) / block[0];
    const int64_t across = (shape.dims[1] + block[1] - 1) / block[1];
    const double size = 1 / (128 * std::sqrt(static_cast<double>(shape.dims[1])));
    const std::string scale = shape.name + "_scale_inv";
    out.push_back({shape.name, "F8_E4M3", shape.dims, codes});
    out.push_back({scale,
                   "F32",
                   {down, across},
                   packed(counter_values(scale, down * across, size, size / 4))});
}

void add_int4(const Shape& shape, std::vector<HfTensor>& out) {
    const uint64_t hash = counter_hash(shape.name);
    std::vector<uint32_t> words(static_cast<size_t>(shape.count() / 8));
    for (int64_t i = 0; i < shape.count(); ++i) {
        const auto code =
            static_cast<uint32_t>((counter_uniform(hash, static_cast<uint64_t>(i)) + 1) * 8);
        words[static_cast<size_t>(i / 8)] |= code << (4 * (i % 8));
    }
    const double size = 1 / (4.6 * std::sqrt(static_cast<double>(shape.dims[1])));
    const std::string base = shape.name.substr(0, shape.name.rfind('.'));
    const std::string scale = base + ".weight_scale";
    out.push_back(
        {base + ".weight_packed", "I32", {shape.dims[0], shape.dims[1] / 8}, packed(words)});
    out.push_back({scale,
                   "BF16",
                   {shape.dims[0], shape.dims[1] / 32},
                   bf16_bytes(counter_values(scale, shape.count() / 32, size, size / 4))});
    out.push_back({base + ".weight_shape", "I64", {2}, packed(shape.dims)});
}

std::vector<std::string> split_at_dots(const std::string& name) {
    std::vector<std::string> parts;
    std::istringstream in(name);
    for (std::string part; std::getline(in, part, '.');) parts.push_back(part);
    return parts;
}

/// Names of GGUF inside a layer; the maker's list says whether they are right.
std::string gguf_name(const std::string& name) {
    static const std::map<std::string, std::string> kNames = {
        {"input_layernorm", "attn_norm"},
        {"post_attention_layernorm", "ffn_norm"},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.q_a_proj", "attn_q_a"},
        {"self_attn.q_a_layernorm", "attn_q_a_norm"},
        {"self_attn.q_b_proj", "attn_q_b"},
        {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
        {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
        {"self_attn.kv_b_proj", "attn_kv_b"},
        {"self_attn.o_proj", "attn_output"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"mlp.gate", "ffn_gate_inp"},
        {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
        {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
        {"mlp.shared_experts.down_proj", "ffn_down_shexp"}};
    if (name == "model.embed_tokens.weight") return "token_embd.weight";
    if (name == "model.norm.weight") return "output_norm.weight";
    if (name == "lm_head.weight") return "output.weight";
    // model.layers.LAYER.MODULE.weight, and two kinds of tensors that GGUF calls otherwise.
    const std::vector<std::string> parts = split_at_dots(name);
    KD_CHECK(parts.size() > 4 && parts[0] == "model" && parts[1] == "layers", "{}", name);
    const std::string& layer = parts[2];
    if (parts.back() == "e_score_correction_bias") {
        return fmt::format("blk.{}.exp_probs_b.bias", layer);
    }
    if (parts[4] == "experts") {
        const std::string projection = parts[6].substr(0, parts[6].find('_'));
        return fmt::format("blk.{}.ffn_{}.{}.weight", layer, projection, parts[5]);
    }
    const std::string module =
        fmt::format("{}", fmt::join(parts.begin() + 3, parts.end() - 1, "."));
    return fmt::format("blk.{}.{}.{}", layer, kNames.at(module), parts.back());
}

class DeepseekGguf {
  public:
    DeepseekGguf(const DeepseekCase& model, const DeepseekGgufOptions& options)
        : c_(model.config), weights_(model.weights), options_(options) {}

    GgufWriter make() {
        set_metadata();
        for (const Shape& shape : ShapeList(c_).shapes()) add_tensor(shape);
        flush_stacks();
        return std::move(writer_);
    }

  private:
    void set(const std::string& key, const char* from) {
        writer_.set("deepseek2." + key, c_[from].get<uint32_t>());
    }
    void set_number(const std::string& key, double value) {
        writer_.set("deepseek2." + key, static_cast<float>(value));
    }

    void set_metadata() {
        writer_.set_string("general.architecture", "deepseek2");
        writer_.set_string("general.name", "kdtree tiny DeepSeek model");
        set("block_count", "num_hidden_layers");
        set("context_length", "max_position_embeddings");
        set("embedding_length", "hidden_size");
        set("feed_forward_length", "intermediate_size");
        set("expert_feed_forward_length", "moe_intermediate_size");
        set("leading_dense_block_count", "first_k_dense_replace");
        set("vocab_size", "vocab_size");
        set("expert_count", "n_routed_experts");
        set("expert_used_count", "num_experts_per_tok");
        set("expert_shared_count", "n_shared_experts");
        set("expert_group_count", "n_group");
        set("expert_group_used_count", "topk_group");
        set_number("expert_weights_scale", c_["routed_scaling_factor"]);
        if (c_["norm_topk_prob"]) writer_.set("deepseek2.expert_weights_norm", true);
        const bool sigmoid = c_["scoring_func"] == "sigmoid";
        writer_.set("deepseek2.expert_gating_func", uint32_t{sigmoid ? 2u : 1u});
        set("attention.head_count", "num_attention_heads");
        set_number("attention.layer_norm_rms_epsilon", c_["rms_norm_eps"]);
        if (!c_["q_lora_rank"].is_null()) set("attention.q_lora_rank", "q_lora_rank");
        set("attention.kv_lora_rank", "kv_lora_rank");
        set_head_sizes();
        set("rope.dimension_count", "qk_rope_head_dim");
        set_rope();
        set_tiny_tokenizer(writer_, c_["vocab_size"]);
    }
    void set_head_sizes() {
        const auto size = [&](const char* key) { return c_[key].get<uint32_t>(); };
        const uint32_t key_size = size("qk_nope_head_dim") + size("qk_rope_head_dim");
        if (options_.split_kv_b) {
            writer_.set("deepseek2.attention.head_count_kv", uint32_t{1});
            writer_.set("deepseek2.attention.key_length",
                        size("kv_lora_rank") + size("qk_rope_head_dim"));
            writer_.set("deepseek2.attention.value_length", size("kv_lora_rank"));
            writer_.set("deepseek2.attention.key_length_mla", key_size);
            writer_.set("deepseek2.attention.value_length_mla", size("v_head_dim"));
        } else {
            writer_.set("deepseek2.attention.head_count_kv", size("num_attention_heads"));
            writer_.set("deepseek2.attention.key_length", key_size);
            writer_.set("deepseek2.attention.value_length", size("v_head_dim"));
        }
    }
    void set_rope() {
        const Json& rope = c_.contains("rope_scaling") ? c_["rope_scaling"] : c_["rope_parameters"];
        set_number("rope.freq_base", c_.contains("rope_theta") ? c_["rope_theta"].get<double>()
                                                               : rope.value("rope_theta", 10000.0));
        if (!c_.contains("rope_scaling")) return;
        writer_.set_string("deepseek2.rope.scaling.type", "yarn");
        set_number("rope.scaling.factor", rope["factor"]);
        writer_.set("deepseek2.rope.scaling.original_context_length",
                    rope["original_max_position_embeddings"].get<uint32_t>());
        if (rope.contains("beta_fast")) {
            set_number("rope.scaling.yarn_beta_fast", rope["beta_fast"]);
            set_number("rope.scaling.yarn_beta_slow", rope["beta_slow"]);
        }
        if (rope.contains("mscale_all_dim")) {
            set_number("rope.scaling.yarn_log_multiplier",
                       0.1 * rope["mscale_all_dim"].get<double>());
        }
    }

    void add_tensor(const Shape& shape) {
        std::vector<float> values = plain_values(shape, weights_);
        const std::string name = gguf_name(shape.name);
        if (ends(name, "attn_kv_b.weight") && options_.split_kv_b) return add_split(name, values);
        if (options_.stacked_experts && shape.name.find(".experts.") != std::string::npos) {
            const std::vector<std::string> parts = split_at_dots(name);  // blk.L.ffn_P.E.weight
            Stack& stack = stacks_[fmt::format("blk.{}.{}_exps.weight", parts[1], parts[2])];
            stack.dims = {shape.dims[1], shape.dims[0]};
            ++stack.count;
            stack.values.insert(stack.values.end(), values.begin(), values.end());
            return;
        }
        const bool matrix = shape.dims.size() == 2 && !ends(name, "ffn_gate_inp.weight");
        const uint64_t rows = shape.dims.size() == 1 ? 0 : static_cast<uint64_t>(shape.dims[0]);
        writer_.add_tensor(name, matrix ? options_.matrices : DType::f32, rows,
                           static_cast<uint64_t>(shape.dims.back()), values);
    }
    void add_split(const std::string& name, const std::vector<float>& kv_b) {
        const auto size = [&](const char* key) { return c_[key].get<size_t>(); };
        const size_t heads = size("num_attention_heads"), nope = size("qk_nope_head_dim"),
                     value = size("v_head_dim"), latent = size("kv_lora_rank");
        std::vector<float> k, v;
        for (size_t h = 0; h < heads; ++h) {
            const float* head = kv_b.data() + h * (nope + value) * latent;
            for (size_t l = 0; l < latent; ++l) {
                for (size_t n = 0; n < nope; ++n) k.push_back(head[n * latent + l]);
            }
            v.insert(v.end(), head + nope * latent, head + (nope + value) * latent);
        }
        const std::string block = name.substr(0, name.find("attn_"));
        add_3d(block + "attn_k_b.weight", {nope, latent, heads}, k);
        add_3d(block + "attn_v_b.weight", {latent, value, heads}, v);
    }
    void add_3d(const std::string& name, std::vector<uint64_t> dims,
                const std::vector<float>& values) {
        writer_.add_tensor({.name = name,
                            .dims = std::move(dims),
                            .type = ggml_type(options_.matrices),
                            .data = quantise(options_.matrices, values)});
    }
    void flush_stacks() {
        for (const auto& [name, stack] : stacks_) {
            add_3d(name,
                   {static_cast<uint64_t>(stack.dims[0]), static_cast<uint64_t>(stack.dims[1]),
                    stack.count},
                   stack.values);
        }
    }

    struct Stack {
        std::vector<int64_t> dims;
        uint64_t count = 0;
        std::vector<float> values;
    };

    const Json& c_;
    const Json& weights_;
    const DeepseekGgufOptions options_;
    GgufWriter writer_;
    std::map<std::string, Stack> stacks_;
};

}  // namespace

std::vector<HfTensor> deepseek_checkpoint(const DeepseekCase& model) {
    const std::string format = model.weights.value("format", "");
    std::vector<HfTensor> out;
    for (const Shape& shape : ShapeList(model.config).shapes()) {
        const bool linear =
            ends(shape.name, "proj.weight") || ends(shape.name, "proj_with_mqa.weight");
        if (format == "fp8" && linear) {
            add_fp8(shape, model.config, out);
        } else if (format == "int4" && shape.name.find(".experts.") != std::string::npos) {
            add_int4(shape, out);
        } else {
            const std::vector<float> values = plain_values(shape, model.weights);
            const bool f32 = ends(shape.name, "correction_bias");
            out.push_back({shape.name, f32 ? "F32" : "BF16", shape.dims,
                           f32 ? packed(values) : bf16_bytes(values)});
        }
    }
    return out;
}

GgufWriter deepseek_gguf(const DeepseekCase& model, const DeepseekGgufOptions& options) {
    return DeepseekGguf(model, options).make();
}

}  // namespace kd
