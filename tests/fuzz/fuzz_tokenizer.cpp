// Arbitrary bytes as text and as ids. What has to hold, whatever the bytes (the vocabulary has a
// token for every byte): the ids spell the text; a stream of their pieces is the text with its
// ill-formed units replaced; a stop string ends the stream where it first stands.
#include <fmt/format.h>
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/text_stream.h"
#include "formats/gguf.h"
#include "formats/tiny_tokenizer.h"
#include "formats/tokenizer.h"
#include "formats/utf8.h"
#include "fuzz/memory_file.h"

namespace kd {
namespace {

std::string written(const TinyVocabulary& vocabulary, std::string_view pretokenizer) {
    GgufWriter writer;
    writer.set_string("tokenizer.ggml.model", "gpt2");
    writer.set_string("tokenizer.ggml.pre", pretokenizer);
    writer.set_strings("tokenizer.ggml.tokens", vocabulary.tokens);
    writer.set_array("tokenizer.ggml.token_type", vocabulary.types);
    writer.set_strings("tokenizer.ggml.merges", vocabulary.merges);
    return writer.bytes();
}

/// One tokenizer for each pre-tokenizer.
const Tokenizer& tokenizer_of_kind(size_t kind) {
    static const auto tokenizers = [] {
        constexpr std::string_view kNames[] = {"smollm",       "gpt-2",       "llama-bpe",
                                               "deepseek-llm", "deepseek-v3", "kimi-k2"};
        std::array<std::unique_ptr<Tokenizer>, std::size(kNames)> made;
        for (size_t i = 0; i < made.size(); ++i) {
            TinyVocabulary vocabulary = tiny_vocabulary();
            for (const auto& [left, right] :
                 {std::pair{"Ġ", "a"}, {"ĠĠ", "ĠĠ"}, {"Ġa", "b"}, {"e", "r"}, {"1", "2"}}) {
                vocabulary.merge(left, right);
            }
            const std::string bytes = written(vocabulary, kNames[i]);
            MemoryFile file;
            file.set({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
            made[i] = std::make_unique<Tokenizer>(GgufFile(file.path()));
        }
        return made;
    }();
    return *tokenizers[kind % tokenizers.size()];
}

void check_text(const Tokenizer& tokenizer, std::string_view text) {
    for (const bool special : {false, true}) {
        const std::vector<int32_t> ids = tokenizer.encode(text, special);
        const std::string spelled = tokenizer.decode(ids, true);
        KD_CHECK(spelled == text, "special {}: {} bytes became {}", special, text.size(),
                 spelled.size());
        if (special) continue;
        for (const int32_t id : ids) KD_CHECK(!tokenizer.is_control(id), "control token {}", id);
        KD_CHECK(tokenizer.decode(ids) == text, "a token of plain text is left out");
    }
}

std::vector<std::string> pieces_of(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
    StreamDecoder decoder(tokenizer);
    std::vector<std::string> pieces;
    for (const int32_t id : ids) {
        pieces.push_back(decoder.push(id));
        KD_CHECK(valid_utf8_bytes(pieces.back()) == pieces.back().size(),
                 "a piece ends inside a character");
    }
    pieces.push_back(decoder.finish());
    return pieces;
}

/// What may be shown of a text that comes in these pieces: up to the first of the stop strings that
/// stand in it after the first piece that completes one.
std::string before_stop(const std::vector<std::string>& pieces,
                        const std::vector<std::string>& stops) {
    std::string text;
    for (const std::string& piece : pieces) {
        text += piece;
        size_t end = text.npos;
        for (const std::string& stop : stops) end = std::min(end, text.find(stop));
        if (end != text.npos) return text.substr(0, end);
    }
    return text;
}

void check_ids(const Tokenizer& tokenizer, std::span<const int32_t> ids,
               const std::vector<std::string>& stops) {
    const std::vector<std::string> pieces = pieces_of(tokenizer, ids);
    const std::string text = before_stop(pieces, {});
    const std::string whole = replace_invalid_utf8(tokenizer.decode(ids));
    KD_CHECK(text == whole, "streamed {} bytes, not {}", text.size(), whole.size());
    TextStream stream(tokenizer, stops);
    std::string shown;
    for (const int32_t id : ids) shown += stream.push(id);
    shown += stream.finish();
    const std::string expected = before_stop(pieces, stops);
    KD_CHECK(shown == expected, "{} bytes shown, not {}", shown.size(), expected.size());
}

void check_foreign_id(const Tokenizer& tokenizer, int32_t id) {
    const bool known = id >= 0 && id < tokenizer.vocabulary();
    bool refused = false;
    try {
        StreamDecoder(tokenizer).push(id);
        tokenizer.decode({&id, 1});
    } catch (const Error&) {
        refused = true;
    }
    KD_CHECK(refused != known, "id {} of {}: refused {}", id, tokenizer.vocabulary(), refused);
}

}  // namespace
}  // namespace kd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    using namespace kd;
    FuzzedDataProvider input(data, bytes);
    const Tokenizer& tokenizer = tokenizer_of_kind(input.ConsumeIntegral<uint8_t>());
    std::vector<std::string> stops(input.ConsumeIntegralInRange<size_t>(0, 2));
    for (std::string& stop : stops) {
        stop = input.ConsumeRandomLengthString(4);
        if (stop.empty()) stop = "a";
    }
    check_foreign_id(tokenizer, input.ConsumeIntegral<int32_t>());
    std::vector<int32_t> ids(input.ConsumeIntegralInRange<size_t>(0, 32));
    for (int32_t& id : ids) id = input.ConsumeIntegralInRange(0, tokenizer.vocabulary() - 1);
    check_ids(tokenizer, ids, stops);
    const std::string text = input.ConsumeRemainingBytesAsString();
    check_text(tokenizer, text);
    check_ids(tokenizer, tokenizer.encode(text, true), stops);
    return 0;
}
