#include "support/tiny_model.h"

#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace kd {

namespace {

constexpr int kControlTokens = 3;
constexpr int kByteTokens = 256;
// Q and K twice as large as their fan-in asks: attention then picks a few positions instead of
// averaging over all, and the text depends on its whole history instead of falling into a cycle.
constexpr float kAttentionGain = 2.0f;

constexpr std::string_view kCorpus =
    "the tree grows from the root and every branch ends in a leaf . the model reads the whole tree "
    "in one pass and keeps the longest path that it would have written itself . a small drafter "
    "proposes tokens , the target verifies them , and what is wrong is thrown away . when the text "
    "repeats what was said before , the next words are easy to guess ; when it does not , the "
    "engine falls back to plain decoding and loses nothing . int main ( ) { return 0 ; } for ( int "
    "i = 0 ; i < 10 ; ++i ) { sum += values [ i ] ; } there is no other thing than this one here";

constexpr std::string_view kTemplate =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

struct Vocabulary {
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    std::vector<std::string> merges;
};

class MergeLearner {
  public:
    explicit MergeLearner(Vocabulary& vocabulary)
        : vocabulary_(vocabulary), known_(vocabulary.tokens.begin(), vocabulary.tokens.end()) {
        std::string_view rest = kCorpus;
        while (!rest.empty()) {
            const std::string_view word = rest.substr(0, rest.find(' '));
            rest.remove_prefix(std::min(rest.size(), word.size() + 1));
            std::vector<std::string>& symbols = words_.emplace_back();
            symbols.push_back(byte_symbol(' '));
            for (const char c : word) symbols.push_back(byte_symbol(static_cast<unsigned char>(c)));
        }
    }

