// The regular expressions of tokenizer.json files. They are written for Oniguruma and run on PCRE2,
// over an alphabet of their own: a text's code points are first replaced by bytes, ASCII by itself
// and the others by the class of code points that the expression cannot tell apart. So properties,
// case folding and class intersections mean what they mean to the model's own tokenizer, whatever
// the version of PCRE2 and its Unicode tables.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/byte_regex.h"

namespace kd {

struct TextRange {
    size_t begin;
    size_t end;
};

class SplitRegex {
  public:
    /// `pattern` is untrusted. Throws kd::Error{unsupported} for what is not read here, kd::Error
    /// {corrupt} for what is no expression, both with the place: supported are literals, classes
    /// with ranges, nesting and &&, \s \d \p{general category or Han} and their complements,
    /// groups, (?i:ASCII), look-ahead, atomic groups, alternatives, $, and the repeats * + ? {n,m}.
    /// One that matches nothing is refused.
    explicit SplitRegex(std::string_view pattern);

    /// What one thread keeps between calls for the pieces of one text, of `text_bytes` together.
    struct Scratch {
        Scratch(const SplitRegex& regex, size_t text_bytes) : matcher(regex.regex_, text_bytes) {}
        ByteRegex::Matcher matcher;
        std::string classes;
    };

    /// Appends the matches in well-formed UTF-8 `text`, leftmost first, none within another. Throws
    /// kd::Error{out_of_resources} when the text's steps are used up (byte_regex.h).
    void find_all(std::string_view text, Scratch& scratch, std::vector<TextRange>& matches) const;

  private:
    struct Compiled;
    explicit SplitRegex(Compiled compiled);

    std::vector<uint8_t> class_of_;  // [code points]
    ByteRegex regex_;
};

}  // namespace kd
