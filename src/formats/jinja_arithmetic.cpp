#include "formats/jinja_arithmetic.h"

#include <cmath>

namespace kd::jinja {

namespace {

/// Integers stay within 64 bits; Python's would grow.
Value operate_integers(Context& context, std::string_view op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
    if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
    if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
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

Value operate_numbers(Context& context, std::string_view op, const Value& left,
                      const Value& right) {
    const bool divides = op == "/" || op == "//" || op == "%";
    if (divides && right.number() == 0) context.fail("a division by zero");
    if (left.is_integer() && right.is_integer() && op != "/") {
        return operate_integers(context, op, left.integer(), right.integer());
    }
    const double a = left.number();
    const double b = right.number();
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "/") return a / b;
    double remainder = std::fmod(a, b);
    if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
    return op == "%" ? remainder : std::floor((a - remainder) / b + 0.5);
}

Value repeat(Context& context, const std::string& text, int64_t count) {
    std::string out;
    if (count <= 0 || text.empty()) return out;
    if (static_cast<uint64_t>(count) > kMaxOutputBytes / text.size()) {
        context.spend_bytes(size_t{kMaxBytes} + 1);
    }
    context.spend_bytes(text.size() * static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out += text;
    return out;
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
        return *left.text() + *right.text();
    }
    if (op == "+" && left.list() != nullptr && right.list() != nullptr &&
        left.list()->tuple == right.list()->tuple) {
        std::vector<Value> items = left.list()->items;
        items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
        return make_list(context, std::move(items), left.list()->tuple);
    }
    if (op == "*" && left.text() != nullptr && right.is_integer()) {
        return repeat(context, *left.text(), right.integer());
    }
    if (op == "*" && left.is_integer() && right.text() != nullptr) {
        return repeat(context, *right.text(), left.integer());
    }
    if (op == "%" && left.text() != nullptr) context.unsupported("formatting by '%'");
    context.fail(fmt::format("'{}' cannot join {} ({}) and {} ({})", op, left_source, left.kind(),
                             right_source, right.kind()));
}

Value negate(Context& context, const Value& value) {
    if (value.is_float()) return -value.number();
    if (!value.is_integer()) context.fail(fmt::format("a sign before a {}", value.kind()));
    return operate_integers(context, "-", 0, value.integer());
}

}  // namespace kd::jinja
