#include "formats/jinja_arithmetic.h"

#include <cmath>
#include <limits>

#include "formats/jinja_format.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

/// Integers stay within 64 bits; Python's would grow.
Value operate_integers(Context& context, std::string_view op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
    if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
    if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
    if (op == "%" && b == -1) return int64_t{0};
    if (op == "//" || op == "%") {
        overflow = b == -1 && a == std::numeric_limits<int64_t>::min();
        if (!overflow) {
            const int64_t remainder = a % b;
            const int64_t down = remainder != 0 && (remainder < 0) != (b < 0) ? 1 : 0;
            result = op == "%" ? remainder + down * b : a / b - down;
        }
    }
    if (overflow) context.unsupported(fmt::format("{} {} {} beyond 64 bits", a, op, b));
    return result;
}

/// Squaring as often as the exponent has bits.
int64_t power_integers(Context& context, int64_t base, int64_t exponent) {
    int64_t result = 1;
    bool overflow = false;
    for (int64_t rest = exponent, square = base; rest > 0 && !overflow;) {
        if (rest % 2 == 1) overflow = __builtin_mul_overflow(result, square, &result);
        rest /= 2;
        if (rest > 0 && !overflow) overflow = __builtin_mul_overflow(square, square, &square);
    }
    if (overflow) context.unsupported(fmt::format("{} ** {} beyond 64 bits", base, exponent));
    return result;
}

double power(Context& context, double base, double exponent) {
    if (base == 0 && exponent < 0) context.fail("zero to a negative power");
    const double result = std::pow(base, exponent);
    if (std::isnan(result) && !std::isnan(base) && !std::isnan(exponent)) {
        context.unsupported("a complex number");
    }
    if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) {
        context.fail(fmt::format("{} ** {} is too large for a float", base, exponent));
    }
    return result;
}

Value operate_numbers(Context& context, std::string_view op, const Value& left,
                      const Value& right) {
    const bool divides = op == "/" || op == "//" || op == "%";
    if (divides && right.number() == 0) context.fail("a division by zero");
    if (op == "**" && left.is_integer() && right.is_integer() && right.integer() >= 0) {
        return power_integers(context, left.integer(), right.integer());
    }
    if (left.is_integer() && right.is_integer() && op != "/" && op != "**") {
        return operate_integers(context, op, left.integer(), right.integer());
    }
    const double a = left.number();
    const double b = right.number();
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "/") return a / b;
    if (op == "**") return power(context, a, b);
    double remainder = std::fmod(a, b);
    if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
    return op == "%" ? remainder : std::floor((a - remainder) / b + 0.5);
}

Value repeat_items(Context& context, const List& list, int64_t count) {
    if (list.kind > Sequence::tuple) context.fail("'*' repeats strings, lists and tuples");
    std::vector<Value> items;
    if (count <= 0 || list.items.empty()) return make_list(context, {}, list.kind);
    if (static_cast<uint64_t>(count) > kMaxSteps / list.items.size()) {
        context.spend_steps(size_t{kMaxSteps} + 1);
    }
    context.spend_steps(list.items.size() * static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        items.insert(items.end(), list.items.begin(), list.items.end());
    }
    return make_list(context, std::move(items), list.kind);
}

}  // namespace

Value operate(Context& context, std::string_view op, const Value& left, const Value& right,
              const std::string& left_source, const std::string& right_source) {
    if (op == "~") {
        std::string text = to_text(context, left) + to_text(context, right);
        context.spend_bytes(text.size());
        return text;
    }
    if (left.is_number() && right.is_number()) return operate_numbers(context, op, left, right);
    if (op == "+" && left.text() != nullptr && right.text() != nullptr) {
        context.spend_bytes(left.text()->size() + right.text()->size());
        if (left.is_markup() != right.is_markup()) {
            return Value((left.is_markup() ? *left.text() : escape(context, *left.text())) +
                         (right.is_markup() ? *right.text() : escape(context, *right.text())))
                .as_markup();
        }
        return Value(*left.text() + *right.text()).marked_as(left);
    }
    if (op == "+" && left.list() != nullptr && right.list() != nullptr &&
        left.list()->kind == right.list()->kind && left.list()->kind <= Sequence::tuple) {
        std::vector<Value> items = left.list()->items;
        items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
        return make_list(context, std::move(items), left.list()->kind);
    }
    if (op == "*" && left.text() != nullptr && right.is_integer()) {
        return Value(repeated(context, *left.text(), right.integer())).marked_as(left);
    }
    if (op == "*" && left.is_integer() && right.text() != nullptr) {
        return Value(repeated(context, *right.text(), left.integer())).marked_as(right);
    }
    if (op == "*" && left.list() != nullptr && right.is_integer()) {
        return repeat_items(context, *left.list(), right.integer());
    }
    if (op == "*" && left.is_integer() && right.list() != nullptr) {
        return repeat_items(context, *right.list(), left.integer());
    }
    if (op == "%" && left.text() != nullptr) return format_percent(context, *left.text(), right);
    context.fail(fmt::format("'{}' cannot join {} ({}) and {} ({})", op, left_source, left.kind(),
                             right_source, right.kind()));
}

Value negate(Context& context, const Value& value) {
    if (value.is_float()) return -value.number();
    if (!value.is_integer()) context.fail(fmt::format("a sign before a {}", value.kind()));
    return operate_integers(context, "-", 0, value.integer());
}

}  // namespace kd::jinja
