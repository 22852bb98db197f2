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
/// As split, from the right.
std::vector<Value> split_right(Context& context, std::string_view text,
                               const std::optional<std::string>& separator, int64_t most);
/// str.splitlines: cuts at the ends of lines, which are kept if asked for.
std::vector<Value> split_lines(Context& context, std::string_view text, bool keep_ends);
/// The first `most` occurrences (negative: all); an empty one is before and behind each character.
std::string replace(Context& context, std::string_view text, const std::string& from,
                    const std::string& to, int64_t most);
std::string join(Context& context, const std::vector<Value>& items, std::string_view separator);
/// Nothing for a negative count.
std::string repeated(Context& context, std::string_view text, int64_t count);

/// str.upper, str.lower, str.title, str.capitalize with all of Unicode.
std::string upper(Context& context, std::string_view text);
std::string lower(Context& context, std::string_view text);
std::string title(Context& context, std::string_view text);
/// What becomes of the first letter: the two differ for a few letters such as U+01C6.
enum class Capital : uint8_t { title, upper };
std::string capitalize(Context& context, std::string_view text, Capital capital = Capital::title);

/// text.isdigit() and so on: `property` is the method's name.
bool text_is(Context& context, std::string_view text, std::string_view property);

/// & < > ' " as HTML has them.
std::string escape(Context& context, std::string_view text);

/// A name or string of a template, cut to what a message needs.
std::string shortened(std::string_view text);

/// Counts what a search for `needle` may cost at worst, 256 bytes compared being a step.
void spend_search(Context& context, std::string_view text, std::string_view needle);

/// Of one character.
bool is_space(std::string_view character);

}  // namespace kd::jinja
