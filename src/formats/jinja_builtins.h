// Filters, tests, methods and functions of the template language.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/jinja_value.h"

namespace kd::jinja {

struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;
};

/// All throw kd::Error{unsupported} for a name that they do not know and
/// kd::Error{invalid_argument} for arguments of the wrong number or kind.
Value apply_filter(Context& context, std::string_view name, const Value& value,
                   const Arguments& arguments);
bool apply_test(Context& context, std::string_view name, const Value& value,
                const Arguments& arguments);
Value call_method(Context& context, const Value& self, std::string_view name,
                  const Arguments& arguments);
Value call_function(Context& context, Function function, const Arguments& arguments);

/// The function of this name, or an undefined value.
Value find_function(std::string_view name);

/// Whether mappings have a method of this name, which an attribute of it would be.
bool is_mapping_method(std::string_view name);

}  // namespace kd::jinja
