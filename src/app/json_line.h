// JSON lines: objects from outside, read in linear time or refused, and lines of ours.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer.h"

namespace kd {

/// An object whose keys keep their order. Throws kd::Error naming the column for what is no JSON
/// (lone surrogates, ill-formed UTF-8 and raw NUL bytes included); for what is no object, keys that
/// occur twice in one, integers beyond 64 bits (others would read them as rounded floats) and
/// nesting beyond 128.
nlohmann::ordered_json parse_json_line(std::string_view line);

// What the lines of score and tokenize have in common. Each throws kd::Error for a field that is
// missing or of another kind.

/// line[key], of the kind that `is` accepts and `kind` names.
const nlohmann::ordered_json& line_field(const nlohmann::ordered_json& line, const char* key,
                                         bool (nlohmann::ordered_json::*is)() const noexcept,
                                         const char* kind);
/// "special"; false where it is not there.
bool line_special(const nlohmann::ordered_json& line);
/// "ids", all of them in the vocabulary.
std::vector<int32_t> line_ids(const nlohmann::ordered_json& line, const Tokenizer& tokenizer);
/// The ids of "text", with "special".
std::vector<int32_t> encode_line(const nlohmann::ordered_json& line, const Tokenizer& tokenizer);

/// `value` without a line break inside, even for readers that take U+0085, U+2028 and U+2029 for
/// ones; ill-formed UTF-8 becomes U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

/// {"error": message}: control characters become spaces, what is beyond 1,000 bytes "...".
std::string error_line(std::string_view message);

}  // namespace kd
