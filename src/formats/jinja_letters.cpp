// What Python's string methods know of letters and digits.
#include <algorithm>

#include "formats/code_point_set.h"
#include "formats/jinja_case.h"
#include "formats/jinja_strings.h"
#include "formats/utf8.h"

namespace kd::jinja {

namespace {

/// Whether `set` holds the character.
bool is_in(const CodePointSet& set, std::string_view character) {
    const Utf8Unit unit = next_utf8(character);
    return unit.kind == Utf8Kind::valid && set.contains(unit.code_point);
}

CodePointSet property(std::string_view name) {
    return unicode_property(name).value();
}

/// Case_Ignorable, by which the end of a Greek word is found.
bool is_ignorable(std::string_view character) {
    static const CodePointSet kIgnorable = property("Mn") | property("Me") | property("Cf") |
                                           property("Lm") | property("Sk") |
                                           CodePointSet({{'\'', '\''},
                                                         {'.', '.'},
                                                         {':', ':'},
                                                         {0xB7, 0xB7},
                                                         {0x387, 0x387},
                                                         {0x55F, 0x55F},
                                                         {0x5F4, 0x5F4},
                                                         {0x2018, 0x2019},
                                                         {0x2024, 0x2024},
                                                         {0x2027, 0x2027},
                                                         {0xFE13, 0xFE13},
                                                         {0xFE52, 0xFE52},
                                                         {0xFE55, 0xFE55},
                                                         {0xFF07, 0xFF07},
                                                         {0xFF0E, 0xFF0E},
                                                         {0xFF1A, 0xFF1A}});
    return is_in(kIgnorable, character);
}

/// Whether the capital sigma all[at] ends a word.
bool is_final_sigma(const std::vector<std::string_view>& all, size_t at) {
    size_t before = at;
    while (before > 0 && is_ignorable(all[before - 1])) --before;
    if (before == 0 || !is_cased(all[before - 1])) return false;
    size_t behind = at + 1;
    while (behind < all.size() && is_ignorable(all[behind])) ++behind;
    return behind == all.size() || !is_cased(all[behind]);
}

void append_lower(std::string& out, const std::vector<std::string_view>& all, size_t at) {
    constexpr std::string_view kSigma = "\u03A3";
    if (all[at] == kSigma && is_final_sigma(all, at)) {
        out += "\u03C2";
    } else {
        append_case(out, kLowerCase, all[at]);
    }
}

bool is_decimal(std::string_view c) {
    static const CodePointSet kDecimal = property("Nd");
    return c[0] >= 0 ? c[0] >= '0' && c[0] <= '9' : is_in(kDecimal, c);
}

/// Digits that are no decimals, such as a raised two, are known by tables that are not here.
bool is_digit(Context& context, std::string_view c) {
    static const CodePointSet kOther = property("No");
    if (c[0] < 0 && is_in(kOther, c)) context.unsupported("isdigit of a number sign");
    return is_decimal(c);
}

bool is_letter(std::string_view c) {
    static const CodePointSet kLetter = property("L");
    return c[0] >= 0 ? is_cased(c) : is_in(kLetter, c);
}

}  // namespace

std::string upper(Context& context, std::string_view text) {
    std::string out;
    for (const std::string_view c : characters(context, text)) append_case(out, kUpperCase, c);
    context.spend_bytes(out.size());
    return out;
}

std::string lower(Context& context, std::string_view text) {
    std::string out;
    const std::vector<std::string_view> all = characters(context, text);
    for (size_t i = 0; i < all.size(); ++i) append_lower(out, all, i);
    context.spend_bytes(out.size());
    return out;
}

std::string title(Context& context, std::string_view text) {
    std::string out;
    const std::vector<std::string_view> all = characters(context, text);
    for (size_t i = 0; i < all.size(); ++i) {
        if (i > 0 && is_cased(all[i - 1])) {
            append_lower(out, all, i);
        } else {
            append_case(out, kTitleCase, all[i]);
        }
    }
    context.spend_bytes(out.size());
    return out;
}

std::string capitalize(Context& context, std::string_view text, Capital capital) {
    std::string out;
    const std::vector<std::string_view> all = characters(context, text);
    // jinja2's filter looks at the rest alone, str.capitalize at the whole text.
    const std::vector<std::string_view> rest(all.begin() + (all.empty() ? 0 : 1), all.end());
    const bool whole = capital == Capital::title;
    if (!all.empty()) append_case(out, whole ? kTitleCase : kUpperCase, all[0]);
    for (size_t i = 0; i < rest.size(); ++i) {
        append_lower(out, whole ? all : rest, whole ? i + 1 : i);
    }
    context.spend_bytes(out.size());
    return out;
}

bool text_is(Context& context, std::string_view text, std::string_view property) {
    const std::vector<std::string_view> all = characters(context, text);
    const auto every = [&](auto holds) {
        return !all.empty() && std::all_of(all.begin(), all.end(), holds);
    };
    if (property == "isdecimal") return every(is_decimal);
    if (property == "isdigit") return every([&](auto c) { return is_digit(context, c); });
    if (property == "isalpha") return every(is_letter);
    if (property == "isalnum") {
        return every([&](auto c) { return is_letter(c) || is_digit(context, c); });
    }
    if (property == "isspace") return every([](auto c) { return is_space(c); });
    // isupper, islower: no letter of the other case, and at least one of this.
    const bool wants_upper = property == "isupper";
    bool found = false;
    for (const std::string_view c : all) {
        if (!is_cased(c)) continue;
        if (wants_upper ? !is_upper(c) : !is_lower(c)) return false;
        found = true;
    }
    return found;
}

}  // namespace kd::jinja
