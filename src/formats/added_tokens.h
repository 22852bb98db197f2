// Tokens that stand in a text as they are written and are split out before anything else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/code_point_set.h"

namespace kd {

/// As in tokenizer.json's "added_tokens".
struct AddedToken {
    int32_t id = -1;
    std::string content;
    bool special = false;        // a control token: not part of the text
    bool lstrip = false;         // takes along the white space before it
    bool rstrip = false;         // and behind it
    bool single_word = false;    // does not match next to a word character
    bool normalized = false;     // is looked for in the normalised text
    bool in_vocabulary = false;  // the content is a text of the model's vocabulary, too
};

/// Finds some added tokens in a text as Hugging Face tokenizers does (added_vocabulary.rs): the
/// leftmost and longest of all first, and only then are the flags looked at, so a match that fails
/// its flag hides shorter ones.
class AddedTokens {
  public:
    /// A stretch of text, or a token in it.
    struct Segment {
        std::string_view text;
        int32_t id;  // -1: text
    };

    AddedTokens() = default;
    /// Contents are not empty. Throws kd::Error{unsupported} if two are equal.
    explicit AddedTokens(std::vector<AddedToken> tokens);

    /// Appends the segments of `text`. Without `parse_special`, special tokens remain text.
    void split(std::string_view text, bool parse_special, std::vector<Segment>& segments) const;

  private:
    struct Match {
        size_t begin;
        const AddedToken* token;
    };
    /// The leftmost token from `from` on, the longest of those that start there.
    std::optional<Match> find(std::string_view text, size_t from) const;
    bool stands_alone(std::string_view before, std::string_view behind) const;

    std::vector<AddedToken> tokens_;  // ascending by content, distinct
    std::string first_bytes_;         // distinct
    CodePointSet word_;               // empty if no token asks
    CodePointSet space_;
};

}  // namespace kd
