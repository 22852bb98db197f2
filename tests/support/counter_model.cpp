#include "support/counter_model.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "support/counter_weights.h"
#include "support/tiny_model.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;
};

std::vector<Parameter> parameters_of(const Json& model) {
    std::vector<Parameter> parameters;
    for (const Json& each : model["parameters"]) {
        Parameter p = {.name = each[0].get<std::string>(),
                       .shape = each[1].get<std::vector<int64_t>>()};
        if (p.name.ends_with("norm.weight")) {
            p.values = counter_norm(p.name, p.shape[0]);
        } else if (p.name.ends_with(".bias")) {
            p.values = counter_bias(p.name, p.shape[0]);
        } else if (p.name == "model.embed_tokens.weight") {
            p.values = counter_values(p.name, p.shape[0] * p.shape[1], 0, std::sqrt(3.0));
        } else {
            p.values = counter_matrix(p.name, p.shape[0], p.shape[1]);
        }
        parameters.push_back(std::move(p));
    }
    return parameters;
}

/// Of each head, row i of the first half and row i of the second come to stand side by side.
std::vector<float> permuted(const Parameter& p, int64_t heads) {
    const int64_t columns = p.shape.size() > 1 ? p.shape[1] : 1;
    const int64_t head_rows = p.shape[0] / heads;
    std::vector<float> out;
    for (int64_t row = 0; row < p.shape[0]; ++row) {
        const int64_t in_head = row % head_rows;
        const int64_t from = row - in_head + in_head % 2 * (head_rows / 2) + in_head / 2;
        const auto begin = p.values.begin() + from * columns;
        out.insert(out.end(), begin, begin + columns);
    }
    return out;
}

std::string gguf_name(const std::string& name) {
    static const std::map<std::string, std::string> kNames = {
        {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},       {"model.embed_tokens", "token_embd"},
        {"model.norm", "output_norm"},       {"lm_head", "output"}};
    const size_t last = name.rfind('.');
    const std::string layers = "model.layers.";
    if (!name.starts_with(layers)) return kNames.at(name.substr(0, last)) + name.substr(last);
    const size_t number_end = name.find('.', layers.size());
    return fmt::format("blk.{}.{}{}", name.substr(layers.size(), number_end - layers.size()),
                       kNames.at(name.substr(number_end + 1, last - number_end - 1)),
                       name.substr(last));
}

void set_metadata(GgufWriter& writer, const std::string& architecture, const Json& config) {
    const auto set = [&](const char* key, const char* field) {
        if (!config.contains(field)) return;
        writer.set(fmt::format("{}.{}", architecture, key), config[field].get<uint32_t>());
    };
    writer.set_string("general.architecture", architecture);
    set("block_count", "num_hidden_layers");
    set("context_length", "max_position_embeddings");
    set("embedding_length", "hidden_size");
    set("feed_forward_length", "intermediate_size");
    set("attention.head_count", "num_attention_heads");
    set("attention.head_count_kv", "num_key_value_heads");
    set("attention.key_length", "head_dim");
    set("attention.value_length", "head_dim");
    set("vocab_size", "vocab_size");
    writer.set(architecture + ".attention.layer_norm_rms_epsilon",
               config["rms_norm_eps"].get<float>());
    if (config.contains("rope_theta")) {
        writer.set(architecture + ".rope.freq_base", config["rope_theta"].get<float>());
    }
    std::vector<std::string> tokens;
    for (uint32_t i = 0; i < config["vocab_size"].get<uint32_t>(); ++i) {
        tokens.push_back(fmt::format("t{}", i));
    }
    writer.set_strings("tokenizer.ggml.tokens", tokens);
}

}  // namespace

std::vector<HfTensor> counter_tensors(const Json& model) {
    std::vector<HfTensor> tensors;
    for (const Parameter& p : parameters_of(model)) {
        tensors.push_back(hf_tensor(p.name, DType::bf16, p.shape, p.values));
    }
    return tensors;
}

void write_byte_tokenizer(const TempFolder& folder, int tokens) {
    Json vocabulary = Json::object();
    for (int byte = 0; byte < 256; ++byte) vocabulary[byte_symbol(byte)] = byte;
    Json added = Json::array();
    for (int id = 256; id < tokens; ++id) {
        added.push_back({{"id", id},
                         {"content", fmt::format("<|{}|>", id)},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    }
    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
    const Json json = {
        {"version", "1.0"},
        {"added_tokens", added},
        {"pre_tokenizer", byte_level},
        {"decoder", byte_level},
        {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
    folder.write("tokenizer.json", json.dump());
    folder.write("tokenizer_config.json", Json{{"eos_token", "<|256|>"}}.dump());
}

GgufWriter counter_gguf(const Json& model) {
    const Json& config = model["config"];
    const std::string type = config["model_type"];
    const std::string architecture = type == "mistral" ? "llama" : type;
    GgufWriter writer;
    set_metadata(writer, architecture, config);
    for (Parameter& p : parameters_of(model)) {
        if (architecture == "llama" && p.name.find(".q_proj.") != p.name.npos) {
            p.values = permuted(p, config["num_attention_heads"]);
        }
        if (architecture == "llama" && p.name.find(".k_proj.") != p.name.npos) {
            p.values = permuted(p, config["num_key_value_heads"]);
        }
        if (p.shape.size() == 1) {
            writer.add_tensor(gguf_name(p.name), DType::f32, 0, static_cast<uint64_t>(p.shape[0]),
                              p.values);
        } else {
            writer.add_tensor(gguf_name(p.name), DType::bf16, static_cast<uint64_t>(p.shape[0]),
                              static_cast<uint64_t>(p.shape[1]), p.values);
        }
    }
    return writer;
}

}  // namespace kd
