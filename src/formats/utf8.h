// UTF-8 over untrusted bytes. Ill-formed input is cut as the WHATWG Encoding Standard does: each
// maximal subpart of an ill-formed sequence is one unit (replaced by one U+FFFD when replaced).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kd {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind : uint8_t {
    valid,       // one code point
    invalid,     // a maximal subpart that no following bytes can complete
    incomplete,  // the text ends inside a sequence that is well-formed so far
};

struct Utf8Unit {
    Utf8Kind kind = Utf8Kind::invalid;
    uint8_t bytes = 0;        // >= 1
    char32_t code_point = 0;  // only for valid
};

/// The unit that starts at text[0]; text is not empty.
Utf8Unit next_utf8(std::string_view text);

/// Bytes of the longest well-formed prefix of text.
size_t valid_utf8_bytes(std::string_view text);

/// Appends code_point (a Unicode scalar value) to out.
void append_utf8(std::string& out, char32_t code_point);

/// Appends text up to its incomplete tail to out, invalid units replaced by U+FFFD; returns the
/// bytes of that tail (0 to 3).
size_t append_valid_utf8(std::string& out, std::string_view text);

/// text with every ill-formed unit, an incomplete tail included, replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace kd
