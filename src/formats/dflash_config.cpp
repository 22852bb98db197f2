#include "formats/dflash_config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/views.h"
#include "formats/config_readers.h"
#include "formats/json_file.h"
#include "formats/mapped_file.h"

namespace kd {

namespace {

constexpr int64_t kMaxRank = 4096;

constexpr std::string_view kArchitectures[] = {"DFlashDraftModel", "DSparkDraftModel",
                                               "DFlashSpeculator", "DSparkSpeculator"};

/// The parts of a config.json among which the publishers spread the same fields.
struct Parts {
    JsonNode root;
    JsonNode transformer;            // the root, or speculators' transformer_layer_config
    std::optional<JsonNode> dflash;  // dflash_config
    bool speculators = false;

    /// A field of the drafter as a whole: in dflash_config, or beside it.
    std::optional<JsonNode> find(std::string_view key) const {
        if (dflash) {
            if (std::optional<JsonNode> found = dflash->find(key)) return found;
        }
        return root.find(key);
    }
    JsonNode at(std::string_view key) const {
        std::optional<JsonNode> found = find(key);
        if (!found) return root.at(key);  // says that it is missing
        return *found;
    }
    bool flag(std::string_view key, bool fallback) const {
        const std::optional<JsonNode> found = find(key);
        return found ? found->boolean() : fallback;
    }
};

[[noreturn]] void refuse(const JsonNode& node, std::string_view why) {
    KD_THROW(unsupported, "{}: {}: {}", node.where(), node.describe(), why);
}

int32_t size_at(const JsonNode& node, std::string_view key, int64_t max) {
    return static_cast<int32_t>(node.at(key).integer(1, max));
}

void check_architecture(const Parts& parts) {
    const JsonNode list = parts.root.at("architectures");
    if (list.count() != 1) list.refuse("an array of one name");
    const std::string& name = list.at(0).string();
    if (std::ranges::find(kArchitectures, name) == std::end(kArchitectures)) {
        KD_THROW(unsupported,
                 "{}: '{}' is none of DFlashDraftModel, DSparkDraftModel, "
                 "DFlashSpeculator, DSparkSpeculator",
                 list.at(0).where(), printable(name));
    }
    if (const auto type = parts.transformer.find("model_type"); type && type->string() != "qwen3") {
        refuse(*type, "only layers of qwen3 are supported");
    }
    if (const auto act = parts.transformer.find("hidden_act"); act && act->string() != "silu") {
        refuse(*act, "only silu is supported");
    }
    if (const auto type = parts.find("projector_type");
        type && type->string() != "dspark" && type->string() != "dflash") {
        refuse(*type, "only dflash and dspark are supported");
    }
}

/// What changes the computation in ways that are not implemented is not to be overlooked.
void check_neutral(const Parts& parts) {
    for (const std::string_view key :
         {"shift_label", "use_swa", "attention_sink_bias", "pure_draft_prefix_len",
          "dspark_backbone_conv_enabled", "conv_kernel_size", "selector_rank", "selector_top_k",
          "final_logit_softcapping", "use_heterogeneous_kv"}) {
        const std::optional<JsonNode> found = parts.find(key);
        if (!found) continue;
        const Json& value = found->json();
        const bool off = (value.is_boolean() && !value.get<bool>()) ||
                         (value.is_number() && value.get<double>() == 0);
        if (!off) refuse(*found, "not supported");
    }
    for (const std::string_view key :
         {"input_embedding_scale", "output_multiplier", "logit_scale"}) {
        const std::optional<JsonNode> found = parts.find(key);
        if (found && found->number(-1e30, 1e30) != 1) refuse(*found, "only 1 is supported");
    }
}

void read_shape(const Parts& parts, DflashConfig& config) {
    const JsonNode& node = parts.transformer;
    config.hidden = size_at(node, "hidden_size", kMaxHidden);
    config.intermediate = size_at(node, "intermediate_size", kMaxIntermediate);
    config.heads = size_at(node, "num_attention_heads", kMaxHeads);
    config.kv_heads = size_at(node, "num_key_value_heads", kMaxHeads);
    check_kv_heads(config.heads, config.kv_heads, node.at("num_key_value_heads").where());
    if (const auto dim = node.find("head_dim")) {
        config.head_dim = static_cast<int32_t>(dim->integer(1, INT32_MAX));
    } else {
        if (config.hidden % config.heads != 0) {
            KD_THROW(corrupt,
                     "{}: hidden_size {} is no multiple of num_attention_heads {}, and "
                     "head_dim is missing",
                     config.path, config.hidden, config.heads);
        }
        config.head_dim = config.hidden / config.heads;
    }
    check_head_dim(config.head_dim,
                   node.at(node.find("head_dim") ? "head_dim" : "num_attention_heads").where());
    if (const auto bias = node.find("attention_bias")) config.attention_bias = bias->boolean();
    config.norm_epsilon = node.at("rms_norm_eps").number(1e-12, 0.1);
    config.vocabulary = size_at(node, "vocab_size", kMaxVocabulary);
    config.draft_vocabulary = config.vocabulary;
    if (const auto draft = parts.root.find("draft_vocab_size")) {
        config.draft_vocabulary = static_cast<int32_t>(draft->integer(1, config.vocabulary));
    }
}

void read_rope(const Parts& parts, DflashConfig& config) {
    const JsonNode& node = parts.transformer;
    const std::optional<JsonNode> newer = node.find("rope_parameters");
    if (!newer || !newer->find("rope_theta")) node.at("rope_theta");  // there has to be one
    ModelConfig rope;
    rope.context_length = static_cast<int32_t>(
        integer_or(node, "max_position_embeddings", kMaxContext, 1, kMaxContext));
    read_hf_rope(node, rope);
    config.rope_base = rope.rope_base;
    config.rope_scaling = rope.rope_scaling;
}

/// Which rows of the block a layer's rows see: is_causal, dflash_config.causal and JetSpec's
/// causal_head hold for all layers; without them sliding layers are causal and full ones are not.
/// speculators: the same, but for sliding_window_non_causal.
std::optional<bool> stated_causal(const Parts& parts) {
    if (parts.speculators) return std::nullopt;
    for (const std::string_view key : {"is_causal", "causal", "causal_head"}) {
        if (const std::optional<JsonNode> found = parts.find(key)) return found->boolean();
    }
    return std::nullopt;
}

void read_layers(const Parts& parts, DflashConfig& config) {
    const JsonNode& node = parts.transformer;
    const int32_t layers = size_at(node, "num_hidden_layers", kMaxLayers);
    const std::optional<JsonNode> types = node.find("layer_types");
    const std::optional<JsonNode> use_window = node.find("use_sliding_window");
    if (!types && use_window && use_window->boolean()) {
        KD_THROW(corrupt, "{}: use_sliding_window without layer_types", config.path);
    }
    if (types && types->count() != static_cast<size_t>(layers)) {
        KD_THROW(corrupt, "{}: {} layer_types for num_hidden_layers {}", config.path,
                 types->count(), layers);
    }
    const std::optional<bool> causal = stated_causal(parts);
    const bool sliding_causal =
        !parts.speculators || !parts.flag("sliding_window_non_causal", false);
    config.window_from_anchor = parts.speculators;
    for (int32_t i = 0; i < layers; ++i) {
        DflashAttention& layer = config.layers.emplace_back();
        bool sliding = false;
        if (types) {
            const JsonNode type = types->at(static_cast<size_t>(i));
            sliding = type.string() == "sliding_attention";
            if (!sliding && type.string() != "full_attention") {
                refuse(type, "neither full_attention nor sliding_attention");
            }
        }
        layer.causal = causal.value_or(sliding && sliding_causal);
        if (!sliding) continue;
        if (use_window && !use_window->boolean()) {
            KD_THROW(corrupt, "{}: a sliding_attention layer, and use_sliding_window is false",
                     config.path);
        }
        layer.window = size_at(node, "sliding_window", kMaxContext);
        if (layer.window < config.block) {
            KD_THROW(unsupported, "{}: sliding_window {} is smaller than block_size {}",
                     config.path, layer.window, config.block);
        }
    }
}

void read_block(const Parts& parts, DflashConfig& config) {
    config.block = static_cast<int32_t>(parts.at("block_size").integer(1, kMaxDraftDepths));
    config.mask_token =
        static_cast<int32_t>(parts.at("mask_token_id").integer(0, config.vocabulary - 1));
    // DSpark drafts from the anchor's row unless it says otherwise.
    bool dspark = false;
    if (const auto type = parts.find("projector_type")) dspark = type->string() == "dspark";
    if (const auto type = parts.root.find("speculators_model_type")) {
        dspark = type->string() == "dspark";
    }
    const bool from_anchor = parts.flag("sample_from_anchor", dspark);
    const bool shifted = parts.flag("draft_shift", false);  // JetSpec; the last row drafts nothing
    config.first_row = from_anchor || shifted ? 0 : 1;
    config.drafts = from_anchor ? config.block : config.block - 1;
    if (config.drafts == 0) {
        KD_THROW(unsupported, "{}: block_size {} drafts nothing", config.path, config.block);
    }
}

void read_target(const Parts& parts, DflashConfig& config) {
    // speculators counts the embedding as 0; its 1 is the first layer's output.
    const JsonNode ids = parts.speculators ? parts.root.at("aux_hidden_state_layer_ids")
                                           : parts.at("target_layer_ids");
    const int64_t first = parts.speculators ? 1 : 0;
    if (ids.count() == 0 || ids.count() > static_cast<size_t>(kMaxLayers)) {
        ids.refuse(fmt::format("an array of 1 to {} layers", kMaxLayers));
    }
    for (size_t i = 0; i < ids.count(); ++i) {
        const auto layer = static_cast<int32_t>(ids.at(i).integer(first, kMaxLayers) - first);
        if (i > 0 && layer <= config.target_layers.back()) {
            KD_THROW(corrupt, "{}: {} behind {}: layers have to ascend", ids.at(i).where(),
                     layer + first, config.target_layers.back() + first);
        }
        config.target_layers.push_back(layer);
    }
    config.target_hidden = config.hidden;
    if (const auto hidden = parts.find("target_hidden_size")) {
        config.target_hidden = static_cast<int32_t>(hidden->integer(1, kMaxHidden));
    }
    if (const auto count = parts.root.find("num_target_layers")) {
        config.target_layer_count = static_cast<int32_t>(count->integer(1, kMaxLayers));
    }
}

void read_head(const Parts& parts, DflashConfig& config) {
    if (const auto rank = parts.find("markov_rank")) {
        config.head_rank = static_cast<int32_t>(rank->integer(0, kMaxRank));
    }
    if (config.head_rank > 0) {
        config.head = DraftHeadType::markov;
        if (const auto type = parts.find("markov_head_type")) {
            if (type->string() == "gated") {
                config.head = DraftHeadType::gated_markov;
            } else if (type->string() != "vanilla") {
                refuse(*type, "only vanilla and gated are supported");
            }
        }
    }
    config.confidence_head = parts.flag("enable_confidence_head", false);
}

/// A name inside the folder.
std::string file_name(const JsonNode& node) {
    const std::string& name = node.string();
    if (!is_plain_file_name(name)) node.refuse("the name of a file in the folder");
    return name;
}

void read_additions(const JsonNode& root, DflashConfig& config) {
    const std::optional<JsonNode> ours = root.find("kdtree");
    if (!ours) return;
    constexpr std::array<std::string_view, 4> kMembers = {"weights", "residual_head",
                                                          "greedy_power", "target_sha256"};
    for (const auto& [key, value] : ours->json().items()) {
        if (std::ranges::find(kMembers, key) == kMembers.end()) {
            KD_THROW(unsupported, "{}: '{}' is not known", ours->where(), printable(key));
        }
    }
    if (const auto name = ours->find("weights")) config.weights = file_name(*name);
    if (const auto name = ours->find("residual_head")) {
        if (config.head != DraftHeadType::none) refuse(*name, "there is a Markov head already");
        config.residual_head = file_name(*name);
        config.head = DraftHeadType::residual;
    }
    if (const auto powers = ours->find("greedy_power")) {
        if (powers->count() != static_cast<size_t>(config.drafts)) {
            powers->refuse(fmt::format("an array of {}, one a draft", config.drafts));
        }
        for (size_t i = 0; i < powers->count(); ++i) {
            config.greedy_power.push_back(static_cast<float>(powers->at(i).number(0.1, 10)));
        }
    }
    if (const auto sha = ours->find("target_sha256")) {
        config.target_sha256 = sha->string();
        if (config.target_sha256.size() != 64 ||
            config.target_sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
            sha->refuse("64 lower-case hex digits");
        }
    }
}

}  // namespace

bool is_dflash_folder(const std::string& folder) {
    const std::string path = folder + "/config.json";
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return false;
    const Json json = read_json_file(path);
    const auto classes = json.find("architectures");
    if (classes == json.end() || !classes->is_array()) return false;
    return std::ranges::any_of(*classes, [](const Json& name) {
        return name.is_string() && std::ranges::find(kArchitectures, name.get<std::string>()) !=
                                       std::end(kArchitectures);
    });
}

DflashConfig read_dflash_config(const std::string& folder) {
    DflashConfig config{.path = folder + "/config.json"};
    const Json json = read_json_file(config.path);
    const JsonNode root(json, config.path);
    const bool speculators = root.find("speculators_model_type").has_value();
    const Parts parts = {.root = root,
                         .transformer = speculators ? root.at("transformer_layer_config") : root,
                         .dflash = root.find("dflash_config"),
                         .speculators = speculators};
    check_architecture(parts);
    check_neutral(parts);
    read_shape(parts, config);
    read_rope(parts, config);
    read_block(parts, config);
    read_layers(parts, config);
    read_target(parts, config);
    read_head(parts, config);
    read_additions(root, config);
    return config;
}

void check_dflash_target(const DflashConfig& config, const ModelConfig& target) {
    const auto refuse = [&](std::string_view what, int64_t drafter, int64_t model) {
        KD_THROW(invalid_argument,
                 "{}: {} {}, and the target has {}: the drafter was made for "
                 "another model",
                 config.path, what, drafter, model);
    };
    if (config.target_hidden != target.hidden) {
        refuse("target_hidden_size", config.target_hidden, target.hidden);
    }
    if (config.vocabulary != target.vocabulary) {
        refuse("vocab_size", config.vocabulary, target.vocabulary);
    }
    if (config.target_layer_count != 0 && config.target_layer_count != target.layers) {
        refuse("num_target_layers", config.target_layer_count, target.layers);
    }
    if (config.target_layers.back() >= target.layers) {
        refuse("target_layer_ids up to", config.target_layers.back(), target.layers);
    }
}

}  // namespace kd
