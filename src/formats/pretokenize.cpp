#include "formats/pretokenize.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/utf8.h"

namespace kd {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kNumberPattern = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}])";

namespace {

// The published patterns, from the models' tokenizer.json files as llama.cpp quotes them beside its
// own (src/llama-vocab.cpp); Kimi-K2's from its tokenization_kimi.py.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+)"
    R"([\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekLlmLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A})"
    R"(\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})"
    R"(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943}]+)";
constexpr std::string_view kDeepseekLlmMarks =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr std::string_view kDeepseekLlmCjk =
    R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr std::string_view kDeepseekNumbers = R"(\p{N}{1,3})";
constexpr std::string_view kDeepseekCjk = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr std::string_view kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kKimi =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<SplitStep> steps_of(std::initializer_list<std::string_view> patterns) {
    std::vector<SplitStep> steps;
    for (const std::string_view pattern : patterns) {
        steps.push_back({.pattern = std::string(pattern)});
    }
    return steps;
}

/// Appends the pieces of `text` that one pass makes.
void split_once(std::string_view text, const SplitStep& step, const std::vector<TextRange>& matches,
                std::vector<std::string_view>& pieces) {
    const size_t before = pieces.size();
    bool last_matched = false;
    size_t end = 0;
    const auto add = [&](size_t to, bool matched) {
        if (to == end) return;
        const std::string_view piece = text.substr(end, to - end);
        end = to;
        matched = matched != step.invert;
        const auto extend = [&] {  // the piece and the one before it touch
            pieces.back() = {pieces.back().data(), pieces.back().size() + piece.size()};
        };
        const bool first = pieces.size() == before;
        switch (step.behavior) {
            case SplitBehavior::isolated:
                pieces.push_back(piece);
                break;
            case SplitBehavior::removed:
                if (!matched) pieces.push_back(piece);
                break;
            case SplitBehavior::contiguous:
                !first&& matched == last_matched ? extend() : pieces.push_back(piece);
                break;
            case SplitBehavior::merged_with_previous:
                !first&& matched && !last_matched ? extend() : pieces.push_back(piece);
                break;
            case SplitBehavior::merged_with_next:
                !first && !matched && last_matched ? extend() : pieces.push_back(piece);
                break;
        }
        last_matched = matched;
    };
    for (const TextRange& match : matches) {
        add(match.begin, false);
        add(match.end, true);
    }
    add(text.size(), false);
}

}  // namespace

NamedPretokenizer named_pretokenizer(std::string_view name) {
    const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (is_one_of({"gpt-2", "gpt2", "default"})) return {.steps = steps_of({kGpt2Pattern})};
    if (is_one_of({"smollm", "starcoder", "refact"})) {
        return {.steps = steps_of({kNumberPattern, kGpt2Pattern})};
    }
    if (is_one_of({"llama-bpe", "llama3", "llama-v3"})) {
        return {.steps = steps_of({kLlama3}), .ignore_merges = true, .adds_bos = true};
    }
    if (is_one_of({"qwen2", "deepseek-r1-qwen"})) {
        return {.steps = steps_of({kQwen2}), .nfc = true};
    }
    if (name == "qwen35") return {.steps = steps_of({kQwen35}), .nfc = true};
    if (name == "deepseek-v3") {
        return {.steps = steps_of({kDeepseekNumbers, kDeepseekCjk, kDeepseekWords})};
    }
    if (name == "deepseek-llm") {
        return {.steps = steps_of({"[\\r\\n]", kDeepseekLlmLetters, kDeepseekLlmMarks, "\\s+$",
                                   kDeepseekLlmCjk, kNumberPattern})};
    }
    if (name == "kimi-k2") {
        return {.steps = steps_of({kKimi}), .ignore_merges = true, .merges_by_rank = true};
    }
    KD_THROW(unsupported,
             "tokenizer.ggml.pre: pre-tokenizer '{}' is not supported (gpt-2, default, smollm, "
             "starcoder, refact, llama-bpe, qwen2, deepseek-r1-qwen, qwen35, deepseek-llm, "
             "deepseek-v3, kimi-k2)",
             printable(name));
}

std::string pattern_of_text(std::string_view text) {
    std::string pattern;
    while (!text.empty()) {
        const Utf8Unit unit = next_utf8(text);
        if (unit.kind != Utf8Kind::valid) KD_THROW(corrupt, "a pattern that is not UTF-8");
        pattern += fmt::format("\\x{{{:X}}}", uint32_t{unit.code_point});
        text.remove_prefix(unit.bytes);
    }
    return pattern;
}

Pretokenizer::Pretokenizer(std::vector<SplitStep> steps) : steps_(std::move(steps)) {
    for (const SplitStep& step : steps_) {
        try {
            regexes_.emplace_back(step.pattern);
        } catch (const Error& error) {
            if (step.where.empty()) throw;
            throw Error(error.code, fmt::format("{}: {}", step.where, error.what()), error.file,
                        error.line);
        }
    }
}

void Pretokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
    std::vector<std::string_view> from = {text};
    std::vector<std::string_view> to;
    std::vector<TextRange> matches;
    for (size_t i = 0; i < steps_.size(); ++i) {
        SplitRegex::Scratch scratch(regexes_[i], text.size());
        to.clear();
        for (const std::string_view piece : from) {
            matches.clear();
            regexes_[i].find_all(piece, scratch, matches);
            split_once(piece, steps_[i], matches, to);
        }
        from.swap(to);
    }
    pieces.insert(pieces.end(), from.begin(), from.end());
}

}  // namespace kd
