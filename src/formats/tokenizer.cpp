#include "formats/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"
#include "formats/bpe.h"
#include "formats/bpe_special.h"
#include "formats/pretokenize.h"
#include "formats/utf8.h"

namespace kd {

namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTokenType = "tokenizer.ggml.token_type";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";
constexpr size_t kMaxVocabulary = size_t{1} << 24;
constexpr size_t kMaxSpecialBytes = 1024;  // of one special token's text

/// A special token's name in GGUF keys ("seperator" is spelled so) and in chat templates.
constexpr std::pair<std::string_view, std::string_view> kNamedTokens[] = {
    {"bos", "bos_token"},       {"eos", "eos_token"},     {"unknown", "unk_token"},
    {"seperator", "sep_token"}, {"padding", "pad_token"}, {"cls", "cls_token"},
    {"mask", "mask_token"}};

/// GGUF's token types.
enum class TokenType : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

using IdOfText = std::unordered_map<std::string_view, int32_t>;

/// The file's strings are checked before anything is built on them.
IdOfText index_tokens(const std::vector<std::string_view>& texts) {
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
                     other->second, i, texts[i].substr(0, 64));
        }
    }
    return id_of;
}

std::vector<TokenType> read_token_types(const GgufFile& gguf, size_t vocabulary) {
    std::vector<TokenType> types(vocabulary, TokenType::normal);
    if (gguf.find(kTokenType) == nullptr) return types;
    const std::vector<int64_t> values = gguf.integers(kTokenType);
    if (values.size() != vocabulary) {
        KD_THROW(corrupt, "{}: {} entries for {} tokens", kTokenType, values.size(), vocabulary);
    }
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

MergeTable read_merges(const std::vector<std::string_view>& merges, const IdOfText& id_of) {
    if (merges.size() > kMaxVocabulary) {
        KD_THROW(corrupt, "{}: {} merges (at most {} are supported)", kMerges, merges.size(),
                 kMaxVocabulary);
    }
    MergeTable table(merges.size());
    std::string joined;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
        const std::string_view merge = merges[rank];
        const size_t space = merge.find(' ');
        if (space == std::string_view::npos || merge.find(' ', space + 1) != merge.npos) {
            KD_THROW(corrupt, "{}: entry {} is not two tokens parted by one space: '{}'", kMerges,
                     rank, replace_invalid_utf8(merge.substr(0, 64)));
        }
        joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
        const auto token = [&](std::string_view text) {
            const auto found = id_of.find(text);
            if (found == id_of.end()) {
                KD_THROW(corrupt, "{}: entry {} '{}': '{}' is not in {}", kMerges, rank,
                         replace_invalid_utf8(merge.substr(0, 64)),
                         replace_invalid_utf8(text.substr(0, 64)), kTokens);
            }
            return found->second;
        };
        const int32_t left = token(merge.substr(0, space));
        const int32_t right = token(merge.substr(space + 1));
        if (!table.insert(left, right,
                          {.rank = static_cast<int32_t>(rank), .result = token(joined)})) {
            KD_THROW(corrupt, "{}: entry {} '{}' stands there twice", kMerges, rank,
                     merge.substr(0, 64));
        }
    }
    return table;
}

std::array<int32_t, 256> find_byte_tokens(const IdOfText& id_of) {
    const std::array<char32_t, 256> alphabet = byte_alphabet();
    std::array<int32_t, 256> byte_token{};
    for (size_t byte = 0; byte < 256; ++byte) {
        std::string text;
        append_utf8(text, alphabet[byte]);
        const auto found = id_of.find(text);
        byte_token[byte] = found == id_of.end() ? -1 : found->second;
    }
    return byte_token;
}

std::string_view check_model(const GgufFile& gguf) {
    const std::string_view model = gguf.string("tokenizer.ggml.model");
    if (model != "gpt2") {
        KD_THROW(unsupported, "tokenizer.ggml.model: '{}' is not supported (gpt2)", model);
    }
    if (gguf.boolean_or("tokenizer.ggml.add_space_prefix", false)) {
        KD_THROW(unsupported, "tokenizer.ggml.add_space_prefix: true is not supported");
    }
    return gguf.string_or("tokenizer.ggml.pre", "default");
}

}  // namespace

struct Tokenizer::Impl {
    Impl(const GgufFile& gguf, const std::vector<std::string_view>& texts, const IdOfText& id_of)
        : pretokenizer(check_model(gguf)),
          bpe(find_byte_tokens(id_of), read_merges(gguf.strings(kMerges), id_of)),
          types(read_token_types(gguf, texts.size())) {
        store_bytes(texts);
        index_specials(texts);
        read_special_ids(gguf, id_of);
        chat_template = gguf.string_or("tokenizer.chat_template", "");
    }

    void store_bytes(const std::vector<std::string_view>& texts) {
        begin.reserve(texts.size() + 1);
        std::string token;
        for (size_t id = 0; id < texts.size(); ++id) {
            begin.push_back(bytes.size());
            // A text outside the alphabet stands for itself, as do control and added tokens.
            if (types[id] == TokenType::normal && bytes_of_alphabet(texts[id], token)) {
                bytes.append(token);
            } else {
                bytes.append(texts[id]);
            }
        }
        begin.push_back(bytes.size());
    }

