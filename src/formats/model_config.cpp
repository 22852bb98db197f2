#include "formats/model_config.h"

#include <algorithm>

#include "base/error.h"

namespace kd {

namespace {

// Sane maxima. Products of any three of them stay far below 2^63.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHidden = 65536;
constexpr int64_t kMaxIntermediate = 1 << 20;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr int64_t kMaxContext = 1 << 24;
constexpr size_t kMaxNameBytes = 256;

int32_t positive(const GgufFile& gguf, std::string_view key, int64_t max) {
    return static_cast<int32_t>(gguf.integer(key, 1, max));
}

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

void read_heads(const GgufFile& gguf, ModelConfig& config) {
    const std::string& path = gguf.file().path();
    config.heads = positive(gguf, "llama.attention.head_count", kMaxHeads);
    config.kv_heads = static_cast<int32_t>(
        gguf.integer_or("llama.attention.head_count_kv", config.heads, 1, config.heads));
    if (config.heads % config.kv_heads != 0) {
        KD_THROW(corrupt, "{}: metadata 'llama.attention.head_count_kv': {} does not divide {}",
                 path, config.kv_heads, config.heads);
    }
    if (gguf.find("llama.attention.key_length") != nullptr) {
        config.head_dim = positive(gguf, "llama.attention.key_length", kMaxHeadDim);
    } else {
        if (config.hidden % config.heads != 0) {
            KD_THROW(corrupt, "{}: metadata 'llama.attention.head_count': {} does not divide {}",
                     path, config.heads, config.hidden);
        }
        config.head_dim = config.hidden / config.heads;
        if (config.head_dim > kMaxHeadDim) {
            KD_THROW(corrupt,
                     "{}: metadata 'llama.attention.head_count': {} elements a head, more "
                     "than {}",
                     path, config.head_dim, kMaxHeadDim);
        }
    }
    const int64_t value_dim =
        gguf.integer_or("llama.attention.value_length", config.head_dim, 1, kMaxHeadDim);
    if (value_dim != config.head_dim) {
        KD_THROW(unsupported,
                 "{}: metadata 'llama.attention.value_length': {} differs from the key length {}",
                 path, value_dim, config.head_dim);
    }
}

/// Context extensions change the rotation: a file that asks for one must not run without it.
void refuse_rope_scaling(const GgufFile& gguf) {
    const std::string& path = gguf.file().path();
    const std::string_view type = gguf.string_or("llama.rope.scaling.type", "none");
    if (type != "none") {
        KD_THROW(unsupported, "{}: metadata 'llama.rope.scaling.type': '{}' is not supported", path,
                 printable(type));
    }
    // A factor without a type means linear scaling.
    const bool typed = gguf.find("llama.rope.scaling.type") != nullptr;
    for (const std::string_view key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
        const double factor = gguf.number_or(key, 1, 0, 1e9);
        if (!typed && factor != 0 && factor != 1) {
            KD_THROW(unsupported, "{}: metadata '{}': scaling by {} is not supported", path, key,
                     factor);
        }
    }
    for (const std::string_view name :
         {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}) {
        if (gguf.find_tensor(name) != nullptr) {
            KD_THROW(unsupported, "{}: tensor '{}': scaled rope frequencies are not supported",
                     path, name);
        }
    }
}

void read_rope(const GgufFile& gguf, ModelConfig& config) {
    config.rope_dim = static_cast<int32_t>(
        gguf.integer_or("llama.rope.dimension_count", config.head_dim, 1, config.head_dim));
    if (config.rope_dim % 2 != 0) {
        KD_THROW(corrupt, "{}: metadata 'llama.rope.dimension_count': {} is odd",
                 gguf.file().path(), config.rope_dim);
    }
    config.rope_base = gguf.number_or("llama.rope.freq_base", 10000, 1, 1e12);
    // The converters to GGUF permute the Q and K rows of this architecture.
    config.rope_adjacent_pairs = true;
}

void read_architecture(const GgufFile& gguf, ModelConfig& config) {
    config.architecture = gguf.string("general.architecture");
    if (config.architecture != "llama") {
        KD_THROW(unsupported,
                 "{}: metadata 'general.architecture': '{}' is not supported ('llama' is)",
                 gguf.file().path(), printable(config.architecture));
    }
}

void refuse_experts(const GgufFile& gguf) {
    const int64_t experts = gguf.integer_or("llama.expert_count", 0, 0, 65536);
    if (experts != 0) {
        KD_THROW(unsupported, "{}: metadata 'llama.expert_count': {} experts are not supported",
                 gguf.file().path(), experts);
    }
}

void read_sizes(const GgufFile& gguf, ModelConfig& config) {
    config.layers = positive(gguf, "llama.block_count", kMaxLayers);
    config.hidden = positive(gguf, "llama.embedding_length", kMaxHidden);
    config.intermediate = positive(gguf, "llama.feed_forward_length", kMaxIntermediate);
    config.context_length = positive(gguf, "llama.context_length", kMaxContext);
    config.norm_epsilon = gguf.number("llama.attention.layer_norm_rms_epsilon", 1e-12, 0.1);
}

void read_vocabulary(const GgufFile& gguf, ModelConfig& config) {
    const std::string& path = gguf.file().path();
    const size_t tokens = gguf.strings("tokenizer.ggml.tokens").size();
    if (tokens == 0 || tokens > static_cast<size_t>(kMaxVocabulary)) {
        KD_THROW(corrupt, "{}: metadata 'tokenizer.ggml.tokens': {} tokens, not 1 to {}", path,
                 tokens, kMaxVocabulary);
    }
    config.vocabulary = static_cast<int32_t>(tokens);
    const int64_t stated =
        gguf.integer_or("llama.vocab_size", config.vocabulary, 1, kMaxVocabulary);
    if (stated != config.vocabulary) {
        KD_THROW(corrupt, "{}: metadata 'llama.vocab_size': {}, but the token list has {}", path,
                 stated, config.vocabulary);
    }
}

/// All parts in order; `attempt` runs one and says whether those that build on it make sense.
template <class Attempt>
ModelConfig read_parts(const GgufFile& gguf, Attempt&& attempt) {
    ModelConfig config;
    // Without it the other keys mean nothing.
    if (!attempt([&] { read_architecture(gguf, config); })) return config;
    attempt([&] { refuse_experts(gguf); });
    attempt([&] { config.name = model_name(gguf); });
    if (attempt([&] { read_sizes(gguf, config); }) && attempt([&] { read_heads(gguf, config); })) {
        attempt([&] { read_rope(gguf, config); });
    }
    attempt([&] { refuse_rope_scaling(gguf); });
    attempt([&] { read_vocabulary(gguf, config); });
    return config;
}

}  // namespace

ModelConfig read_model_config(const GgufFile& gguf) {
    return read_parts(gguf, [](auto&& part) {
        part();
        return true;
    });
}

ModelConfig probe_model_config(const GgufFile& gguf, std::vector<std::string>& faults) {
    return read_parts(gguf, [&](auto&& part) {
        try {
            part();
            return true;
        } catch (const Error& error) {
            faults.emplace_back(error.what());
            return false;
        }
    });
}

}  // namespace kd
