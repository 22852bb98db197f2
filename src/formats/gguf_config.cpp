// ModelConfig from GGUF metadata.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "formats/config_readers.h"
#include "formats/gguf.h"

namespace kd {

namespace {

constexpr size_t kMaxNameBytes = 256;

/// general.name where it is one short line, else the name of the file.
std::string model_name(const GgufFile& gguf) {
    const std::string_view name = gguf.string_or("general.name", "");
    const bool one_line = std::none_of(name.begin(), name.end(), [](char c) {
        return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
    });
    if (!name.empty() && name.size() <= kMaxNameBytes && one_line) return std::string(name);
    const std::string& path = gguf.file().path();
    return path.substr(path.rfind('/') + 1);
}

/// The keys of one architecture, "llama.block_count" for example.
class Reader {
  public:
    Reader(const GgufFile& gguf, ModelConfig& config) : gguf_(gguf), config_(config) {}

    void read_architecture();
    void refuse_unsupported() const;
    void read_sizes();
    void read_heads();
    void read_rope();
    void read_rope_scaling();
    void read_vocabulary();

  private:
    std::string key(std::string_view name) const {
        return fmt::format("{}.{}", config_.architecture, name);
    }
    bool is_deepseek() const { return config_.architecture == "deepseek2"; }
    bool has(std::string_view name) const { return gguf_.find(key(name)) != nullptr; }
    int32_t positive(std::string_view name, int64_t max) const {
        return static_cast<int32_t>(gguf_.integer(key(name), 1, max));
    }
    double number_or(std::string_view name, double fallback, double min, double max) const {
        return gguf_.number_or(key(name), fallback, min, max);
    }
    /// "PATH: metadata 'KEY'", for a message.
    std::string where(std::string_view name) const {
        return fmt::format("{}: metadata '{}'", path(), key(name));
    }
    double rope_factor(std::string_view name) const;
    const std::string& path() const { return gguf_.file().path(); }

