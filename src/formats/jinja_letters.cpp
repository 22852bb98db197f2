// What Python's string methods know of letters and digits.
#include <algorithm>

#include "formats/jinja_case.h"
#include "formats/jinja_strings.h"
#include "formats/utf8.h"
#include "formats/utf8_regex.h"

namespace kd::jinja {

namespace {

/// Whether `pattern` matches the whole of one character.
bool matches(const Utf8Regex& pattern, std::string_view character) {
    return next_utf8(character).kind == Utf8Kind::valid &&
           Utf8Regex::Matcher(pattern).match(character, 0) == character.size();
}

/// Case_Ignorable, by which the end of a Greek word is found.
bool is_ignorable(std::string_view character) {
    static const Utf8Regex kIgnorable(
        R"([\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}'.:\x{B7}\x{387}\x{55F}\x{5F4}\x{2018}\x{2019}\x{2024}\x{2027}\x{FE13}\x{FE52}\x{FE55}\x{FF07}\x{FF0E}\x{FF1A}])");
    return matches(kIgnorable, character);
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
    static const Utf8Regex kDecimal(R"(\p{Nd})");
    return c[0] >= 0 ? c[0] >= '0' && c[0] <= '9' : matches(kDecimal, c);
}

/// Digits that are no decimals, such as a raised two, are known by tables that are not here.
bool is_digit(Context& context, std::string_view c) {
    static const Utf8Regex kOther(R"(\p{No})");
    if (c[0] < 0 && matches(kOther, c)) context.unsupported("isdigit of a number sign");
    return is_decimal(c);
}

bool is_letter(std::string_view c) {
    static const Utf8Regex kLetter(R"(\p{L})");
    return c[0] >= 0 ? is_cased(c) : matches(kLetter, c);
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
