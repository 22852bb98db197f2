// What is refused about the sizes and experts of DeepSeek models, and what absent fields mean.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "formats/model_config.h"
#include "formats/model_file.h"
#include "support/deepseek_model.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

Json base_config() {
    return Json::parse(R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "attention_bias": false, "first_k_dense_replace": 1, "hidden_size": 32,
        "intermediate_size": 32, "kv_lora_rank": 16, "max_position_embeddings": 128,
        "moe_intermediate_size": 32, "n_group": 2, "n_routed_experts": 4, "n_shared_experts": 1,
        "norm_topk_prob": true, "num_attention_heads": 2, "num_experts_per_tok": 2,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "q_lora_rank": 16,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
        "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 8, "vocab_size": 300})");
}

/// The folder's config.json without `config`'s changes would be read: its tensors do not change.
class ConfigFolder {
  public:
    ConfigFolder() {
        write_hf_folder(folder_, base_config(),
                        deepseek_checkpoint({.config = base_config(), .weights = Json::object()}));
    }

    ModelConfig read(const Json& config) const {
        folder_.write("config.json", config.dump());
        return read_model_config(ModelFile(folder_.path()));
    }
    /// The refusal, without the path of config.json.
    std::string error(const std::function<void(Json&)>& change) const {
        Json config = base_config();
        change(config);
        try {
            read(config);
            return "no error";
        } catch (const Error& error) {
            const std::string path = folder_.path() + "/config.json: ";
            const std::string message = error.what();
            EXPECT_TRUE(message.starts_with(path)) << message;
            EXPECT_EQ(message.find('\n'), message.npos);
            return message.substr(std::min(message.size(), path.size()));
        }
    }
    std::string error_with(const char* key, const Json& value) const {
        return error([&](Json& config) { config[key] = value; });
    }

  private:
    TempFolder folder_;
};

TEST(DeepseekConfig, IsReadFromAFolder) {
    const ModelConfig c = ConfigFolder().read(base_config());
    EXPECT_EQ(c.architecture, "deepseek2");
    EXPECT_EQ(c.heads, 2);
    EXPECT_EQ(c.kv_heads, 1);
    EXPECT_EQ(c.head_dim, 16);
    EXPECT_EQ(c.rope_dim, 8);
    EXPECT_EQ(c.rope_pairing, RopePairing::adjacent);
    EXPECT_EQ(c.mla.q_lora, 16);
    EXPECT_EQ(c.mla.kv_lora, 16);
    EXPECT_EQ(c.mla.nope, 8);
    EXPECT_EQ(c.mla.value, 8);
    EXPECT_EQ(c.moe.experts, 4);
    EXPECT_EQ(c.moe.used, 2);
    EXPECT_EQ(c.moe.groups, 2);
    EXPECT_EQ(c.moe.groups_used, 1);
    EXPECT_EQ(c.moe.first_dense, 1);
    EXPECT_EQ(c.moe.scale, 2.5);
    EXPECT_TRUE(c.moe.normalise);
    EXPECT_EQ(c.moe.scoring, MoeScoring::sigmoid);
}

TEST(DeepseekConfig, AbsentFieldsAreTheDefaultsOfTransformers) {
    const ConfigFolder folder;
    Json v3 = base_config();
    for (const char* key : {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                            "v_head_dim", "n_routed_experts", "num_experts_per_tok", "n_group",
                            "topk_group", "moe_intermediate_size", "n_shared_experts",
                            "routed_scaling_factor", "norm_topk_prob", "first_k_dense_replace"}) {
        v3.erase(key);
    }
    const ModelConfig c = folder.read(v3);
    EXPECT_EQ(c.mla.q_lora, 1536);
    EXPECT_EQ(c.mla.kv_lora, 512);
    EXPECT_EQ(c.mla.nope, 128);
    EXPECT_EQ(c.mla.rope, 64);
    EXPECT_EQ(c.mla.value, 128);
    EXPECT_EQ(c.moe.experts, 256);
    EXPECT_EQ(c.moe.used, 8);
    EXPECT_EQ(c.moe.groups, 8);
    EXPECT_EQ(c.moe.groups_used, 4);
    EXPECT_EQ(c.moe.intermediate, 2048);
    EXPECT_EQ(c.moe.shared, 1);
    EXPECT_EQ(c.moe.scale, 2.5);
    EXPECT_TRUE(c.moe.normalise);
    EXPECT_EQ(c.moe.first_dense, 3);
    EXPECT_EQ(c.mtp_layers, 1);
}

TEST(DeepseekConfig, RefusesWhatItDoesNotCompute) {
    const ConfigFolder folder;
    EXPECT_EQ(folder.error_with("scoring_func", "softmax"),
              "scoring_func: 'softmax' is not supported");
    EXPECT_EQ(folder.error_with("topk_method", "greedy"), "topk_method: 'greedy' is not supported");
    EXPECT_EQ(folder.error_with("moe_layer_freq", 2), "moe_layer_freq: 2 is not supported");
    EXPECT_EQ(folder.error_with("num_key_value_heads", 1),
              "num_key_value_heads: 1 for 2 heads is not supported");
    EXPECT_EQ(folder.error_with("hidden_act", "gelu"), "hidden_act: 'gelu' is not supported");
    EXPECT_EQ(folder.error_with("n_group", 3), "3 groups do not divide 4 experts");
    EXPECT_EQ(folder.error_with("num_experts_per_tok", 3),
              "1 of 2 groups of 2 experts hold less than the 3 used");
    EXPECT_EQ(folder.error_with("qk_rope_head_dim", 7), "qk_rope_head_dim: 7 is odd");
    EXPECT_EQ(folder.error_with("attention_bias", true),
              "DeepseekV3ForCausalLM with attention_bias true, but tensor "
              "model.layers.0.self_attn.q_a_proj.bias is missing");
    EXPECT_EQ(folder.error_with("model_type", "deepseek_v2"),
              "model_type: 'deepseek_v2' is not that of DeepseekV3ForCausalLM");
}

