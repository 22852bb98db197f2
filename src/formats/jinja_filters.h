// What the files that implement filters share.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "formats/jinja_arguments.h"
#include "formats/jinja_builtins.h"

namespace kd::jinja {

struct FilterCall {
    Context& context;
    std::string_view name;
    const Value& value;
    const Arguments& arguments;

    Bound bind(std::initializer_list<std::string_view> parameters, size_t required = 0) const {
        return {context, name, arguments, parameters, required};
    }
    /// The value as text, whatever it is.
    std::string text() const { return to_text(context, value); }
};

using Filter = Value (*)(const FilterCall&);

/// Null if there is none of this name.
Filter find_text_filter(std::string_view name);
Filter find_number_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);

}  // namespace kd::jinja
