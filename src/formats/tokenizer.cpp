#include "formats/tokenizer.h"

#include <deque>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "formats/added_tokens.h"
#include "formats/bpe.h"
#include "formats/nfc.h"
#include "formats/pretokenize.h"
#include "formats/seeded_hash.h"
#include "formats/tokenizer_spec.h"
#include "formats/utf8.h"

namespace kd {

namespace {

MergeTable table_of(const TokenizerSpec& spec) {
    MergeTable table(spec.merges.size());
    for (const TokenMerge& merge : spec.merges) {
        if (!table.insert(merge.left, merge.right, {.rank = merge.rank, .result = merge.result})) {
            KD_THROW(corrupt, "merges: entry {}, '{}' and '{}', stands there twice", merge.rank,
                     printable(spec.tokens[merge.left]), printable(spec.tokens[merge.right]));
        }
    }
    return table;
}

/// The added tokens that are looked for in the text as it is, or in the normalised text.
AddedTokens added_tokens_of(const TokenizerSpec& spec, bool normalized) {
    std::vector<AddedToken> tokens;
    for (AddedToken token : spec.added) {
        // Without a normalizer the second pass is the first one's text, but still comes second.
        if (token.normalized != normalized) continue;
        if (normalized && spec.normalizer == Normalizer::nfc) token.content = nfc(token.content);
        tokens.push_back(std::move(token));
    }
    return AddedTokens(std::move(tokens));
}

}  // namespace

struct Tokenizer::Impl {
    explicit Impl(TokenizerSpec from)
        : pretokenizer(std::move(from.splits)),
          bpe(from.byte_token, table_of(from)),
          raw_tokens(added_tokens_of(from, false)),
          normalized_tokens(added_tokens_of(from, true)),
          control(from.tokens.size()) {
        from.merges.clear();
        from.merges.shrink_to_fit();
        spec = std::move(from);
        for (const AddedToken& token : spec.added) {
            control[token.id] = token.special;
        }
        if (spec.ignore_merges) index_whole_pieces();
    }

    /// The texts of the vocabulary. Those of added tokens are in its alphabet, too.
    void index_whole_pieces() {
        std::vector<bool> left_out(spec.tokens.size());
        for (const int32_t id : spec.unmapped) left_out[id] = true;
        for (const AddedToken& token : spec.added) left_out[token.id] = true;
        whole_pieces.reserve(spec.tokens.size());
        for (size_t id = 0; id < spec.tokens.size(); ++id) {
            if (!left_out[id]) whole_pieces.emplace(spec.tokens[id], static_cast<int32_t>(id));
        }
        std::string bytes;
        for (const AddedToken& token : spec.added) {
            if (!token.in_vocabulary || !bytes_of_alphabet(token.content, bytes)) continue;
            whole_pieces.emplace(added_pieces.emplace_back(bytes), token.id);
        }
    }

    void check_id(int32_t id) const {
        if (id < 0 || static_cast<size_t>(id) >= spec.tokens.size()) {
            KD_THROW(invalid_argument, "token {} is not in the vocabulary of {}", id,
                     spec.tokens.size());
        }
    }

    void encode_piece(std::string_view piece, BpeScratch& scratch,
                      std::vector<int32_t>& ids) const {
        if (spec.ignore_merges) {
            const auto whole = whole_pieces.find(piece);
            if (whole != whole_pieces.end()) {
                ids.push_back(whole->second);
                return;
            }
        }
        bpe.encode(piece, scratch, ids);
    }

    /// Text without added tokens. Ill-formed units are pieces of their own.
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
            for (const std::string_view piece : pieces) encode_piece(piece, scratch, ids);
        }
    }

    Pretokenizer pretokenizer;
    Bpe bpe;
    AddedTokens raw_tokens;
    AddedTokens normalized_tokens;
    std::vector<bool> control;                                             // [ids]
    std::deque<std::string> added_pieces;                                  // texts of whole_pieces
    std::unordered_map<std::string_view, int32_t, TextHash> whole_pieces;  // of ignore_merges
    TokenizerSpec spec;  // less what has moved elsewhere
};

Tokenizer::Tokenizer(TokenizerSpec spec) : impl_(std::make_unique<Impl>(std::move(spec))) {}
Tokenizer::Tokenizer(const GgufFile& gguf) : Tokenizer(tokenizer_spec(gguf)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
    std::vector<AddedTokens::Segment> raw;
    std::vector<AddedTokens::Segment> segments;
    std::vector<std::string_view> pieces;
    std::string normalized;
    BpeScratch scratch;
    std::vector<int32_t> ids;
    impl_->raw_tokens.split(text, parse_special, raw);
    for (const AddedTokens::Segment& stretch : raw) {
        if (stretch.id >= 0) {
            ids.push_back(stretch.id);
            continue;
        }
        std::string_view rest = stretch.text;
        if (impl_->spec.normalizer == Normalizer::nfc) rest = normalized = nfc(rest);
        segments.clear();
        impl_->normalized_tokens.split(rest, parse_special, segments);
        for (const AddedTokens::Segment& segment : segments) {
            if (segment.id >= 0) {
                ids.push_back(segment.id);
            } else {
                impl_->encode_text(segment.text, pieces, scratch, ids);
            }
        }
    }
    return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool with_special) const {
    std::string text;
    for (const int32_t id : ids) {
        impl_->check_id(id);
        if (with_special || !impl_->control[id]) text.append(impl_->spec.tokens[id]);
    }
    return text;
}

std::string_view Tokenizer::bytes_of_token(int32_t id) const {
    impl_->check_id(id);
    return impl_->spec.tokens[id];
}

bool Tokenizer::is_control(int32_t id) const {
    impl_->check_id(id);
    return impl_->control[id];
}

int32_t Tokenizer::vocabulary() const {
    return static_cast<int32_t>(impl_->spec.tokens.size());
}

int32_t Tokenizer::bos() const {
    return impl_->spec.bos;
}

int32_t Tokenizer::eos() const {
    return impl_->spec.eos;
}

bool Tokenizer::adds_bos() const {
    return impl_->spec.adds_bos;
}

bool Tokenizer::adds_eos() const {
    return impl_->spec.adds_eos;
}

const std::vector<int32_t>& Tokenizer::stop_ids() const {
    return impl_->spec.stop_ids;
}

const std::vector<std::pair<std::string_view, int32_t>>& Tokenizer::named_tokens() const {
    return impl_->spec.named_tokens;
}

const std::string& Tokenizer::chat_template() const {
    return impl_->spec.chat_template;
}

const std::map<std::string, std::string>& Tokenizer::named_templates() const {
    return impl_->spec.named_templates;
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
