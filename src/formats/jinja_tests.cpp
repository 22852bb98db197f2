#include <algorithm>

#include "formats/gguf.h"
#include "formats/jinja_arguments.h"
#include "formats/jinja_arithmetic.h"
#include "formats/jinja_builtins.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

bool is_ordered(const Value& v) {
    return v.text() != nullptr || v.dict() != nullptr || v.is_undefined() ||
           (v.list() != nullptr && !v.list()->is_view());
}

bool is_iterable(const Value& v) {
    return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined() ||
           v.loop() != nullptr || v.iterator() != nullptr;
}

/// Undefined values and loops have jinja2's own __call__.
bool is_callable(const Value& v) {
    return v.function() != nullptr || v.method() != nullptr || v.macro() != nullptr ||
           v.loop() != nullptr || v.is_undefined();
}

struct KindTest {
    std::string_view name;
    bool (*holds)(const Value&);
};

constexpr KindTest kKindTests[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"string", [](const Value& v) { return v.text() != nullptr; }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"integer", [](const Value& v) { return v.is_integer() && !v.is_bool(); }},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.truth(); }},
    {"false", [](const Value& v) { return v.is_bool() && !v.truth(); }},
    {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
    {"sequence", is_ordered},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"escaped", [](const Value& v) { return v.is_markup(); }},
};

struct PairTest {
    std::string_view name;
    bool (*holds)(Context&, const Value&, const Value&);
};

bool less_or_equal(Context& context, const Value& a, const Value& b) {
    return less(context, a, b) || equal(context, a, b);
}

/// `is`: the same object. Whether equal numbers and strings are one is up to Python.
bool same(Context& context, const Value& a, const Value& b) {
    const auto is_single = [](const Value& v) { return v.is_none() || v.is_bool(); };
    if (is_single(a) || is_single(b)) {
        return is_single(a) && is_single(b) && a.is_none() == b.is_none() && equal(context, a, b);
    }
    if (a.kind() != b.kind()) return false;
    context.unsupported(fmt::format("'sameas' of a {}", a.kind()));
}

bool is_greater(Context& context, const Value& a, const Value& b) {
    return less(context, b, a);
}

bool is_greater_or_equal(Context& context, const Value& a, const Value& b) {
    return less_or_equal(context, b, a);
}

bool differs(Context& context, const Value& a, const Value& b) {
    return !equal(context, a, b);
}

bool is_in(Context& context, const Value& needle, const Value& haystack) {
    return contains(context, haystack, needle);
}

bool has_remainder(Context& context, const Value& value, const Value& by, int64_t remainder) {
    if (!value.is_number()) context.fail(fmt::format("a {} has no remainder", value.kind()));
    return equal(context, operate(context, "%", value, by, "a value", "its divisor"), remainder);
}

bool is_divisible(Context& context, const Value& value, const Value& by) {
    return has_remainder(context, value, by, 0);
}

constexpr PairTest kPairTests[] = {
    {"eq", equal},
    {"equalto", equal},
    {"==", equal},
    {"ne", differs},
    {"!=", differs},
    {"lt", less},
    {"lessthan", less},
    {"<", less},
    {"le", less_or_equal},
    {"<=", less_or_equal},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {">", is_greater},
    {"ge", is_greater_or_equal},
    {">=", is_greater_or_equal},
    {"in", is_in},
    {"sameas", same},
    {"divisibleby", is_divisible},
};

/// odd, even, lower, upper.
using NamedTest = bool (*)(Context&, std::string_view, const Value&);

bool is_odd_or_even(Context& context, std::string_view name, const Value& value) {
    return has_remainder(context, value, int64_t{2}, name == "even" ? 0 : 1);
}

bool is_cased_as(Context& context, std::string_view name, const Value& value) {
    const std::string text = to_text(context, value);
    return text_is(context, text, name == "upper" ? "isupper" : "islower");
}

NamedTest find_named_test(std::string_view name) {
    if (name == "odd" || name == "even") return is_odd_or_even;
    if (name == "upper" || name == "lower") return is_cased_as;
    return nullptr;
}

template <class Tests>
auto find_in(const Tests& tests, std::string_view name) {
    const auto* found = std::find_if(std::begin(tests), std::end(tests),
                                     [&](const auto& each) { return each.name == name; });
    return found == std::end(tests) ? nullptr : found;
}

}  // namespace

void require_test(const Context& context, std::string_view name) {
    if (find_in(kKindTests, name) == nullptr && find_in(kPairTests, name) == nullptr &&
        find_named_test(name) == nullptr) {
        context.unsupported(fmt::format("the test '{}'", printable(name)));
    }
}

bool apply_test(Context& context, std::string_view name, const Value& value,
                const Arguments& arguments) {
    require_test(context, name);
    if (const PairTest* test = find_in(kPairTests, name)) {
        const Value other = Bound(context, name, arguments, {"other"}, 1).value(0);
        return test->holds(context, value, other);
    }
    Bound(context, name, arguments, {});
    if (const KindTest* test = find_in(kKindTests, name)) return test->holds(value);
    return find_named_test(name)(context, name, value);
}

}  // namespace kd::jinja