    /// Merges the most frequent pair of neighbours, the first in order among equals. False if no
    /// pair makes a new token.
    bool merge_most_frequent() {
        std::map<std::pair<std::string, std::string>, int> frequency;
        for (const auto& symbols : words_) {
            for (size_t i = 1; i < symbols.size(); ++i) ++frequency[{symbols[i - 1], symbols[i]}];
        }
        const std::pair<std::string, std::string>* best = nullptr;
        int most = 0;
        for (const auto& [pair, count] : frequency) {
            if (count > most && !known_.contains(pair.first + pair.second)) {
                best = &pair;
                most = count;
            }
        }
        if (best == nullptr) return false;
        add(best->first, best->second);
        for (auto& symbols : words_) {
            for (size_t i = 1; i < symbols.size(); ++i) {
                if (symbols[i - 1] != best->first || symbols[i] != best->second) continue;
                symbols[i - 1] += symbols[i];
                symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        return true;
    }

    /// Adds left + right as a token unless there is one.
    void add(const std::string& left, const std::string& right) {
        if (!known_.insert(left + right).second) return;
        vocabulary_.tokens.push_back(left + right);
        vocabulary_.types.push_back(1);
        vocabulary_.merges.push_back(left + " " + right);
    }

  private:
    Vocabulary& vocabulary_;
    std::set<std::string> known_;
    std::vector<std::vector<std::string>> words_;
};

Vocabulary make_vocabulary(size_t tokens) {
    Vocabulary vocabulary;
    vocabulary.tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    vocabulary.types.assign(kControlTokens, 3);
    for (int byte = 0; byte < kByteTokens; ++byte) {
        vocabulary.tokens.push_back(byte_symbol(byte));
        vocabulary.types.push_back(1);
    }
    MergeLearner learner(vocabulary);
    while (vocabulary.tokens.size() < tokens && learner.merge_most_frequent()) continue;
    // The sentences are used up: any two printable characters make a token too.
    for (int pair = 0; vocabulary.tokens.size() < tokens; ++pair) {
        learner.add(byte_symbol('!' + pair / 94), byte_symbol('!' + pair % 94));
    }
    return vocabulary;
}

uint64_t hash_of(std::string_view name) {  // FNV-1a
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

/// `count` values uniform in [centre - reach, centre + reach).
std::vector<float> random_values(std::string_view name, uint64_t seed, size_t count, float centre,
                                 float reach) {
    const uint64_t hash = hash_of(name);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i += 4) {
        const PhiloxCounter words =
            philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(hash),
                        static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(RngStream::test)},
                       {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
        for (size_t j = i; j < std::min(i + 4, count); ++j) {
            const float unit = static_cast<float>(words[j - i] >> 8) * 0x1p-23f - 1;  // [-1, 1)
            values[j] = centre + reach * unit;
        }
    }
    return values;
}

void check_range(std::string_view name, int value, int min, int max, int multiple = 1) {
    if (value < min || value > max || value % multiple != 0) {
        KD_THROW(invalid_argument, "tiny model: {} is {}, not a multiple of {} in [{}, {}]", name,
                 value, multiple, min, max);
    }
}

void check_options(const TinyModelOptions& options) {
    check_range("layers", options.layers, 1, 64);
    const int block = std::max(32, static_cast<int>(block_elements(options.weights)));
    check_range("hidden", options.hidden, 32, 4096, block);
    check_range("intermediate", options.intermediate, 32, 16384, block);
    check_range("heads", options.heads, 1, options.hidden / 2);
    check_range("hidden", options.hidden, 32, 4096, 2 * options.heads);
    check_range("kv_heads", options.kv_heads, 1, options.heads);
    check_range("heads", options.heads, 1, options.hidden / 2, options.kv_heads);
    check_range("vocabulary", options.vocabulary, kControlTokens + kByteTokens, 8192);
    check_range("context_length", options.context_length, 1, 1 << 24);
}

void set_metadata(GgufWriter& writer, const TinyModelOptions& options) {
    const auto set_count = [&](std::string_view key, int value) {
        writer.set(key, static_cast<uint32_t>(value));
    };
    writer.set_string("general.architecture", "llama");
    writer.set_string("general.type", "model");
    writer.set_string("general.name", "kdtree tiny random model");
    set_count("llama.block_count", options.layers);
    set_count("llama.context_length", options.context_length);
    set_count("llama.embedding_length", options.hidden);
    set_count("llama.feed_forward_length", options.intermediate);
    set_count("llama.attention.head_count", options.heads);
    set_count("llama.attention.head_count_kv", options.kv_heads);
    writer.set("llama.rope.freq_base", 10000.0f);
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    set_count("llama.vocab_size", options.vocabulary);
    set_count("llama.rope.dimension_count", options.hidden / options.heads);
    set_tiny_tokenizer(writer, options.vocabulary);
}

}  // namespace

void set_tiny_tokenizer(GgufWriter& writer, int tokens) {
    const Vocabulary vocabulary = make_vocabulary(static_cast<size_t>(tokens));
    const auto set_count = [&](std::string_view key, int value) {
        writer.set(key, static_cast<uint32_t>(value));
    };
    writer.set("tokenizer.ggml.add_space_prefix", false);
    writer.set("tokenizer.ggml.add_bos_token", false);
    writer.set_string("tokenizer.ggml.model", "gpt2");
    writer.set_string("tokenizer.ggml.pre", "smollm");
    writer.set_strings("tokenizer.ggml.tokens", vocabulary.tokens);
    writer.set_array("tokenizer.ggml.token_type", vocabulary.types);
    writer.set_strings("tokenizer.ggml.merges", vocabulary.merges);
    set_count("tokenizer.ggml.bos_token_id", 1);
    set_count("tokenizer.ggml.eos_token_id", 2);
    set_count("tokenizer.ggml.unknown_token_id", 0);
    set_count("tokenizer.ggml.padding_token_id", 2);
    writer.set_string("tokenizer.chat_template", kTemplate);
}

std::string byte_symbol(int byte) {
    const auto printable_byte = [](int b) {
        return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
    };
    int code_point = byte;
    if (!printable_byte(byte)) {
        code_point = 0x100;
        for (int b = 0; b < byte; ++b) code_point += printable_byte(b) ? 0 : 1;
    }
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    return {static_cast<char>(0xc0 | (code_point >> 6)),
            static_cast<char>(0x80 | (code_point & 0x3f))};
}

GgufWriter tiny_model(const TinyModelOptions& options) {
    check_options(options);
    GgufWriter writer;
    set_metadata(writer, options);

    const auto matrix = [&](const std::string& name, DType type, int rows, int columns,
                            float deviation) {
        const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(columns);
        const float reach = std::sqrt(3.0f) * deviation;  // variance of a uniform: reach^2 / 3
        writer.add_tensor(name, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                          random_values(name, options.seed, count, 0, reach));
    };
    const auto norm_weights = [&](const std::string& name) {
        return random_values(name, options.seed, static_cast<size_t>(options.hidden), 1, 0.1f);
    };
    const auto norm = [&](const std::string& name, const std::vector<float>& weights) {
        writer.add_tensor(name, DType::f32, 0, weights.size(), weights);
    };
    const auto linear = [&](const std::string& name, int rows, int columns, float gain = 1) {
        matrix(name, options.weights, rows, columns, gain / std::sqrt(static_cast<float>(columns)));
    };

    const int hidden = options.hidden;
    const int kv_rows = hidden / options.heads * options.kv_heads;
    const DType head_type = is_quantised(options.weights) ? DType::q8_0 : options.weights;
    // The last norm leaves rows of length sqrt(hidden).
    const float head_deviation = options.logit_sharpness / std::sqrt(static_cast<float>(hidden));
    matrix("token_embd.weight", head_type, options.vocabulary, hidden, head_deviation);
    for (int layer = 0; layer < options.layers; ++layer) {
        const std::string block = fmt::format("blk.{}.", layer);
        norm(block + "attn_norm.weight", norm_weights(block + "attn_norm.weight"));
        linear(block + "ffn_down.weight", hidden, options.intermediate);
        linear(block + "ffn_gate.weight", options.intermediate, hidden);
        linear(block + "ffn_up.weight", options.intermediate, hidden);
        norm(block + "ffn_norm.weight", norm_weights(block + "ffn_norm.weight"));
        linear(block + "attn_k.weight", kv_rows, hidden, kAttentionGain);
        linear(block + "attn_output.weight", hidden, hidden);
        linear(block + "attn_q.weight", hidden, hidden, kAttentionGain);
        linear(block + "attn_v.weight", kv_rows, hidden);
    }
    // Random signs: with tied embeddings a row would otherwise resemble the token it came from, and
    // the model would repeat its last token for ever.
    std::vector<float> last = norm_weights("output_norm.weight");
    const std::vector<float> signs =
        random_values("output_norm.sign", options.seed, last.size(), 0, 1);
    for (size_t i = 0; i < last.size(); ++i) last[i] = std::copysign(last[i], signs[i]);
    norm("output_norm.weight", last);
    if (!options.tied) {
        matrix("output.weight", head_type, options.vocabulary, hidden, head_deviation);
    }
    return writer;
}

void write_tiny_model(const std::string& path, const TinyModelOptions& options) {
    tiny_model(options).write(path);
}

}  // namespace kd