    void index_specials(const std::vector<std::string_view>& texts) {
        std::vector<SpecialTokens::Entry> added;
        std::vector<SpecialTokens::Entry> all;
        for (size_t i = 0; i < texts.size(); ++i) {
            const auto id = static_cast<int32_t>(i);
            const bool added_token = types[i] == TokenType::user_defined;
            if (!added_token && !is_control(id)) continue;
            if (texts[i].size() > kMaxSpecialBytes) {
                KD_THROW(corrupt, "{}: special token {} has {} bytes (at most {})", kTokens, i,
                         texts[i].size(), kMaxSpecialBytes);
            }
            all.push_back({std::string(texts[i]), id});
            if (added_token) added.push_back(all.back());
        }
        user_defined = SpecialTokens(std::move(added));
        specials = SpecialTokens(std::move(all));
    }

    void read_special_ids(const GgufFile& gguf, const IdOfText& id_of) {
        const auto read = [&](std::string_view key) {
            const auto last = static_cast<int64_t>(types.size()) - 1;
            return static_cast<int32_t>(gguf.integer_or(key, -1, 0, last));
        };
        for (const auto& [role, name] : kNamedTokens) {
            const int32_t id = read(fmt::format("tokenizer.ggml.{}_token_id", role));
            if (id >= 0) named_tokens.emplace_back(name, id);
            if (role == "bos") bos = id;
            if (role == "eos") eos = id;
        }
        stop_ids = {eos, read("tokenizer.ggml.eot_token_id"), read("tokenizer.ggml.eom_token_id")};
        for (const std::string_view name : {"<|im_end|>", "<|endoftext|>"}) {
            const auto found = id_of.find(name);
            if (found != id_of.end() && is_control(found->second)) {
                stop_ids.push_back(found->second);
            }
        }
        std::erase(stop_ids, -1);
        std::sort(stop_ids.begin(), stop_ids.end());
        stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
    }

    bool is_control(int32_t id) const {
        return types[id] == TokenType::control || types[id] == TokenType::unknown;
    }

    void check_id(int32_t id) const {
        if (id < 0 || static_cast<size_t>(id) >= types.size()) {
            KD_THROW(invalid_argument, "token {} is not in the vocabulary of {}", id, types.size());
        }
    }

    std::string_view bytes_of(int32_t id) const {
        return std::string_view(bytes).substr(begin[id], begin[id + 1] - begin[id]);
    }

    /// Text without special tokens. Ill-formed units are pieces of their own.
    void encode_text(std::string_view text, std::vector<std::string_view>& pieces,
                     BpeScratch& scratch, std::vector<int32_t>& ids) const {
        while (!text.empty()) {
            pieces.clear();
            const size_t valid = valid_utf8_bytes(text);
            if (valid > 0) pretokenizer.split(text.substr(0, valid), pieces);
            text.remove_prefix(valid);
            if (!text.empty()) {
                const size_t bad = next_utf8(text).bytes;
                pieces.push_back(text.substr(0, bad));
                text.remove_prefix(bad);
            }
            for (const std::string_view piece : pieces) bpe.encode(piece, scratch, ids);
        }
    }

    Pretokenizer pretokenizer;
    Bpe bpe;
    std::vector<TokenType> types;
    std::string bytes;          // of all tokens, end to end
    std::vector<size_t> begin;  // [vocabulary + 1] offsets into bytes
    SpecialTokens user_defined;
    SpecialTokens specials;  // control and user-defined
    int32_t bos = -1;
    int32_t eos = -1;
    std::vector<std::pair<std::string_view, int32_t>> named_tokens;
    std::vector<int32_t> stop_ids;
    std::string chat_template;
};

Tokenizer::Tokenizer(const GgufFile& gguf) {
    const std::vector<std::string_view>& texts = gguf.strings(kTokens);
    impl_ = std::make_unique<Impl>(gguf, texts, index_tokens(texts));
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
    const SpecialTokens& specials = parse_special ? impl_->specials : impl_->user_defined;
    std::vector<int32_t> ids;
    std::vector<std::string_view> pieces;
    BpeScratch scratch;
    while (!text.empty()) {
        const SpecialTokens::Match match = specials.find(text);
        impl_->encode_text(text.substr(0, match.begin), pieces, scratch, ids);
        if (match.bytes > 0) ids.push_back(match.id);
        text.remove_prefix(match.begin + match.bytes);
    }
    return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool with_special) const {
    std::string text;
    for (const int32_t id : ids) {
        impl_->check_id(id);
        if (with_special || !impl_->is_control(id)) text.append(impl_->bytes_of(id));
    }
    return text;
}

std::string_view Tokenizer::bytes_of_token(int32_t id) const {
    impl_->check_id(id);
    return impl_->bytes_of(id);
}

bool Tokenizer::is_control(int32_t id) const {
    impl_->check_id(id);
    return impl_->is_control(id);
}

int32_t Tokenizer::vocabulary() const {
    return static_cast<int32_t>(impl_->types.size());
}

int32_t Tokenizer::bos() const {
    return impl_->bos;
}

int32_t Tokenizer::eos() const {
    return impl_->eos;
}

const std::vector<int32_t>& Tokenizer::stop_ids() const {
    return impl_->stop_ids;
}

const std::vector<std::pair<std::string_view, int32_t>>& Tokenizer::named_tokens() const {
    return impl_->named_tokens;
}

const std::string& Tokenizer::chat_template() const {
    return impl_->chat_template;
}

std::string Tokenizer::token_text(int32_t id) const {
    return id == -1 ? std::string() : std::string(bytes_of_token(id));
}

std::string StreamDecoder::push(int32_t id) {
    if (tokenizer_->is_control(id)) return {};
    pending_.append(tokenizer_->bytes_of_token(id));
    std::string text;
    const size_t waiting = append_valid_utf8(text, pending_);
    pending_.erase(0, pending_.size() - waiting);
    return text;
}

std::string StreamDecoder::finish() {
    std::string text = replace_invalid_utf8(pending_);
    pending_.clear();
    return text;
}

}  // namespace kd
