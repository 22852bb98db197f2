// Attributes, items and slices of values.
#pragma once

#include <optional>
#include <string_view>

#include "formats/jinja_value.h"

namespace kd::jinja {

/// `value.name`: a method of the value's type, else what it holds under that name. Undefined,
/// without a source, if there is neither; fails for an attribute of undefined.
Value get_attribute(Context& context, const Value& value, std::string_view name);

/// `value[key]`: what the value holds there, else its attribute of that name. As above.
Value get_item(Context& context, const Value& value, const Value& key);

/// `value[begin:end:step]`; none: left out. Fails for kinds without an order.
Value get_slice(Context& context, const Value& value, const Value& begin, const Value& end,
                const Value& step);

}  // namespace kd::jinja
