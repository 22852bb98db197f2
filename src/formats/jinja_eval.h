// Running a syntax tree.
#pragma once

#include <string>

#include "formats/jinja_ast.h"

namespace kd::jinja {

/// The output of `block` over `variables` (a mapping).
std::string run(Context& context, const Block& block, const Dict& variables);

}  // namespace kd::jinja
