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

/// Throw kd::Error{unsupported} if there is no filter, no test of this name.
void require_filter(const Context& context, std::string_view name);
void require_test(const Context& context, std::string_view name);
/// Whether jinja2 has no filter of this name either: it refuses it where it runs, not before.
bool is_unknown_filter(std::string_view name);

/// The function of this name, or an undefined value.
Value find_function(const Context& context, std::string_view name);

/// Whether Python has a method of this name for values of this kind. Methods that change their
/// value do not exist, as in jinja2's immutable sandbox.
bool is_method(const Value& value, std::string_view name);

/// Fails if a namespace may not hold `value` under this name.
void require_storable(const Context& context, std::string_view name, const Value& value);

}  // namespace kd::jinja
