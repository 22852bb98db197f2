// Template source -> tokens, with white space treated as trim_blocks and lstrip_blocks ask.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/jinja_value.h"

namespace kd::jinja {

struct Token {
    enum class Kind : uint8_t {
        text,            // template data
        variable_begin,  // {{
        variable_end,
        block_begin,  // {%
        block_end,
        name,
        string,  // unescaped
        integer,
        floating,
        op,  // text holds the operator
        end,
    };
    Kind kind = Kind::end;
    int line = 0;
    std::string text;
    int64_t integer = 0;
    double floating = 0;
};

/// The tokens of `source`, an end token last. Fails in `context`, whose line it moves.
std::vector<Token> tokenize(Context& context, std::string_view source);

}  // namespace kd::jinja
