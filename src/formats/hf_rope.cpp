// Rotary position embedding as a config.json describes it.
#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/error.h"
#include "formats/config_readers.h"

namespace kd {

namespace {

void read_scaling(const JsonNode& json, const JsonNode& rope, const std::string& type,
                  ModelConfig& config) {
    constexpr std::array<std::string_view, 14> kKnown = {
        "rope_type",        "type",
        "rope_theta",       "partial_rotary_factor",
        "factor",           "beta_fast",
        "beta_slow",        "original_max_position_embeddings",
        "mscale",           "mscale_all_dim",
        "truncate",         "low_freq_factor",
        "high_freq_factor", "attention_factor"};
    for (const auto& [key, value] : rope.json().items()) {
        if (value.is_null() || std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end())
            continue;
        KD_THROW(unsupported, "{}: is not supported", rope.at(key).where());
    }
    if (type == "default") return;
    RopeScaling& scaling = config.rope_scaling;
    if (type == "linear") {
        scaling.type = RopeScalingType::linear;
        scaling.factor = rope.at("factor").number(kMinRopeFactor, kMaxRopeFactor);
        return;
    }
    // One beside the object wins; without any it is the whole context.
    const JsonNode& place = json.find("original_max_position_embeddings") ? json : rope;
    scaling.original_context = static_cast<int32_t>(integer_or(
        place, "original_max_position_embeddings", config.context_length, 1, kMaxContext));
    if (type == "llama3") {
        scaling.type = RopeScalingType::llama3;
        scaling.factor = rope.at("factor").number(kMinRopeFactor, kMaxRopeFactor);
        scaling.low_frequency_factor = rope.at("low_freq_factor").number(1e-6, 1e6);
        scaling.high_frequency_factor = rope.at("high_freq_factor").number(1e-6, 1e6);
        if (scaling.high_frequency_factor <= scaling.low_frequency_factor) {
            KD_THROW(corrupt, "{}: {} is not above low_freq_factor {}",
                     rope.at("high_freq_factor").where(), scaling.high_frequency_factor,
                     scaling.low_frequency_factor);
        }
        return;
    }
    scaling.type = RopeScalingType::yarn;
    scaling.factor = number_or(
        rope, "factor",
        static_cast<double>(config.context_length) / std::max(1, scaling.original_context),
        kMinRopeFactor, kMaxRopeFactor);
    // 0 counts as absent.
    const auto beta = [&](std::string_view key, double fallback) {
        const double stated = number_or(rope, key, 0, 0, 1e6);
        return stated == 0 ? fallback : stated;
    };
    scaling.beta_fast = beta("beta_fast", 32);
    scaling.beta_slow = beta("beta_slow", 1);
    scaling.mscale = number_or(rope, "mscale", 0, 0, 1e3);
    scaling.mscale_all_dim = number_or(rope, "mscale_all_dim", 0, 0, 1e3);
    scaling.attention_factor = number_or(rope, "attention_factor", 0, 1e-6, 1e6);
    scaling.truncate = boolean_or(rope, "truncate", true);
}

}  // namespace

void read_hf_rope(const JsonNode& json, ModelConfig& config) {
    config.rope_base = number_or(json, "rope_theta", 10000, kMinRopeBase, kMaxRopeBase);
    std::optional<JsonNode> rope = json.find("rope_scaling");
    if (!rope || rope->json().empty()) rope = json.find("rope_parameters");
    for (const std::optional<JsonNode>& place : {std::optional(json), rope}) {
        const std::optional<JsonNode> partial =
            place ? place->find("partial_rotary_factor") : std::nullopt;
        if (partial && partial->number(0, 1) != 1) {
            KD_THROW(unsupported, "{}: {} is not supported", partial->where(),
                     partial->json().dump());
        }
    }
    if (!rope) return;
    config.rope_base = number_or(*rope, "rope_theta", config.rope_base, kMinRopeBase, kMaxRopeBase);
    std::optional<JsonNode> type = rope->find("rope_type");
    if (!type) type = rope->find("type");
    if (!type && rope->find("factor")) {
        KD_THROW(unsupported, "{}: a factor without rope_type", rope->where());
    }
    if (!type || type->string() == "default") {
        read_scaling(json, *rope, "default", config);
    } else if (type->string() == "linear" || type->string() == "llama3" ||
               type->string() == "yarn") {
        read_scaling(json, *rope, type->string(), config);
    } else {
        refuse_string(*type);
    }
}

}  // namespace kd
