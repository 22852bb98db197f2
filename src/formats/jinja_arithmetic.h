// The binary operators of the template language.
#pragma once

#include <string>
#include <string_view>

#include "formats/jinja_value.h"

namespace kd::jinja {

/// op: + - * / // % ** ~. `left_source` and `right_source` name the operands in messages.
Value operate(Context& context, std::string_view op, const Value& left, const Value& right,
              const std::string& left_source, const std::string& right_source);
Value negate(Context& context, const Value& value);

}  // namespace kd::jinja
