// Python's string methods as plain functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/jinja_value.h"

namespace kd::jinja {

enum class Side : uint8_t { left = 1, right = 2, both = 3 };

/// Without the leading or trailing characters that are in `characters` (none given: white space).
std::string strip(Context& context, std::string_view text,
                  const std::optional<std::string>& characters, Side side);
/// At most `most` cuts (negative: all), from the left. No separator: runs of white space.
std::vector<Value> split(Context& context, std::string_view text,
                         const std::optional<std::string>& separator, int64_t most);
/// As split, from the right; the separator is required.
std::vector<Value> split_right(Context& context, std::string_view text,
                               const std::string& separator, int64_t most);
/// The first `most` occurrences (negative: all).
std::string replace(Context& context, std::string_view text, const std::string& from,
                    const std::string& to, int64_t most);
/// ASCII letters only: other letters would need case tables, so they are refused.
std::string upper(Context& context, std::string_view text);
std::string lower(Context& context, std::string_view text);
std::string join(Context& context, const std::vector<Value>& items, std::string_view separator);

}  // namespace kd::jinja