    const GgufFile& gguf_;
    ModelConfig& config_;
};

void Reader::read_architecture() {
    constexpr std::array<std::string_view, 4> kKnown = {"llama", "qwen2", "qwen3", "deepseek2"};
    config_.architecture = gguf_.string("general.architecture");
    if (std::find(kKnown.begin(), kKnown.end(), config_.architecture) == kKnown.end()) {
        KD_THROW(unsupported,
                 "{}: metadata 'general.architecture': '{}' is not supported ('{}' are)", path(),
                 printable(config_.architecture), fmt::join(kKnown, "', '"));
    }
    // The converters to GGUF permute the Q and K rows of llama; DeepSeek's are so from the start.
    const bool adjacent = config_.architecture == "llama" || config_.architecture == "deepseek2";
    config_.rope_pairing = adjacent ? RopePairing::adjacent : RopePairing::half;
}

/// What would change the computation: a file that asks for it must not run without it.
void Reader::refuse_unsupported() const {
    const int64_t experts = gguf_.integer_or(key("expert_count"), 0, 0, kMaxExperts);
    if (experts != 0 && !is_deepseek()) {
        KD_THROW(unsupported, "{}: metadata '{}': {} experts are not supported", path(),
                 key("expert_count"), experts);
    }
    for (const std::string_view name :
         {"logit_scale", "residual_scale", "embedding_scale", "attn_logit_softcapping",
          "final_logit_softcapping", "attention.clamp_kqv", "attention.max_alibi_bias",
          "attention.scale", "attention.sliding_window_pattern"}) {
        if (has(name))
            KD_THROW(unsupported, "{}: metadata '{}': is not supported", path(), key(name));
    }
    const int64_t window = gguf_.integer_or(key("attention.sliding_window"), 0, 0, INT32_MAX);
    if (window != 0 && window < config_.context_length) {
        KD_THROW(unsupported,
                 "{}: metadata '{}': a window of {} in a context of {} is not supported", path(),
                 key("attention.sliding_window"), window, config_.context_length);
    }
    if (!gguf_.boolean_or(key("attention.causal"), true)) {
        KD_THROW(unsupported, "{}: metadata '{}': false is not supported", path(),
                 key("attention.causal"));
    }
}

void Reader::read_sizes() {
    config_.layers = positive("block_count", kMaxLayers);
    config_.hidden = positive("embedding_length", kMaxHidden);
    config_.intermediate = positive("feed_forward_length", kMaxIntermediate);
    config_.context_length = positive("context_length", kMaxContext);
    config_.norm_epsilon =
        gguf_.number(key("attention.layer_norm_rms_epsilon"), kMinEpsilon, kMaxEpsilon);
}

void Reader::read_heads() {
    if (is_deepseek()) return read_deepseek_heads(gguf_, config_);
    config_.heads = positive("attention.head_count", kMaxHeads);
    config_.kv_heads = static_cast<int32_t>(
        gguf_.integer_or(key("attention.head_count_kv"), config_.heads, 1, config_.heads));
    check_kv_heads(config_.heads, config_.kv_heads, where("attention.head_count_kv"));
    if (has("attention.key_length")) {
        config_.head_dim = positive("attention.key_length", INT32_MAX);
        check_head_dim(config_.head_dim, where("attention.key_length"));
    } else {
        if (config_.hidden % config_.heads != 0) {
            KD_THROW(corrupt, "{}: metadata '{}': {} does not divide {}", path(),
                     key("attention.head_count"), config_.heads, config_.hidden);
        }
        config_.head_dim = config_.hidden / config_.heads;
        check_head_dim(config_.head_dim, where("attention.head_count"));
    }
    const int64_t value_dim =
        gguf_.integer_or(key("attention.value_length"), config_.head_dim, 1, INT32_MAX);
    if (value_dim != config_.head_dim) {
        KD_THROW(unsupported, "{}: metadata '{}': {} differs from the key length {}", path(),
                 key("attention.value_length"), value_dim, config_.head_dim);
    }
}

void Reader::read_rope() {
    if (!is_deepseek()) {
        config_.rope_dim = static_cast<int32_t>(
            gguf_.integer_or(key("rope.dimension_count"), config_.head_dim, 1, config_.head_dim));
    }
    if (config_.rope_dim % 2 != 0) {
        KD_THROW(corrupt, "{}: metadata '{}': {} is odd", path(), key("rope.dimension_count"),
                 config_.rope_dim);
    }
    config_.rope_base = number_or("rope.freq_base", 10000, kMinRopeBase, kMaxRopeBase);
    if (has("rope.dimension_sections")) {
        KD_THROW(unsupported, "{}: metadata '{}': is not supported", path(),
                 key("rope.dimension_sections"));
    }
}

/// 0: none stated.
double Reader::rope_factor(std::string_view name) const {
    const double factor = number_or(name, 0, 0, kMaxRopeFactor);
    if (factor != 0 && factor < kMinRopeFactor) {
        KD_THROW(corrupt, "{}: {} is not in [{}, {}]", where(name), factor, kMinRopeFactor,
                 kMaxRopeFactor);
    }
    return factor;
}

void Reader::read_rope_scaling() {
    RopeScaling& scaling = config_.rope_scaling;
    // A factor without a type means linear scaling.
    double factor = rope_factor("rope.scaling.factor");
    if (factor == 0) factor = rope_factor("rope.scale_linear");
    const std::string_view type =
        gguf_.string_or(key("rope.scaling.type"), factor != 0 && factor != 1 ? "linear" : "none");
    for (const std::string_view name : {"rope.scaling.alpha", "rope.scaling.yarn_log_multiplier"}) {
        if (has(name) && !(is_deepseek() && name.ends_with("log_multiplier")))
            KD_THROW(unsupported, "{}: metadata '{}': is not supported", path(), key(name));
    }
    for (const std::string_view name : {"rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor",
                                        "rope.scaling.yarn_attn_factor"}) {
        const double value = number_or(name, 1, -1e9, 1e9);
        if (value != 1) {
            KD_THROW(unsupported, "{}: metadata '{}': {} is not supported", path(), key(name),
                     value);
        }
    }
    for (const std::string_view name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
        if (gguf_.find_tensor(name) != nullptr) {
            KD_THROW(unsupported, "{}: tensor '{}': scaled rope frequencies are not supported",
                     path(), name);
        }
    }
    if (type == "none") return;
    if (type != "linear" && type != "yarn") {
        KD_THROW(unsupported, "{}: metadata '{}': '{}' is not supported", path(),
                 key("rope.scaling.type"), printable(type));
    }
    if (factor == 0) {
        KD_THROW(corrupt, "{}: metadata '{}': is missing, for scaling of type '{}'", path(),
                 key("rope.scaling.factor"), type);
    }
    scaling.factor = factor;
    scaling.type = type == "yarn" ? RopeScalingType::yarn : RopeScalingType::linear;
    if (scaling.type != RopeScalingType::yarn) return;
    scaling.original_context = static_cast<int32_t>(gguf_.integer_or(
        key("rope.scaling.original_context_length"), config_.context_length, 1, kMaxContext));
    scaling.beta_fast = number_or("rope.scaling.yarn_beta_fast", 32, 1e-6, 1e6);
    scaling.beta_slow = number_or("rope.scaling.yarn_beta_slow", 1, 1e-6, 1e6);
    // 0.1 * mscale_all_dim; the form has no place for an mscale that differs from it.
    scaling.mscale_all_dim = number_or("rope.scaling.yarn_log_multiplier", 0, 0, 1e2) / 0.1;
    scaling.mscale = scaling.mscale_all_dim;
}

void Reader::read_vocabulary() {
    const size_t tokens = gguf_.strings("tokenizer.ggml.tokens").size();
    if (tokens == 0 || tokens > static_cast<size_t>(kMaxVocabulary)) {
        KD_THROW(corrupt, "{}: metadata 'tokenizer.ggml.tokens': {} tokens, not 1 to {}", path(),
                 tokens, kMaxVocabulary);
    }
    config_.vocabulary = static_cast<int32_t>(tokens);
    const int64_t stated =
        gguf_.integer_or(key("vocab_size"), config_.vocabulary, 1, kMaxVocabulary);
    if (stated != config_.vocabulary) {
        KD_THROW(corrupt, "{}: metadata '{}': {}, but the token list has {}", path(),
                 key("vocab_size"), stated, config_.vocabulary);
    }
}

}  // namespace

ModelConfig read_gguf_config(const GgufFile& gguf, const AttemptPart& attempt) {
    ModelConfig config;
    Reader reader(gguf, config);
    // Without it the other keys mean nothing.
    if (!attempt([&] { reader.read_architecture(); })) return config;
    attempt([&] { config.name = model_name(gguf); });
    const bool sizes = attempt([&] { reader.read_sizes(); });
    attempt([&] { reader.refuse_unsupported(); });
    if (sizes && attempt([&] { reader.read_heads(); })) {
        attempt([&] { reader.read_rope(); });
    }
    if (sizes && config.architecture == "deepseek2") {
        attempt([&] { read_deepseek_experts(gguf, config); });
    }
    attempt([&] { reader.read_rope_scaling(); });
    attempt([&] { reader.read_vocabulary(); });
    return config;
}

}  // namespace kd
