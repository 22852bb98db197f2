#include "formats/jinja_builtins.h"

#include <algorithm>
#include <array>

#include "formats/jinja_arguments.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox

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

Value filter_trim(const FilterCall& call) {
    return strip(call.context, call.text(), call.bind({"chars"}).text(0), Side::both);
}

Value filter_length(const FilterCall& call) {
    call.bind({});
    if (call.value.text() != nullptr) {
        return static_cast<int64_t>(characters(call.context, *call.value.text()).size());
    }
    if (call.value.dict() != nullptr) {
        return static_cast<int64_t>(call.value.dict()->entries.size());
    }
    return static_cast<int64_t>(iterate(call.context, call.value)->items.size());
}

Value filter_tojson(const FilterCall& call) {
    const Bound bound = call.bind({"ensure_ascii", "indent", "separators", "sort_keys"});
    JsonStyle style{.indent = bound.integer(1, -1),
                    .ascii = bound.flag(0, false),
                    .sort_keys = bound.flag(3, false)};
    style.indent = std::clamp<int64_t>(style.indent, -1, 64);
    if (style.indent >= 0) style.item_separator = ",";
    const Value separators = bound.value(2);
    if (const List* list = separators.list()) {
        if (list->items.size() != 2 || !list->items[0].text() || !list->items[1].text()) {
            call.context.fail("tojson: separators must be two strings");
        }
        style.item_separator = *list->items[0].text();
        style.key_separator = *list->items[1].text();
    }
    return to_json(call.context, call.value, style);
}

Value filter_default(const FilterCall& call) {
    const Bound bound = call.bind({"default_value", "boolean"});
    const bool missing = call.value.is_undefined() || (bound.flag(1, false) && !call.value.truth());
    return missing ? bound.value(0, "") : call.value;
}

Value filter_join(const FilterCall& call) {
    const Bound bound = call.bind({"d"});
    return join(call.context, iterate(call.context, call.value)->items,
                to_text(call.context, bound.value(0, "")));
}

Value filter_upper(const FilterCall& call) {
    call.bind({});
    return upper(call.context, call.text());
}

Value filter_lower(const FilterCall& call) {
    call.bind({});
    return lower(call.context, call.text());
}

Value filter_first(const FilterCall& call) {
    call.bind({});
    const auto items = iterate(call.context, call.value);
    return items->items.empty() ? Value(Undefined{"the first item of nothing"})
                                : items->items.front();
}

Value filter_last(const FilterCall& call) {
    call.bind({});
    const auto items = iterate(call.context, call.value);
    return items->items.empty() ? Value(Undefined{"the last item of nothing"})
                                : items->items.back();
}

Value filter_list(const FilterCall& call) {
    call.bind({});
    return make_list(call.context, iterate(call.context, call.value)->items);
}

Value filter_string(const FilterCall& call) {
    call.bind({});
    return call.text();
}

Value filter_replace(const FilterCall& call) {
    const Bound bound = call.bind({"old", "new", "count"}, 2);
    return replace(call.context, call.text(), bound.required_text(0), bound.required_text(1),
                   bound.integer(2, -1));
}

Value items_of(Context& context, const Dict& dict) {
    std::vector<Value> items;
    for (const auto& [key, value] : dict.entries) {
        context.spend_bytes(key.size());
        items.push_back(make_list(context, {Value(key), value}, true));
    }
    return make_list(context, std::move(items));
}

Value filter_items(const FilterCall& call) {
    call.bind({});
    if (call.value.is_undefined()) return make_list(call.context, {});
    if (call.value.dict() == nullptr) {
        call.context.fail(fmt::format("items: a mapping is needed, not {}", call.value.kind()));
    }
    return items_of(call.context, *call.value.dict());
}

Value filter_safe(const FilterCall& call) {
    call.bind({});
    return call.text();
}

template <class Callee>
struct Named {
    std::string_view name;
    Callee callee;
};

constexpr auto kFilters = std::to_array<Named<Value (*)(const FilterCall&)>>({
    {"trim", filter_trim},
    {"length", filter_length},
    {"count", filter_length},
    {"tojson", filter_tojson},
    {"default", filter_default},
    {"d", filter_default},
    {"join", filter_join},
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"first", filter_first},
    {"last", filter_last},
    {"list", filter_list},
    {"string", filter_string},
    {"replace", filter_replace},
    {"items", filter_items},
    {"safe", filter_safe},
});

