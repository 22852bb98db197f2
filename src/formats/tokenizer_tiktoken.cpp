#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "formats/bpe.h"
#include "formats/tokenizer_read.h"
#include "formats/utf8.h"

namespace kd {

namespace {

/// As many as Kimi's tokenizer has behind the ranks; those without an entry are named by their id.
constexpr size_t kReservedTokens = 256;
constexpr size_t kMaxTokenBytes = 1024;  // all cuts of a token are looked up

/// -1: not base64.
int value_of(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

/// RFC 4648, with padding and without stray bits.
std::optional<std::string> decode_base64(std::string_view text) {
    if (text.empty() || text.size() % 4 != 0) return std::nullopt;
    const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    std::string bytes;
    uint32_t bits = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const int value = i < text.size() - padding ? value_of(text[i]) : 0;
        if (value < 0) return std::nullopt;
        bits = bits << 6 | static_cast<uint32_t>(value);
        if (i % 4 != 3) continue;
        for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(bits >> shift));
        bits = 0;
    }
    for (size_t i = 0; i < padding; ++i) {
        if (bytes.back() != 0) return std::nullopt;
        bytes.pop_back();
    }
    return bytes;
}

void read_rank(std::string_view line, const std::string& where, TokenizerSpec& spec) {
    const size_t space = line.find(' ');
    const std::string_view number = space == line.npos ? line : line.substr(space + 1);
    const auto token = decode_base64(line.substr(0, std::min(space, line.size())));
    uint32_t rank = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (!token || error != std::errc() || end != number.data() + number.size()) {
        KD_THROW(corrupt, "{}: '{}' is not base64 and a rank", where, printable(line));
    }
    if (rank != spec.tokens.size()) {
        KD_THROW(corrupt, "{}: rank {}, not {}", where, rank, spec.tokens.size());
    }
    if (spec.tokens.size() == kMaxVocabulary) {
        KD_THROW(unsupported, "{}: more than {} tokens", where, kMaxVocabulary);
    }
    spec.tokens.push_back(*token);
}

void read_special_tokens(const JsonNode& config, TokenizerSpec& spec) {
    const size_t ranks = spec.tokens.size();
    std::vector<AddedToken> tokens(kReservedTokens);
    for (size_t i = 0; i < kReservedTokens; ++i) {
        tokens[i] = {.id = static_cast<int32_t>(ranks + i),
                     .content = fmt::format("<|reserved_token_{}|>", ranks + i),
                     .special = true};
    }
    if (const auto entries = config.find("added_tokens_decoder")) {
        if (!entries->json().is_object()) entries->refuse("an object");
        for (const auto& [key, value] : entries->json().items()) {
            const JsonNode entry(value, fmt::format("{}.{}", entries->where(), printable(key)));
            size_t id = 0;
            const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
            if (error != std::errc() || end != key.data() + key.size() || id < ranks ||
                id >= ranks + kReservedTokens) {
                KD_THROW(corrupt, "{}: not an id from {} to {}", entry.where(), ranks,
                         ranks + kReservedTokens - 1);
            }
            AddedToken token = read_added_token(entry);
            // tiktoken knows no flags.
            tokens[id - ranks] = {.id = static_cast<int32_t>(id),
                                  .content = std::move(token.content),
                                  .special = token.special};
        }
    }
    IdOfText id_of;
    for (const AddedToken& token : tokens) {
        const auto [other, inserted] = id_of.emplace(token.content, token.id);
        if (!inserted) {
            KD_THROW(corrupt, "{}: added_tokens_decoder: {} and {} are the same '{}'",
                     config.where(), other->second, token.id, printable(token.content));
        }
        spec.tokens.push_back(token.content);
    }
    spec.added = std::move(tokens);
}

}  // namespace

std::vector<TokenMerge> merges_by_rank(const std::vector<std::string>& tokens, size_t count) {
    IdOfText id_of;
    id_of.reserve(count);
    for (size_t id = 0; id < count; ++id) id_of.emplace(tokens[id], static_cast<int32_t>(id));
    std::vector<TokenMerge> merges;
    for (size_t id = 0; id < count; ++id) {
        const std::string_view token = tokens[id];
        if (token.size() > kMaxTokenBytes) {
            KD_THROW(unsupported, "token {} has {} bytes (at most {})", id, token.size(),
                     kMaxTokenBytes);
        }
        for (size_t cut = 1; cut < token.size(); ++cut) {
            const auto left = id_of.find(token.substr(0, cut));
            if (left == id_of.end()) continue;
            const auto right = id_of.find(token.substr(cut));
            if (right == id_of.end()) continue;
            const auto result = static_cast<int32_t>(id);
            merges.push_back({left->second, right->second, result, result});
        }
    }
    return merges;
}

void read_tiktoken(const std::string& path, const JsonNode& config, TokenizerSpec& spec) {
    const std::string& kind = config.at("tokenizer_class").string();
    if (kind != "TikTokenTokenizer") {
        KD_THROW(unsupported, "{}: tokenizer_class: '{}' is not supported (TikTokenTokenizer)",
                 config.where(), printable(kind));
    }
    const MappedFile file(path);
    std::string_view text(reinterpret_cast<const char*>(file.data()), file.bytes());
    for (size_t line = 1; !text.empty(); ++line) {
        const size_t end = std::min(text.find('\n'), text.size());
        if (end > 0) read_rank(text.substr(0, end), fmt::format("{}: line {}", path, line), spec);
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    IdOfText id_of;
    for (size_t id = 0; id < spec.tokens.size(); ++id) {
        const auto [other, inserted] = id_of.emplace(spec.tokens[id], static_cast<int32_t>(id));
        if (!inserted) {
            KD_THROW(corrupt, "{}: ranks {} and {} are the same token", path, other->second, id);
        }
    }
    for (int byte = 0; byte < 256; ++byte) {
        const char c = static_cast<char>(byte);
        const auto found = id_of.find(std::string_view(&c, 1));
        if (found == id_of.end()) KD_THROW(corrupt, "{}: byte {} has no rank", path, byte);
        spec.byte_token.push_back(found->second);
    }
    spec.merges = merges_by_rank(spec.tokens, spec.tokens.size());
    NamedPretokenizer kimi = named_pretokenizer("kimi-k2");
    spec.splits = std::move(kimi.steps);
    spec.ignore_merges = kimi.ignore_merges;
    read_special_tokens(config, spec);
}

}  // namespace kd
