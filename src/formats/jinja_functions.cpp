#include <algorithm>
#include <array>
#include <ctime>

#include "formats/jinja_arguments.h"
#include "formats/jinja_builtins.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

/// What dict() and namespace() are given: mappings, then named values, which win.
std::vector<Entry> given_entries(Context& context, std::string_view callee,
                                 const Arguments& arguments) {
    if (arguments.positional.size() > 1) {
        context.fail(fmt::format("{} takes one mapping", callee));
    }
    std::vector<Entry> entries;
    for (const Value& value : arguments.positional) {
        if (value.dict() == nullptr) {
            context.fail(fmt::format("{} takes named values or a mapping", callee));
        }
        context.spend_steps(value.dict()->entries.size());
        entries = value.dict()->entries;
    }
    for (const auto& [name, value] : arguments.named) {
        insert(context, entries, name, value);
    }
    return entries;
}

Value make_namespace(Context& context, const Arguments& arguments) {
    auto result = std::make_shared<Namespace>();
    for (const auto& [name, value] : given_entries(context, "namespace", arguments)) {
        if (name.text() == nullptr) context.unsupported("an attribute that is no string");
        context.spend_bytes(name.text()->size());
        require_storable(context, *name.text(), value);
        result->attributes.emplace_back(*name.text(), value);
    }
    return result;
}

Value make_range(Context& context, const Arguments& arguments) {
    constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox
    const Bound bound(context, "range", arguments, {"start", "stop", "step"}, 1);
    if (!arguments.named.empty()) context.fail("range takes no named arguments");
    const auto part = [&](size_t at, int64_t fallback) {
        if (at >= arguments.positional.size()) return fallback;
        if (!arguments.positional[at].is_integer()) context.fail("range needs integers");
        return arguments.positional[at].integer();
    };
    const bool one = arguments.positional.size() == 1;
    const int64_t start = one ? 0 : part(0, 0);
    const int64_t stop = part(one ? 0 : 1, 0);
    const int64_t step = part(2, 1);
    if (step == 0) context.fail("range: a step of 0");
    std::vector<Value> items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (items.size() == kMaxRange) {
            context.fail(fmt::format("range: more than {} numbers", kMaxRange));
        }
        items.emplace_back(i);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return make_list(context, std::move(items), Sequence::range);
}

/// strftime's format with what Python fills in itself: microseconds, and no zone.
std::string python_format(const std::string& format, int64_t microseconds) {
    std::string out;
    for (size_t i = 0; i < format.size(); ++i) {
        const char letter = i + 1 < format.size() ? format[i + 1] : ' ';
        if (format[i] != '%' ||
            (letter != 'f' && letter != 'z' && letter != 'Z' && letter != '%')) {
            out.push_back(format[i]);
            continue;
        }
        if (letter == 'f') out += fmt::format("{:06}", microseconds);
        if (letter == '%') out += "%%";
        ++i;
    }
    return out;
}

/// The local time in the C locale, whatever the process has set.
Value strftime_now(Context& context, const Arguments& arguments) {
    const Bound bound(context, "strftime_now", arguments, {"format"}, 1);
    const std::string given = bound.required_text(0);
    if (given.find('\0') != given.npos) context.fail("strftime_now: a null character");
    const auto since =
        std::chrono::floor<std::chrono::microseconds>(context.now).time_since_epoch();
    const int64_t microseconds = since.count() - std::chrono::floor<std::chrono::seconds>(since) /
                                                     std::chrono::microseconds(1);
    context.spend_bytes(3 * given.size());  // %f has six digits
    // Never empty: an empty result is then one that found no room.
    const std::string format = python_format(given, microseconds) + " ";
    const std::time_t seconds =
        std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(context.now));
    std::tm local{};
    if (localtime_r(&seconds, &local) == nullptr) context.fail("strftime_now: no local time");
    const size_t room = 64 + 64 * format.size();
    context.spend_bytes(room);
    std::string out(room, '\0');
    const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
    const size_t bytes = strftime_l(out.data(), out.size(), format.c_str(), &local, plain);
    freelocale(plain);
    if (bytes == 0) context.fail("strftime_now: the result is too long");
    out.resize(bytes - 1);
    return out;
}

}  // namespace

void require_storable(const Context& context, std::string_view name, const Value& value) {
    if (name.starts_with('_')) context.fail("a namespace takes no attribute that begins with '_'");
    if (value.name_space() != nullptr || value.loop() != nullptr) {
        context.unsupported(fmt::format("a {} inside another value", value.kind()));
    }
}

Value call_function(Context& context, Function function, const Arguments& arguments) {
    switch (function) {
        case Function::raise_exception: {
            const Bound bound(context, "raise_exception", arguments, {"message"}, 1);
            const std::string message = one_line(to_text(context, bound.value(0)));
            if (message.empty()) context.fail("raise_exception without a message");
            KD_THROW(invalid_argument, "{}", message);
        }
        case Function::strftime_now:
            return strftime_now(context, arguments);
        case Function::make_namespace:
            return make_namespace(context, arguments);
        case Function::make_dict:
            return make_dict(context, given_entries(context, "dict", arguments));
        case Function::range:
            return make_range(context, arguments);
    }
    return {};
}

Value find_function(const Context& context, std::string_view name) {
    if (name == "raise_exception") return Function::raise_exception;
    if (name == "strftime_now") return Function::strftime_now;
    if (name == "namespace") return Function::make_namespace;
    if (name == "dict") return Function::make_dict;
    if (name == "range") return Function::range;
    if (name == "cycler" || name == "joiner" || name == "lipsum") {
        context.unsupported(fmt::format("the function '{}'", name));
    }
    return Undefined{shortened(name)};
}

}  // namespace kd::jinja
