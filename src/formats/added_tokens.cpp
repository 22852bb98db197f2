#include "formats/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/utf8.h"

namespace kd {

namespace {

/// The bytes of the last character of `text`; 0 if it does not end in a whole one.
size_t last_character(std::string_view text) {
    for (size_t bytes = 1; bytes <= std::min<size_t>(4, text.size()); ++bytes) {
        const Utf8Unit unit = next_utf8(text.substr(text.size() - bytes));
        if (unit.kind == Utf8Kind::valid && unit.bytes == bytes) return bytes;
    }
    return 0;
}

bool starts_with(std::string_view text, const CodePointSet& set) {
    if (text.empty()) return false;
    const Utf8Unit unit = next_utf8(text);
    return unit.kind == Utf8Kind::valid && set.contains(unit.code_point);
}

bool ends_with(std::string_view text, const CodePointSet& set) {
    const size_t bytes = last_character(text);
    return bytes > 0 && starts_with(text.substr(text.size() - bytes), set);
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
    const auto same = std::adjacent_find(
        tokens_.begin(), tokens_.end(),
        [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; });
    if (same != tokens_.end()) {
        KD_THROW(unsupported, "added tokens {} and {} are the same '{}' in normalised text",
                 std::min(same->id, same[1].id), std::max(same->id, same[1].id),
                 printable(same->content));
    }
    for (const AddedToken& token : tokens_) {
        if (first_bytes_.empty() || first_bytes_.back() != token.content[0]) {
            first_bytes_.push_back(token.content[0]);
        }
        if (token.single_word && word_.ranges().empty()) word_ = word_characters();
        if ((token.lstrip || token.rstrip) && space_.ranges().empty()) space_ = white_space();
    }
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, size_t from) const {
    for (size_t at = text.find_first_of(first_bytes_, from); at != text.npos;
         at = text.find_first_of(first_bytes_, at + 1)) {
        // [low, high): the tokens that start with the `bytes` bytes of the text from `at` on. They
        // stand together, a shorter one before those that continue it.
        const std::string_view rest = text.substr(at);
        auto low = tokens_.begin();
        auto high = tokens_.end();
        const AddedToken* longest = nullptr;
        for (size_t bytes = 0; low != high; ++bytes) {
            if (low->content.size() == bytes) longest = &*low++;
            if (bytes == rest.size()) break;
            const auto byte = static_cast<uint8_t>(rest[bytes]);
            const auto byte_at = [&](const AddedToken& token) {
                return static_cast<uint8_t>(token.content[bytes]);
            };
            low = std::partition_point(
                low, high, [&](const AddedToken& token) { return byte_at(token) < byte; });
            high = std::partition_point(
                low, high, [&](const AddedToken& token) { return byte_at(token) == byte; });
        }
        if (longest != nullptr) return Match{at, longest};
    }
    return std::nullopt;
}

bool AddedTokens::stands_alone(std::string_view before, std::string_view behind) const {
    return !ends_with(before, word_) && !starts_with(behind, word_);
}

void AddedTokens::split(std::string_view text, bool parse_special,
                        std::vector<Segment>& segments) const {
    size_t done = 0;
    size_t space_end = 0;  // of the white space that rstrip saw last
    for (size_t from = 0; const auto match = find(text, from);) {
        const AddedToken& token = *match->token;
        size_t begin = match->begin;
        size_t end = begin + token.content.size();
        from = end;
        if (token.special && !parse_special) continue;
        if (token.single_word && !stands_alone(text.substr(0, begin), text.substr(end))) continue;
        while (token.lstrip && begin > done && ends_with(text.substr(done, begin - done), space_)) {
            begin -= last_character(text.substr(0, begin));
        }
        if (token.rstrip) {
            space_end = std::max(space_end, end);
            while (starts_with(text.substr(space_end), space_)) {
                space_end += next_utf8(text.substr(space_end)).bytes;
            }
            end = space_end;
        }
        if (done < begin) segments.push_back({text.substr(done, begin - done), -1});
        segments.push_back({text.substr(match->begin, token.content.size()), token.id});
        // White space that is taken along can be a token itself, and is then both.
        done = end;
    }
    if (done < text.size()) segments.push_back({text.substr(done), -1});
}

}  // namespace kd