constexpr auto kTests = std::to_array<Named<bool (*)(const Value&)>>({
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
    {"sequence",
     [](const Value& v) { return v.text() || v.list() || v.dict() || v.is_undefined(); }},
    {"iterable",
     [](const Value&
            v) { return v.text() || v.list() || v.dict() || v.is_undefined() || v.loop(); }},
    {"callable", [](const Value& v) { return v.function() != nullptr; }},
});

Value make_namespace(Context& context, const Arguments& arguments) {
    auto result = std::make_shared<Namespace>();
    for (const Value& value : arguments.positional) {
        if (value.dict() == nullptr) context.fail("namespace takes named values or a mapping");
        for (const auto& [key, entry] : value.dict()->entries) context.spend_bytes(key.size());
        result->attributes = value.dict()->entries;
    }
    for (const auto& [name, value] : arguments.named) {
        if (value.name_space() != nullptr || value.loop() != nullptr) {
            context.unsupported(fmt::format("a {} inside another value", value.kind()));
        }
        std::erase_if(result->attributes, [&](const auto& entry) { return entry.first == name; });
        result->attributes.emplace_back(name, value);
    }
    return result;
}

Value make_range(Context& context, const Arguments& arguments) {
    const Bound bound(context, "range", arguments, {"start", "stop", "step"}, 1);
    int64_t start = bound.integer(0, 0);
    int64_t stop = 0;
    const int64_t step = bound.integer(2, 1);
    if (arguments.positional.size() + arguments.named.size() == 1) {
        stop = std::exchange(start, 0);
    } else {
        stop = bound.integer(1, 0);
    }
    if (step == 0) context.fail("range: a step of 0");
    std::vector<Value> items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (items.size() == kMaxRange) {
            context.fail(fmt::format("range: more than {} numbers", kMaxRange));
        }
        items.emplace_back(i);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return make_list(context, std::move(items));
}

bool starts_or_ends(Context& context, const std::string& text, std::string_view name,
                    const Arguments& arguments) {
    const Bound bound(context, name, arguments, {"prefix"}, 1);
    const Value affix = bound.value(0);
    const auto one = [&](const Value& value) {
        if (value.text() == nullptr) {
            context.fail(fmt::format("{} needs a string, not {}", name, value.kind()));
        }
        context.spend_text(std::min(text.size(), value.text()->size()));
        return name == "startswith" ? text.starts_with(*value.text())
                                    : text.ends_with(*value.text());
    };
    if (affix.list() == nullptr || !affix.list()->tuple) return one(affix);
    return std::any_of(affix.list()->items.begin(), affix.list()->items.end(), one);
}

int64_t find_in(Context& context, const std::string& text, const std::string& part) {
    context.spend_steps(text.size() / 256 * part.size());
    const size_t at = text.find(part);
    if (at == text.npos) return -1;
    return static_cast<int64_t>(characters(context, std::string_view(text).substr(0, at)).size());
}

Value call_string_method(Context& context, const std::string& text, std::string_view name,
                         const Arguments& arguments) {
    const auto bind = [&](std::initializer_list<std::string_view> parameters, size_t required = 0) {
        return Bound(context, name, arguments, parameters, required);
    };
    if (name == "strip") return strip(context, text, bind({"chars"}).text(0), Side::both);
    if (name == "lstrip") return strip(context, text, bind({"chars"}).text(0), Side::left);
    if (name == "rstrip") return strip(context, text, bind({"chars"}).text(0), Side::right);
    if (name == "startswith" || name == "endswith") {
        return starts_or_ends(context, text, name, arguments);
    }
    if (name == "split" || name == "rsplit") {
        const Bound bound = bind({"sep", "maxsplit"});
        const auto separator = bound.text(0);
        const int64_t most = bound.integer(1, -1);
        if (name == "split" || (!separator && most < 0)) {
            return make_list(context, split(context, text, separator, most));
        }
        if (!separator) context.unsupported("rsplit at white space with a limit");
        return make_list(context, split_right(context, text, *separator, most));
    }
    if (name == "replace") {
        const Bound bound = bind({"old", "new", "count"}, 2);
        return replace(context, text, bound.required_text(0), bound.required_text(1),
                       bound.integer(2, -1));
    }
    if (name == "find") return find_in(context, text, bind({"sub"}, 1).required_text(0));
    if (name == "join") {
        const auto items = iterate(context, bind({"iterable"}, 1).value(0));
        for (const Value& item : items->items) {
            if (item.text() == nullptr) {
                context.fail(fmt::format("join needs strings, not {}", item.kind()));
            }
        }
        return join(context, items->items, text);
    }
    if (name == "upper" || name == "lower") {
        bind({});
        return name == "upper" ? upper(context, text) : lower(context, text);
    }
    context.unsupported(fmt::format("the string method '{}'", name));
}

