// Reads the regular expressions of tokenizer.json files (Oniguruma's syntax, the part that
// split_regex.h names) into pieces of a PCRE2 pattern and sets of code points.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/code_point_set.h"

namespace kd {

/// One of: PCRE2 syntax, the same for any alphabet; a set, matched by one code point.
struct RegexPart {
    std::string syntax;  // empty: a set
    CodePointSet set;
};

/// Throws as SplitRegex does.
std::vector<RegexPart> parse_regex(std::string_view pattern);

}  // namespace kd
