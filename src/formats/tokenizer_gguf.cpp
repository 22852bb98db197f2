#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "formats/bpe.h"
#include "formats/tokenizer_read.h"
#include "formats/utf8.h"

namespace kd {

namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTokenType = "tokenizer.ggml.token_type";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";
constexpr std::string_view kTemplate = "tokenizer.chat_template";

/// A special token's name in GGUF keys ("seperator" is spelled so) and in chat templates.
constexpr std::pair<std::string_view, std::string_view> kNamedTokens[] = {
    {"bos", "bos_token"},       {"eos", "eos_token"},     {"unknown", "unk_token"},
    {"seperator", "sep_token"}, {"padding", "pad_token"}, {"cls", "cls_token"},
    {"mask", "mask_token"}};

/// Control tokens that end generation, whatever ids the metadata name: those of the list in
/// llama.cpp's llama-vocab.cpp that byte-level BPE models have. Converters keep one eos, where
/// generation_config.json may have several.
constexpr std::string_view kEndNames[] = {
    "<|im_end|>",      "<|endoftext|>", "<|eot_id|>",    "<|eom_id|>",
    "<|end_of_text|>", "<|end|>",       "<end_of_turn>", "<｜end▁of▁sentence｜>",
    "[EOS]",           "[EOT]",         "<EOT>",         "</s>"};

/// GGUF's token types.
enum class TokenType : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

using Texts = std::vector<std::string_view>;

/// The file's strings are checked before anything is built on them.
IdOfText index_tokens(const Texts& texts) {
    if (texts.empty() || texts.size() > kMaxVocabulary) {
        KD_THROW(corrupt, "{}: {} tokens (1 to {} are supported)", kTokens, texts.size(),
                 kMaxVocabulary);
    }
    IdOfText id_of;
    id_of.reserve(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
        const auto id = static_cast<int32_t>(i);
        if (texts[i].empty() || valid_utf8_bytes(texts[i]) != texts[i].size()) {
            KD_THROW(corrupt, "{}: token {} is empty or not UTF-8", kTokens, i);
        }
        const auto [other, inserted] = id_of.emplace(texts[i], id);
        if (!inserted) {
            KD_THROW(corrupt, "{}: tokens {} and {} are the same string '{}'", kTokens,
                     other->second, i, printable(texts[i]));
        }
    }
    return id_of;
}

std::vector<TokenType> read_token_types(const GgufFile& gguf, size_t vocabulary) {
    std::vector<TokenType> types(vocabulary, TokenType::normal);
    if (gguf.find(kTokenType) == nullptr) return types;
    const auto* array = std::get_if<GgufArray>(gguf.find(kTokenType));
    if (array != nullptr && array->count != vocabulary) {
        KD_THROW(corrupt, "{}: {} entries for {} tokens", kTokenType, array->count, vocabulary);
    }
    const std::vector<int64_t> values = gguf.integers(kTokenType);
    for (size_t i = 0; i < vocabulary; ++i) {
        if (values[i] < 1 || values[i] > 6) {
            KD_THROW(corrupt, "{}: type {} of token {} is not one of 1 to 6", kTokenType, values[i],
                     i);
        }
        types[i] = static_cast<TokenType>(values[i]);
        if (types[i] == TokenType::byte) {
            KD_THROW(unsupported, "{}: token {} is a byte token, which byte-level BPE has not",
                     kTokenType, i);
        }
    }
    return types;
}

std::vector<TokenMerge> read_merges(const Texts& merges, const IdOfText& id_of) {
    if (merges.size() > kMaxVocabulary) {
        KD_THROW(corrupt, "{}: {} merges (at most {} are supported)", kMerges, merges.size(),
                 kMaxVocabulary);
    }
    std::vector<TokenMerge> all;
    all.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
        const std::string_view merge = merges[rank];
        const size_t space = merge.find(' ');
        if (space == std::string_view::npos || merge.find(' ', space + 1) != merge.npos) {
            KD_THROW(corrupt, "{}: entry {} is not two tokens parted by one space: '{}'", kMerges,
                     rank, printable(merge));
        }
        all.push_back(merge_of(
            merge.substr(0, space), merge.substr(space + 1), static_cast<int32_t>(rank), id_of,
            [&] { return fmt::format("{}: entry {} '{}'", kMerges, rank, printable(merge)); }));
    }
    return all;
}

NamedPretokenizer check_model(const GgufFile& gguf) {
    const std::string_view model = gguf.string("tokenizer.ggml.model");
    if (model != "gpt2") {
        KD_THROW(unsupported, "tokenizer.ggml.model: '{}' is not supported (gpt2)",
                 printable(model));
    }
    if (gguf.boolean_or("tokenizer.ggml.add_space_prefix", false)) {
        KD_THROW(unsupported, "tokenizer.ggml.add_space_prefix: true is not supported");
    }
    return named_pretokenizer(gguf.string_or("tokenizer.ggml.pre", "default"));
}

