// The parts of ModelConfig that config.json says in other fields for DeepSeek models. Defaults are
// those of DeepseekV2Config and DeepseekV3Config in transformers 5.24.
#include "base/error.h"
#include "formats/config_readers.h"

namespace kd {

namespace {

int32_t size_or(const JsonNode& json, std::string_view key, int64_t fallback, int64_t min,
                int64_t max) {
    return static_cast<int32_t>(integer_or(json, key, fallback, min, max));
}

/// A string that may be left out, and else must be this one.
void expect_string(const JsonNode& json, std::string_view key, std::string_view wanted) {
    const std::optional<JsonNode> value = json.find(key);
    if (value && value->string() != wanted) refuse_string(*value);
}

/// How V2 chooses experts; V3 has one way only.
void read_v2_groups(const JsonNode& json, MoeShape& moe) {
    const std::optional<JsonNode> method = json.find("topk_method");
    const std::string name = method ? method->string() : "greedy";
    if (name == "group_limited_greedy") {
        moe.groups = static_cast<int32_t>(json.at("n_group").integer(1, moe.experts));
        moe.groups_used = static_cast<int32_t>(json.at("topk_group").integer(1, moe.groups));
    } else if (name != "greedy") {
        refuse_string(*method);
    }
    // transformers does not look at the field, the models' first code does: they agree on false.
    if (boolean_or(json, "norm_topk_prob", false)) {
        KD_THROW(unsupported, "{}: true is not supported", json.at("norm_topk_prob").where());
    }
    moe.normalise = false;
}

}  // namespace

void read_deepseek_heads(const JsonNode& json, bool is_v2, ModelConfig& config) {
    MlaShape& mla = config.mla;
    config.heads = static_cast<int32_t>(json.at("num_attention_heads").integer(1, kMaxHeads));
    // All heads share the latent, so other numbers would not mean anything.
    const int64_t kv_heads = integer_or(json, "num_key_value_heads", config.heads, 1, kMaxHeads);
    if (kv_heads != config.heads) {
        KD_THROW(unsupported, "{}: {} for {} heads is not supported",
                 json.at("num_key_value_heads").where(), kv_heads, config.heads);
    }
    config.kv_heads = 1;
    // null: Q is one projection; absent: the default.
    const bool no_q_lora = json.json().contains("q_lora_rank") && !json.find("q_lora_rank");
    mla.q_lora = no_q_lora ? 0 : size_or(json, "q_lora_rank", 1536, 1, kMaxHidden);
    mla.kv_lora = size_or(json, "kv_lora_rank", 512, 1, kMaxHidden);
    mla.nope = size_or(json, "qk_nope_head_dim", 128, 1, kMaxMlaPart);
    mla.rope = size_or(json, "qk_rope_head_dim", 64, 2, kMaxMlaPart);
    mla.value = size_or(json, "v_head_dim", 128, 1, kMaxMlaPart);
    if (mla.rope % 2 != 0) {
        KD_THROW(corrupt, "{}: {} is odd", json.at("qk_rope_head_dim").where(), mla.rope);
    }
    config.head_dim = mla.nope + mla.rope;
    config.rope_dim = mla.rope;
    const bool adjacent = is_v2 || boolean_or(json, "rope_interleave", true);
    config.rope_pairing = adjacent ? RopePairing::adjacent : RopePairing::half;
    config.mtp_layers = size_or(json, "num_nextn_predict_layers", is_v2 ? 0 : 1, 0, kMaxLayers);
}

void read_deepseek_experts(const JsonNode& json, bool is_v2, ModelConfig& config) {
    MoeShape& moe = config.moe;
    moe.experts = size_or(json, "n_routed_experts", is_v2 ? 64 : 256, 1, kMaxExperts);
    moe.used =
        static_cast<int32_t>(is_v2 ? json.at("num_experts_per_tok").integer(1, moe.experts)
                                   : integer_or(json, "num_experts_per_tok", 8, 1, moe.experts));
    moe.intermediate =
        size_or(json, "moe_intermediate_size", is_v2 ? 1407 : 2048, 1, kMaxIntermediate);
    moe.shared = size_or(json, "n_shared_experts", is_v2 ? 2 : 1, 0, kMaxExperts);
    moe.first_dense = size_or(json, "first_k_dense_replace", is_v2 ? 0 : 3, 0, kMaxLayers);
    moe.scale = number_or(json, "routed_scaling_factor", is_v2 ? 1.0 : 2.5, 1e-6, 1e6);
    moe.scoring = is_v2 ? MoeScoring::softmax : MoeScoring::sigmoid;
    expect_string(json, "scoring_func", is_v2 ? "softmax" : "sigmoid");
    if (const int64_t every = integer_or(json, "moe_layer_freq", 1, 1, INT32_MAX); every != 1) {
        KD_THROW(unsupported, "{}: {} is not supported", json.at("moe_layer_freq").where(), every);
    }
    if (is_v2) {
        read_v2_groups(json, moe);
    } else {
        expect_string(json, "topk_method", "noaux_tc");
        moe.groups = size_or(json, "n_group", 8, 1, moe.experts);
        moe.groups_used = size_or(json, "topk_group", 4, 1, moe.groups);
        moe.normalise = boolean_or(json, "norm_topk_prob", true);
    }
    check_experts(moe, json.where());
}

}  // namespace kd
