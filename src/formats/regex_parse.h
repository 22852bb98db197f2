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

/// Throws as SplitRegex does. The syntax has callouts (?CN) for ByteRegex to count: behind each
/// repeat and at the end of each alternative of a group. Between two of them, or from the start of
/// a match to the first, no part is matched twice, so the work is at most the pattern's length, of
/// which N is a share; only a repeat that fails before its least count goes over more, and has one
/// before it.
std::vector<RegexPart> parse_regex(std::string_view pattern);

}  // namespace kd
