#include "formats/pretokenize.h"

#include <string>

#include "base/check.h"
#include "base/error.h"

namespace kd {

namespace {

// Characters that Unicode assigned after version 14, the one of PCRE2 10.42. Models' tokenizers
// follow newer tables, and a digit that is not split off or a letter that is taken for a symbol
// changes the ids. As in Hugging Face tokenizers 0.23.2: numbers of Unicode 17, letters of 16.
constexpr std::string_view kNewerNumbers =
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11DE0}-\x{11DE9})"
    R"(\x{11F50}-\x{11F59}\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{16FF4}-\x{16FF6})"
    R"(\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";
constexpr std::string_view kNewerLetters =
    R"(\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3})"
    R"(\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"
    R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C})"
    R"(\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB})"
    R"(\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";

// Insides of bracket classes. White space is spelled out as Unicode's White_Space: PCRE2's \s also
// takes U+180E, which has not been white space since Unicode 6.3.
const std::string kNumber = R"(\p{N})" + std::string(kNewerNumbers);
const std::string kLetter = R"(\p{L})" + std::string(kNewerLetters);
const std::string kSpace = R"(\p{Z}\x{09}-\x{0D}\x{85})";

// The pattern of GPT-2 (openai/gpt-2, encoder.py). A run of white space leaves its last character
// to the piece that follows, if one does. Possessive where nothing may be given back.
std::string gpt2_pattern() {
    return fmt::format(
        R"('(?:s|t|re|ve|m|ll|d)| ?[{L}]++| ?[{N}]++| ?[^{S}{L}{N}]++|[{S}]+(?![^{S}])|[{S}]++)",
        fmt::arg("N", kNumber), fmt::arg("L", kLetter), fmt::arg("S", kSpace));
}

// Numbers are isolated first and the GPT-2 pattern runs inside the pieces between them. In one
// pass: a number ends what stands before it as the end of the text does, so white space before it
// leaves nothing over, and no number takes a space along.
std::string smollm_pattern() {
    return fmt::format(
        R"([{N}]|'(?:s|t|re|ve|m|ll|d)| ?[{L}]++| ?[^{S}{L}{N}]++|[{S}]+(?![^{S}{N}])|[{S}]++)",
        fmt::arg("N", kNumber), fmt::arg("L", kLetter), fmt::arg("S", kSpace));
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