void store_tokens(const Texts& texts, const std::vector<TokenType>& types, TokenizerSpec& spec) {
    std::string bytes;
    for (size_t id = 0; id < texts.size(); ++id) {
        // A text outside the alphabet stands for itself, as do control and added tokens.
        const bool mapped = types[id] == TokenType::normal && bytes_of_alphabet(texts[id], bytes);
        spec.tokens.push_back(mapped ? bytes : std::string(texts[id]));
        if (!mapped) spec.unmapped.push_back(static_cast<int32_t>(id));
        const bool special = types[id] == TokenType::control || types[id] == TokenType::unknown;
        if (!special && types[id] != TokenType::user_defined) continue;
        if (texts[id].size() > kMaxAddedTokenBytes) {
            KD_THROW(unsupported, "{}: special token {} has {} bytes (at most {})", kTokens, id,
                     texts[id].size(), kMaxAddedTokenBytes);
        }
        spec.added.push_back({.id = static_cast<int32_t>(id),
                              .content = std::string(texts[id]),
                              .special = special});
    }
}

void read_special_ids(const GgufFile& gguf, const IdOfText& id_of,
                      const std::vector<TokenType>& types, TokenizerSpec& spec) {
    const auto read = [&](std::string_view key) {
        const auto last = static_cast<int64_t>(types.size()) - 1;
        return static_cast<int32_t>(gguf.integer_or(key, -1, 0, last));
    };
    for (const auto& [role, name] : kNamedTokens) {
        const int32_t id = read(fmt::format("tokenizer.ggml.{}_token_id", role));
        if (id >= 0) spec.named_tokens.emplace_back(name, id);
        if (role == "bos") spec.bos = id;
        if (role == "eos") spec.eos = id;
    }
    spec.stop_ids = {spec.eos, read("tokenizer.ggml.eot_token_id"),
                     read("tokenizer.ggml.eom_token_id")};
    for (const std::string_view name : kEndNames) {
        const auto found = id_of.find(name);
        if (found == id_of.end()) continue;
        const TokenType type = types[found->second];
        if (type == TokenType::control || type == TokenType::unknown) {
            spec.stop_ids.push_back(found->second);
        }
    }
    std::erase(spec.stop_ids, -1);
    std::sort(spec.stop_ids.begin(), spec.stop_ids.end());
    spec.stop_ids.erase(std::unique(spec.stop_ids.begin(), spec.stop_ids.end()),
                        spec.stop_ids.end());
}

void read_templates(const GgufFile& gguf, TokenizerSpec& spec) {
    spec.chat_template = gguf.string_or(kTemplate, "");
    for (const auto& [key, value] : gguf.metadata()) {
        const std::string prefix = std::string(kTemplate) + ".";
        if (!key.starts_with(prefix)) continue;
        spec.named_templates.emplace(key.substr(prefix.size()), gguf.string(key));
    }
}

}  // namespace

TokenizerSpec tokenizer_spec(const GgufFile& gguf) {
    const Texts& texts = gguf.strings(kTokens);
    const IdOfText id_of = index_tokens(texts);
    NamedPretokenizer pre = check_model(gguf);
    TokenizerSpec spec;
    const std::vector<TokenType> types = read_token_types(gguf, texts.size());
    store_tokens(texts, types, spec);
    spec.byte_token = byte_tokens_of_alphabet(id_of);
    if (pre.merges_by_rank) {
        const auto added = std::find_if(types.begin(), types.end(),
                                        [](TokenType type) { return type != TokenType::normal; });
        spec.merges = merges_by_rank(spec.tokens, added - types.begin());
    } else {
        spec.merges = read_merges(gguf.strings(kMerges), id_of);
    }
    spec.ignore_merges = pre.ignore_merges;
    spec.normalizer = pre.nfc ? Normalizer::nfc : Normalizer::none;
    spec.splits = std::move(pre.steps);
    read_special_ids(gguf, id_of, types, spec);
    spec.adds_bos = gguf.boolean_or("tokenizer.ggml.add_bos_token", pre.adds_bos && spec.bos >= 0);
    spec.adds_eos = gguf.boolean_or("tokenizer.ggml.add_eos_token", false);
    if ((spec.adds_bos && spec.bos < 0) || (spec.adds_eos && spec.eos < 0)) {
        KD_THROW(corrupt, "tokenizer.ggml.add_{0}_token: true, but there is no {0}_token_id",
                 spec.adds_bos && spec.bos < 0 ? "bos" : "eos");
    }
    read_templates(gguf, spec);
    return spec;
}

}  // namespace kd
