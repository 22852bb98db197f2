// ModelConfig from the config.json of a Hugging Face folder. Defaults of absent fields and the
// meaning of each are those of transformers 5.24.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "formats/config_readers.h"
#include "formats/hf_folder.h"
#include "formats/mapped_file.h"

namespace kd {

int64_t integer_or(const JsonNode& node, std::string_view key, int64_t fallback, int64_t min,
                   int64_t max) {
    const std::optional<JsonNode> value = node.find(key);
    return value ? value->integer(min, max) : fallback;
}

double number_or(const JsonNode& node, std::string_view key, double fallback, double min,
                 double max) {
    const std::optional<JsonNode> value = node.find(key);
    return value ? value->number(min, max) : fallback;
}

bool boolean_or(const JsonNode& node, std::string_view key, bool fallback) {
    const std::optional<JsonNode> value = node.find(key);
    return value ? value->boolean() : fallback;
}

void refuse_string(const JsonNode& value) {
    KD_THROW(unsupported, "{}: '{}' is not supported", value.where(), printable(value.string()));
}

namespace {

/// A class of models that is computed by one of our architectures.
struct Family {
    std::string_view class_name;
    std::string_view model_type;
    std::string_view architecture;
    int32_t head_dim = 0;  // where head_dim is absent; 0: hidden / heads
};

constexpr std::array<Family, 8> kFamilies = {{
    {"LlamaForCausalLM", "llama", "llama"},
    {"MistralForCausalLM", "mistral", "llama"},
    {"Qwen2ForCausalLM", "qwen2", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3", "qwen3", 128},
    {"DeepseekV2ForCausalLM", "deepseek_v2", "deepseek2"},
    {"DeepseekV3ForCausalLM", "deepseek_v3", "deepseek2"},
    {"DeepseekV3ForCausalLM", "kimi_k2", "deepseek2"},
    {"KimiK25ForConditionalGeneration", "kimi_k25", "deepseek2"},
}};

class Reader {
  public:
    Reader(const HfFolder& folder, ModelConfig& config)
        : folder_(folder), config_(config), json_(folder.config()) {}

    void read_family();
    void read_sizes();
    void read_heads();
    void read_rope() { read_hf_rope(json_, config_); }
    void read_experts();
    void refuse_windows() const;
    void check_optional_weights() const;

  private:
    int32_t positive(std::string_view key, int64_t max) const {
        return static_cast<int32_t>(json_.at(key).integer(1, max));
    }
    bool is_deepseek() const { return config_.architecture == "deepseek2"; }
    void enter_text_config();
    std::vector<std::string_view> biased_projections() const;
    void expect(bool wanted, std::string_view reason, const std::string& tensor) const;

    const HfFolder& folder_;
    ModelConfig& config_;
    JsonNode json_;
    Family family_;
};

void Reader::read_family() {
    const std::optional<JsonNode> classes = json_.find("architectures");
    if (classes && classes->count() != 1) {
        KD_THROW(unsupported, "{}: {} classes, not one", classes->where(), classes->count());
    }
    const JsonNode named = classes ? classes->at(size_t{0}) : json_.at("model_type");
    const std::string& name = named.string();
    const std::optional<JsonNode> type = json_.find("model_type");
    const auto is_named = [&](const Family& family) {
        return name == (classes ? family.class_name : family.model_type);
    };
    if (std::none_of(kFamilies.begin(), kFamilies.end(), is_named)) refuse_string(named);
    const auto found = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& family) {
        return is_named(family) && (!type || type->string() == family.model_type);
    });
    if (found == kFamilies.end()) {
        KD_THROW(corrupt, "{}: '{}' is not that of {}", type->where(), printable(type->string()),
                 printable(name));
    }
    family_ = *found;
    if (family_.model_type == "kimi_k25") enter_text_config();
    config_.architecture = family_.architecture;
    config_.rope_pairing = RopePairing::half;
    const std::optional<JsonNode> activation = json_.find("hidden_act");
    if (activation && activation->string() != "silu") refuse_string(*activation);
}

/// The language model is a part of the whole and has its own fields.
void Reader::enter_text_config() {
    json_ = json_.at("text_config");
    const JsonNode type = json_.at("model_type");
    if (type.string() != "kimi_k2" && type.string() != "deepseek_v3") refuse_string(type);
}

void Reader::read_sizes() {
    config_.layers = positive("num_hidden_layers", kMaxLayers);
    config_.hidden = positive("hidden_size", kMaxHidden);
    config_.intermediate = positive("intermediate_size", kMaxIntermediate);
    config_.context_length = positive("max_position_embeddings", kMaxContext);
    config_.vocabulary = positive("vocab_size", kMaxVocabulary);
    config_.norm_epsilon = number_or(json_, "rms_norm_eps", 1e-6, kMinEpsilon, kMaxEpsilon);
}

void Reader::read_experts() {
    if (is_deepseek()) read_deepseek_experts(json_, family_.model_type == "deepseek_v2", config_);
}

void Reader::read_heads() {
    if (is_deepseek()) {
        return read_deepseek_heads(json_, family_.model_type == "deepseek_v2", config_);
    }
    config_.heads = positive("num_attention_heads", kMaxHeads);
    // Only one class takes an absent field for as many as there are heads; null means so always.
    const bool optional =
        family_.model_type == "llama" || json_.json().contains("num_key_value_heads");
    config_.kv_heads = static_cast<int32_t>(
        optional ? integer_or(json_, "num_key_value_heads", config_.heads, 1, config_.heads)
                 : json_.at("num_key_value_heads").integer(1, config_.heads));
    check_kv_heads(config_.heads, config_.kv_heads, json_.where() + ": num_key_value_heads");
    if (const std::optional<JsonNode> dim = json_.find("head_dim")) {
        config_.head_dim = static_cast<int32_t>(dim->integer(1, INT32_MAX));
    } else if (family_.head_dim != 0) {
        config_.head_dim = family_.head_dim;
    } else if (config_.hidden % config_.heads == 0) {
        config_.head_dim = config_.hidden / config_.heads;
    } else {
        KD_THROW(corrupt, "{}: {} heads in {} elements", json_.at("num_attention_heads").where(),
                 config_.heads, config_.hidden);
    }
    check_head_dim(config_.head_dim,
                   json_.at(json_.find("head_dim") ? "head_dim" : "num_attention_heads").where());
    config_.rope_dim = config_.head_dim;
}

/// Attention windows that end before the context does.
void Reader::refuse_windows() const {
    int64_t window = 0;  // none
    if (family_.model_type == "mistral" && !json_.json().contains("sliding_window")) {
        window = 4096;
    } else if (!family_.model_type.starts_with("qwen") ||
               boolean_or(json_, "use_sliding_window", false)) {
        window = integer_or(json_, "sliding_window", 0, 1, INT32_MAX);
    }
    if (window != 0 && window < config_.context_length) {
        KD_THROW(unsupported,
                 "{}: sliding_window: a window of {} in a context of {} is not supported",
                 json_.where(), window, config_.context_length);
    }
    const std::optional<JsonNode> types = json_.find("layer_types");
    for (size_t i = 0; types && i < types->count(); ++i) {
        const JsonNode type = types->at(i);
        if (type.string() != "full_attention") refuse_string(type);
    }
}

void Reader::expect(bool wanted, std::string_view reason, const std::string& tensor) const {
    const std::string name = fmt::format("{}{}", folder_.name_prefix(), tensor);
    if (wanted == (folder_.find_tensor(name) != nullptr)) return;
    KD_THROW(corrupt, "{}: {}, but tensor {} {}", json_.where(), reason, name,
             wanted ? "is missing" : "is there");
}

/// Those before attention that have biases all or none.
std::vector<std::string_view> Reader::biased_projections() const {
    if (!is_deepseek()) return {"q_proj", "k_proj", "v_proj"};
    if (config_.mla.q_lora == 0) return {"kv_a_proj_with_mqa"};
    return {"q_a_proj", "kv_a_proj_with_mqa"};
}

/// Weights that a class has or has not: the models read those that are there.
void Reader::check_optional_weights() const {
    const std::string_view type = family_.model_type;
    const bool attention =
        type != "mistral" && type != "qwen2" && boolean_or(json_, "attention_bias", false);
    const bool mlp = type == "llama" && boolean_or(json_, "mlp_bias", false);
    const std::string bias =
        fmt::format("{} with attention_bias {}", family_.class_name, attention);
    const std::string mlp_bias = fmt::format("{} with mlp_bias {}", family_.class_name, mlp);
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
        const auto name = [&](std::string_view part) {
            return fmt::format("model.layers.{}.{}", layer, part);
        };
        for (const std::string_view part : biased_projections()) {
            expect(attention || type == "qwen2", bias,
                   name(fmt::format("self_attn.{}.bias", part)));
        }
        expect(attention, bias, name("self_attn.o_proj.bias"));
        for (const std::string_view part : {"gate_proj", "up_proj", "down_proj"}) {
            expect(mlp, mlp_bias, name(fmt::format("mlp.{}.bias", part)));
        }
    }
    // A head that is there is used even where the field says that it is tied.
    if (!boolean_or(json_, "tie_word_embeddings", false)) {
        expect(true, "tie_word_embeddings is false", "lm_head.weight");
    }
}

}  // namespace

ModelConfig read_hf_config(const HfFolder& folder, const AttemptPart& attempt) {
    ModelConfig config;
    Reader reader(folder, config);
    if (!attempt([&] { reader.read_family(); })) return config;
    config.name = folder.name();
    const bool sizes = attempt([&] { reader.read_sizes(); });
    if (sizes && attempt([&] { reader.read_heads(); })) {
        attempt([&] { reader.read_rope(); });
        attempt([&] { reader.check_optional_weights(); });
    }
    if (sizes) attempt([&] { reader.read_experts(); });
    attempt([&] { reader.refuse_windows(); });
    attempt([&] { read_hf_quantisation(folder.config()); });
    return config;
}

}  // namespace kd