TEST(DeepseekConfig, RefusesSizesThatCannotBe) {
    const ConfigFolder folder;
    for (const char* key : {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                            "v_head_dim", "n_routed_experts", "num_experts_per_tok", "n_group",
                            "topk_group", "moe_intermediate_size", "num_attention_heads"}) {
        for (const Json& value : {Json(0), Json(-1), Json(int64_t{1} << 62), Json(1.5), Json("8"),
                                  Json::array({1}), Json(true)}) {
            EXPECT_TRUE(folder.error_with(key, value).starts_with(key)) << key << " " << value;
        }
    }
    EXPECT_TRUE(
        folder.error_with("routed_scaling_factor", -1).starts_with("routed_scaling_factor"));
    EXPECT_EQ(folder.error([](Json& c) {
        c["n_shared_experts"] = 65536;
        c["moe_intermediate_size"] = 1 << 20;
    }),
              "65536 shared experts of 1048576 elements are more than 1048576 together");
}

TEST(DeepseekConfig, V2HasItsOwnRouter) {
    const ConfigFolder folder;
    const auto v2 = [](Json& c) {
        c["architectures"] = {"DeepseekV2ForCausalLM"};
        c["model_type"] = "deepseek_v2";
        c["scoring_func"] = "softmax";
        c["topk_method"] = "greedy";
        c["norm_topk_prob"] = false;
    };
    Json config = base_config();
    v2(config);
    const ModelConfig greedy = folder.read(config);
    EXPECT_EQ(greedy.moe.scoring, MoeScoring::softmax);
    EXPECT_EQ(greedy.moe.groups, 1);
    EXPECT_FALSE(greedy.moe.normalise);
    EXPECT_EQ(greedy.mtp_layers, 0);
    config["topk_method"] = "group_limited_greedy";
    EXPECT_EQ(folder.read(config).moe.groups, 2);
    const auto error = [&](const char* key, const Json& value) {
        return folder.error([&](Json& c) {
            v2(c);
            c[key] = value;
        });
    };
    EXPECT_EQ(error("topk_method", "noaux_tc"), "topk_method: 'noaux_tc' is not supported");
    EXPECT_EQ(error("norm_topk_prob", true), "norm_topk_prob: true is not supported");
    EXPECT_EQ(error("scoring_func", "sigmoid"), "scoring_func: 'sigmoid' is not supported");
}

/// A GGUF file with one key set again behind the right ones; the first is overwritten in place.
std::string gguf_error(std::string_view key, uint32_t value) {
    GgufWriter writer = deepseek_gguf({.config = base_config(), .weights = Json::object()});
    std::string bytes = writer.bytes();
    const std::string entry =
        raw_string(key) + raw_bytes(static_cast<uint32_t>(GgufValueType::u32));
    const size_t at = bytes.find(entry);
    EXPECT_NE(at, bytes.npos) << key;
    bytes.replace(at + entry.size(), 4, raw_bytes(value));
    const TempPath file;
    write_test_file(file.path(), bytes);
    try {
        read_model_config(ModelFile(file.path()));
        return "no error";
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_TRUE(message.starts_with(file.path() + ": ")) << message;
        return message.substr(file.path().size() + 2);
    }
}

TEST(DeepseekConfig, RefusesKeysThatContradictEachOther) {
    EXPECT_EQ(gguf_error("deepseek2.attention.key_length", 25),
              "metadata 'deepseek2.attention.key_length': 25, but the other sizes make 24");
    EXPECT_EQ(gguf_error("deepseek2.attention.value_length", 8),
              "metadata 'deepseek2.attention.value_length': 8, but the other sizes make 16");
    EXPECT_EQ(gguf_error("deepseek2.attention.key_length_mla", 8),
              "metadata 'deepseek2.rope.dimension_count': 8 of 8 elements a head rotate");
    EXPECT_EQ(gguf_error("deepseek2.expert_group_count", 3), "3 groups do not divide 4 experts");
    EXPECT_EQ(gguf_error("deepseek2.expert_gating_func", 3),
              "metadata 'deepseek2.expert_gating_func': 3 is not supported (1, softmax, and 2, "
              "sigmoid, are)");
    for (const char* name :
         {"attention.kv_lora_rank", "attention.q_lora_rank", "attention.key_length_mla",
          "attention.value_length_mla", "rope.dimension_count", "expert_used_count",
          "expert_feed_forward_length", "expert_group_used_count"}) {
        const std::string key = fmt::format("deepseek2.{}", name);
        for (const uint32_t value : {0u, 0xffffffffu}) {
            EXPECT_TRUE(gguf_error(key, value).starts_with(fmt::format("metadata '{}'", key)))
                << key << " " << value;
        }
    }
}

}  // namespace
}  // namespace kd