Value call_mapping_method(Context& context, const Dict& dict, std::string_view name,
                          const Arguments& arguments) {
    if (name == "get") {
        const Bound bound(context, name, arguments, {"key", "default"}, 1);
        const Value key = bound.value(0);
        const Value* found = key.text() != nullptr ? dict.find(context, *key.text()) : nullptr;
        return found != nullptr ? *found : bound.value(1);
    }
    if (name != "items" && name != "keys" && name != "values") {
        context.unsupported(fmt::format("the mapping method '{}'", name));
    }
    Bound(context, name, arguments, {});
    if (name == "items") return items_of(context, dict);
    std::vector<Value> result;
    for (const auto& [key, value] : dict.entries) {
        if (name == "keys") context.spend_bytes(key.size());
        result.push_back(name == "keys" ? Value(key) : value);
    }
    return make_list(context, std::move(result));
}

}  // namespace

Value apply_filter(Context& context, std::string_view name, const Value& value,
                   const Arguments& arguments) {
    for (const auto& filter : kFilters) {
        if (filter.name == name) return filter.callee({context, name, value, arguments});
    }
    context.unsupported(fmt::format("the filter '{}'", name));
}

bool apply_test(Context& context, std::string_view name, const Value& value,
                const Arguments& arguments) {
    for (const auto& test : kTests) {
        if (test.name != name) continue;
        Bound(context, name, arguments, {});
        return test.callee(value);
    }
    const auto argument = [&] { return Bound(context, name, arguments, {"other"}, 1).value(0); };
    if (name == "equalto" || name == "eq") return equal(context, value, argument());
    if (name == "ne") return !equal(context, value, argument());
    if (name == "in") return contains(context, argument(), value);
    if (name == "odd" || name == "even" || name == "divisibleby") {
        const Value divisor = name == "divisibleby" ? argument() : Value(int64_t{2});
        if (!value.is_integer() || !divisor.is_integer() || divisor.integer() == 0) {
            context.fail(fmt::format("'{}' needs integers", name));
        }
        if (divisor.integer() == -1) return true;
        return (value.integer() % divisor.integer() == 0) != (name == "odd");
    }
    context.unsupported(fmt::format("the test '{}'", name));
}

Value call_method(Context& context, const Value& self, std::string_view name,
                  const Arguments& arguments) {
    if (self.text() != nullptr) return call_string_method(context, *self.text(), name, arguments);
    if (self.dict() != nullptr) return call_mapping_method(context, *self.dict(), name, arguments);
    if (self.loop() != nullptr && name == "cycle") {
        if (arguments.positional.empty()) context.fail("cycle needs items");
        return arguments.positional[self.loop()->index % arguments.positional.size()];
    }
    context.unsupported(fmt::format("the method '{}' of a {}", name, self.kind()));
}

Value call_function(Context& context, Function function, const Arguments& arguments) {
    switch (function) {
        case Function::raise_exception: {
            const Bound bound(context, "raise_exception", arguments, {"message"}, 1);
            KD_THROW(invalid_argument, "{}", to_text(context, bound.value(0)));
        }
        case Function::make_namespace:
            return make_namespace(context, arguments);
        case Function::range:
            return make_range(context, arguments);
    }
    return {};
}

Value find_function(std::string_view name) {
    if (name == "raise_exception") return Function::raise_exception;
    if (name == "namespace") return Function::make_namespace;
    if (name == "range") return Function::range;
    return Undefined{std::string(name)};
}

bool is_mapping_method(std::string_view name) {
    constexpr std::string_view kMethods[] = {"clear",      "copy",   "fromkeys", "get",
                                             "items",      "keys",   "pop",      "popitem",
                                             "setdefault", "update", "values"};
    return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

}  // namespace kd::jinja
