#include "formats/pretokenize.h"

#include <string>

#include "base/check.h"
#include "base/error.h"

namespace kd {

namespace {

// Number characters that Unicode added after version 14, the one of PCRE2 10.42: models' tokenizers
// follow the newest table, and a digit that is not split off changes the ids. As of Unicode 17.
constexpr std::string_view kNewerNumbers =
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11DE0}-\x{11DE9})"
    R"(\x{11F50}-\x{11F59}\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{16FF4}-\x{16FF6})"
    R"(\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";

// Insides of bracket classes. White space is spelled out as Unicode's White_Space: PCRE2's \s also
// takes U+180E, which has not been white space since Unicode 6.3.
const std::string kNumber = R"(\p{N})" + std::string(kNewerNumbers);
const std::string kSpace = R"(\p{Z}\x{09}-\x{0D}\x{85})";

// The pattern of GPT-2 (openai/gpt-2, encoder.py). A run of white space leaves its last character
// to the piece that follows, if one does. Possessive where nothing may be given back.
std::string gpt2_pattern() {
    return fmt::format(
        R"('(?:s|t|re|ve|m|ll|d)| ?\p{{L}}++| ?[{N}]++| ?[^{S}\p{{L}}{N}]++|[{S}]+(?![^{S}])|[{S}]++)",
        fmt::arg("N", kNumber), fmt::arg("S", kSpace));
}

// Numbers are isolated first and the GPT-2 pattern runs inside the pieces between them. In one
// pass: a number ends what stands before it as the end of the text does, so white space before it
// leaves nothing over, and no number takes a space along.
std::string smollm_pattern() {
    return fmt::format(
        R"([{N}]|'(?:s|t|re|ve|m|ll|d)| ?\p{{L}}++| ?[^{S}\p{{L}}{N}]++|[{S}]+(?![^{S}{N}])|[{S}]++)",
        fmt::arg("N", kNumber), fmt::arg("S", kSpace));
}

std::string pattern_of(std::string_view name) {
    if (name == "smollm") return smollm_pattern();
    if (name == "gpt2" || name == "gpt-2" || name == "default") return gpt2_pattern();
    KD_THROW(unsupported,
             "tokenizer.ggml.pre: pre-tokenizer '{}' is not supported (smollm, gpt-2, default)",
             name);
}

}  // namespace

Pretokenizer::Pretokenizer(std::string_view name) : regex_(pattern_of(name)) {}

void Pretokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
    Utf8Regex::Matcher matcher(regex_);
    for (size_t at = 0; at < text.size();) {
        const size_t bytes = matcher.match(text, at);
        KD_CHECK(bytes > 0, "no alternative takes byte {} of {}", at, text.size());
        pieces.push_back(text.substr(at, bytes));
        at += bytes;
    }
}

}  // namespace kd
