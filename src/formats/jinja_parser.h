// Tokens -> syntax tree.
#pragma once

#include <string_view>

#include "formats/jinja_ast.h"

namespace kd::jinja {

/// Throws kd::Error naming the construct and its line for templates that are malformed, nest too
/// deep or use a part of the language that is not supported.
Block parse(Context& context, std::string_view source);

}  // namespace kd::jinja
