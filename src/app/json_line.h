// One JSON value from outside on one line: whatever it holds, it is read in linear time or refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kd {

/// Arrays and objects inside each other.
inline constexpr size_t kMaxJsonDepth = 128;

/// Keys keep their order. Throws kd::Error naming the column for what is no JSON (lone surrogates,
/// ill-formed UTF-8 and raw NUL bytes included); for keys that occur twice in an object, integers
/// beyond 64 bits (others would read them as rounded floats) and nesting beyond kMaxJsonDepth.
nlohmann::ordered_json parse_json_line(std::string_view line);

/// `value` without a line break inside, even for readers that take U+0085, U+2028 and U+2029 for
/// ones; ill-formed UTF-8 becomes U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

/// {"error": message}: control characters become spaces, what is beyond 1,000 bytes "...".
std::string error_line(std::string_view message);

}  // namespace kd
