#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "formats/jinja_arithmetic.h"
#include "formats/jinja_filters.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

/// Digits without the underscores that Python lets stand between two of them; nullopt for others.
std::optional<std::string> without_underscores(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto is_digit = [&](size_t at) {
            return at < text.size() && std::isalnum(static_cast<uint8_t>(text[at])) != 0;
        };
        if (text[i] != '_') {
            out.push_back(text[i]);
        } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
            return std::nullopt;
        }
    }
    return out;
}

/// float(text).
std::optional<double> parse_float(Context& context, const std::string& text) {
    auto digits = without_underscores(strip(context, text, std::nullopt, Side::both));
    if (!digits) return std::nullopt;
    const bool signed_text = digits->starts_with('+') || digits->starts_with('-');
    const bool negative = digits->starts_with('-');
    if (signed_text) digits->erase(0, 1);
    const std::string letters = lower(context, *digits);
    if (letters.empty() || letters[0] == '-' || letters[0] == '+') return std::nullopt;
    double value = 0;
    const char* end = letters.data() + letters.size();
    const auto result = std::from_chars(letters.data(), end, value);
    if (result.ptr != end || letters.find('(') != letters.npos) return std::nullopt;
    if (result.ec == std::errc::result_out_of_range) value = std::strtod(letters.c_str(), nullptr);
    return negative ? -value : value;
}

/// int(text, base), or nullopt if that is no integer. Fails beyond 64 bits.
std::optional<int64_t> parse_integer(Context& context, const std::string& text, int64_t base) {
    const auto stripped = without_underscores(strip(context, text, std::nullopt, Side::both));
    if (!stripped) return std::nullopt;
    std::string_view digits = *stripped;
    const bool negative = digits.starts_with('-');
    if (negative || digits.starts_with('+')) digits.remove_prefix(1);
    const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
    if (!prefix.empty() && lower(context, digits.substr(0, 2)) == prefix) digits.remove_prefix(2);
    if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
    std::string number(digits);
    if (negative) number.insert(number.begin(), '-');
    int64_t value = 0;
    const char* end = number.data() + number.size();
    const auto result = std::from_chars(number.data(), end, value, static_cast<int>(base));
    if (result.ptr != end) return std::nullopt;
    if (result.ec == std::errc::result_out_of_range) {
        context.unsupported(fmt::format("the integer {}", shortened(number)));
    }
    return value;
}

/// int(value) of a float; nullopt for what no integer is.
std::optional<int64_t> truncated(Context& context, double value) {
    if (!std::isfinite(value)) return std::nullopt;
    if (value >= 0x1p63 || value < -0x1p63) {
        context.unsupported(fmt::format("the integer {}", value));
    }
    return static_cast<int64_t>(value);
}

void refuse_undefined(const FilterCall& call) {
    if (call.value.is_undefined()) {
        call.context.fail(fmt::format("{} of an undefined value", call.name));
    }
}

Value filter_int(const FilterCall& call) {
    const Bound bound = call.bind({"default", "base"});
    const Value fallback = bound.value(0, int64_t{0});
    const int64_t base = bound.integer(1, 10);
    if (base < 2 || base > 36) call.context.unsupported(fmt::format("int with base {}", base));
    refuse_undefined(call);
    std::optional<int64_t> number;
    if (const std::string* text = call.value.text()) {
        number = parse_integer(call.context, *text, base);
        const auto real = number ? std::nullopt : parse_float(call.context, *text);
        if (real) number = truncated(call.context, *real);
    } else if (call.value.is_integer()) {
        number = call.value.integer();
    } else if (call.value.is_float()) {
        if (std::isinf(call.value.number())) call.context.fail("int of an infinity");
        number = truncated(call.context, call.value.number());
    }
    return number ? Value(*number) : fallback;
}

Value filter_float(const FilterCall& call) {
    const Bound bound = call.bind({"default"});
    refuse_undefined(call);
    if (call.value.is_number()) return call.value.number();
    if (const std::string* text = call.value.text()) {
        if (const auto number = parse_float(call.context, *text)) return *number;
    }
    return bound.value(0, 0.0);
}

Value filter_abs(const FilterCall& call) {
    call.bind({});
    if (!call.value.is_number()) {
        call.context.fail(fmt::format("abs needs a number, not {}", call.value.kind()));
    }
    if (call.value.is_float()) return std::fabs(call.value.number());
    return call.value.integer() < 0 ? negate(call.context, call.value)
                                    : Value(call.value.integer());
}

/// Python's round: the decimal nearest to the exact value, halves to even.
double rounded(double value, int64_t precision) {
    std::array<char, 400> buffer{};
    const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                      std::chars_format::fixed, static_cast<int>(precision));
    double out = value;
    std::from_chars(buffer.data(), result.ptr, out);
    return out;
}

Value filter_round(const FilterCall& call) {
    const Bound bound = call.bind({"precision", "method"});
    const int64_t precision = bound.integer(0, 0);
    const std::string method = bound.text(1).value_or("common");
    if (method != "common" && method != "ceil" && method != "floor") {
        call.context.fail("round: the method must be common, ceil or floor");
    }
    if (!call.value.is_number()) {
        call.context.fail(fmt::format("round needs a number, not {}", call.value.kind()));
    }
    if (precision < 0 || precision > 60) {
        call.context.unsupported(fmt::format("round to {} digits", precision));
    }
    const double value = call.value.number();
    if (method == "common") {
        if (call.value.is_integer()) return call.value.integer();
        return std::isfinite(value) ? rounded(value, precision) : value;
    }
    const double scale = std::pow(10.0, static_cast<double>(precision));
    if (!std::isfinite(value * scale)) call.context.fail("round: too large");
    return (method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale;
}

}  // namespace

Filter find_number_filter(std::string_view name) {
    if (name == "int") return filter_int;
    if (name == "float") return filter_float;
    if (name == "abs") return filter_abs;
    if (name == "round") return filter_round;
    return nullptr;
}

}  // namespace kd::jinja
