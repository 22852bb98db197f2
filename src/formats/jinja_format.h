// Python's two ways to fill values into a text.
#pragma once

#include <string>
#include <string_view>

#include "formats/jinja_builtins.h"

namespace kd::jinja {

/// text % values: conversions s r d i u f F x X, %(name)s, flags, width and precision. `values` is
/// a tuple, a mapping or one value. Throws for others, and for values too few or too many.
std::string format_percent(Context& context, std::string_view text, const Value& values);

/// text.format(...): fields {}, {0}, {name}, with !s or !r and a format such as :>8 or :.2f.
std::string format_braces(Context& context, std::string_view text, const Arguments& arguments);

}  // namespace kd::jinja
