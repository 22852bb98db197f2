// Sets of Unicode code points, and those that regular expressions name.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace kd {

inline constexpr char32_t kCodePoints = 0x110000;

struct CodePointRange {
    char32_t first;
    char32_t last;
};

/// Ascending ranges that neither overlap nor touch.
class CodePointSet {
  public:
    CodePointSet() = default;
    /// Ranges in any order, each with first <= last < kCodePoints; they may overlap.
    CodePointSet(std::vector<CodePointRange> ranges);

    const std::vector<CodePointRange>& ranges() const { return ranges_; }
    bool contains(char32_t code_point) const;
    CodePointSet complement() const;
    friend CodePointSet operator|(const CodePointSet& a, const CodePointSet& b);
    friend CodePointSet operator&(const CodePointSet& a, const CodePointSet& b);

  private:
    std::vector<CodePointRange> ranges_;
};

/// A general category (Lu), a group of them (L) or the script Han, as in Unicode 16: the tables of
/// Oniguruma in Hugging Face tokenizers 0.23 and of the regex crate in tiktoken 0.14, which agree.
/// utf8proc 2.8 has Unicode 15.0; what is newer is listed in code_point_set.cpp. None for another
/// name.
std::optional<CodePointSet> unicode_property(std::string_view name);

/// White_Space; \s and what strip flags remove.
CodePointSet white_space();

/// Rust's char::is_numeric, the Digits pre-tokenizer: \p{N} and the numbers of Unicode 17.
CodePointSet numeric_characters();

/// The regex crate's \w: next to these a single_word token does not match.
CodePointSet word_characters();

}  // namespace kd
