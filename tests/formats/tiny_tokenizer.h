// Tokenizers for tests: a small hand-made vocabulary, and the real model's where it is present.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/bpe.h"
#include "formats/tokenizer.h"
#include "formats/utf8.h"
#include "support/gguf_writer.h"

namespace kd {

/// The metadata of a byte-level tokenizer, to be changed before it is written.
struct TinyVocabulary {
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    std::vector<std::string> merges;

    int32_t add(const std::string& text, int32_t type = 1) {
        tokens.push_back(text);
        types.push_back(type);
        return static_cast<int32_t>(tokens.size()) - 1;
    }
    void merge(const std::string& left, const std::string& right) {
        add(left + right);
        merges.push_back(left + " " + right);
    }
};

/// All 256 byte tokens (ids 0 to 255 are the bytes), then a few merges, control tokens <s>, <s>>,
/// <|im_end|> and the user-defined token [x].
inline TinyVocabulary tiny_vocabulary() {
    TinyVocabulary vocabulary;
    for (const char32_t code_point : byte_alphabet()) {
        std::string text;
        append_utf8(text, code_point);
        vocabulary.add(text);
    }
    vocabulary.merge("a", "a");
    vocabulary.merge("aa", "aa");
    vocabulary.merge("b", "a");
    vocabulary.merge("Ġ", "Ġ");
    vocabulary.merge("ð", "Ł");
    vocabulary.add("<s>", 3);
    vocabulary.add("<s>>", 3);
    vocabulary.add("<|im_end|>", 3);
    vocabulary.add("[x]", 4);
    return vocabulary;
}

inline GgufWriter writer_of(const TinyVocabulary& vocabulary) {
    GgufWriter writer;
    writer.set_string("tokenizer.ggml.model", "gpt2");
    writer.set_string("tokenizer.ggml.pre", "smollm");
    writer.set_strings("tokenizer.ggml.tokens", vocabulary.tokens);
    writer.set_array("tokenizer.ggml.token_type", vocabulary.types);
    writer.set_strings("tokenizer.ggml.merges", vocabulary.merges);
    return writer;
}

inline Tokenizer tokenizer_of(const GgufWriter& writer) {
    const TempPath file;
    writer.write(file.path());
    return Tokenizer(GgufFile(file.path()));
}

/// The path of SmolLM2-135M-Instruct below $KDTREE_CACHE (default ~/.cache/kdtree), if it is there.
inline std::optional<std::string> smollm_path() {
    const char* cache = std::getenv("KDTREE_CACHE");
    const char* home = std::getenv("HOME");
    const std::filesystem::path folder =
        cache != nullptr ? std::filesystem::path(cache)
                         : std::filesystem::path(home != nullptr ? home : ".") / ".cache/kdtree";
    const std::filesystem::path path = folder / "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) return std::nullopt;
    return path.string();
}

}  // namespace kd
