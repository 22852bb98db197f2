#include <algorithm>

#include "formats/jinja_arguments.h"
#include "formats/jinja_builtins.h"
#include "formats/jinja_format.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

struct MethodCall {
    Context& context;
    std::string_view name;
    const Arguments& arguments;

    Bound bind(std::initializer_list<std::string_view> parameters, size_t required = 0) const {
        return {context, name, arguments, parameters, required};
    }
};

using TextMethod = Value (*)(const MethodCall&, const std::string&);

Value method_strip(const MethodCall& call, const std::string& text) {
    const Side side = call.name == "lstrip"   ? Side::left
                      : call.name == "rstrip" ? Side::right
                                              : Side::both;
    return strip(call.context, text, call.bind({"chars"}).text(0), side);
}

/// text[start:end] as find and startswith take it; nullopt where start is behind the text.
std::optional<std::string_view> part_of(const MethodCall& call, const std::string& text,
                                        const Bound& bound) {
    if (bound.value(1).is_none() && bound.value(2).is_none()) return text;
    const std::vector<std::string_view> all = characters(call.context, text);
    const auto count = static_cast<int64_t>(all.size());
    const auto place = [&](int64_t at) { return std::max<int64_t>(at < 0 ? at + count : at, 0); };
    const int64_t start = place(bound.integer(1, 0));
    const int64_t end = std::min(place(bound.integer(2, count)), count);
    if (start > end || start > count) return std::nullopt;
    const auto offset = [&](int64_t at) {
        return at == count ? text.size()
                           : static_cast<size_t>(all[static_cast<size_t>(at)].data() - text.data());
    };
    return std::string_view(text).substr(offset(start), offset(end) - offset(start));
}

Value method_affix(const MethodCall& call, const std::string& text) {
    const Bound bound = call.bind({"prefix", "start", "end"}, 1);
    const Value affix = bound.value(0);
    const auto part = part_of(call, text, bound);
    const auto one = [&](const Value& value) {
        if (value.text() == nullptr) {
            call.context.fail(fmt::format("{} needs a string, not {}", call.name, value.kind()));
        }
        call.context.spend_steps(1);
        call.context.spend_text(std::min(text.size(), value.text()->size()));
        if (!part) return false;
        return call.name == "startswith" ? part->starts_with(*value.text())
                                         : part->ends_with(*value.text());
    };
    if (affix.list() == nullptr || affix.list()->kind != Sequence::tuple) return one(affix);
    return std::any_of(affix.list()->items.begin(), affix.list()->items.end(), one);
}

Value method_split(const MethodCall& call, const std::string& text) {
    const Bound bound = call.bind({"sep", "maxsplit"});
    const auto separator = bound.text(0);
    const int64_t most = bound.integer(1, -1);
    const auto parts = call.name == "split" ? split(call.context, text, separator, most)
                                            : split_right(call.context, text, separator, most);
    return make_list(call.context, parts);
}

Value method_partition(const MethodCall& call, const std::string& text) {
    const std::string separator = call.bind({"sep"}, 1).required_text(0);
    const bool right = call.name == "rpartition";
    std::vector<Value> parts = right ? split_right(call.context, text, separator, 1)
                                     : split(call.context, text, separator, 1);
    if (parts.size() == 2) {
        parts.insert(parts.begin() + 1, separator);
    } else {
        parts.insert(right ? parts.begin() : parts.end(), 2, Value(""));
    }
    return make_list(call.context, std::move(parts), Sequence::tuple);
}

Value method_splitlines(const MethodCall& call, const std::string& text) {
    const bool keep = call.bind({"keepends"}).flag(0, false);
    return make_list(call.context, split_lines(call.context, text, keep));
}

Value method_replace(const MethodCall& call, const std::string& text) {
    const Bound bound = call.bind({"old", "new", "count"}, 2);
    return replace(call.context, text, bound.required_text(0), bound.required_text(1),
                   bound.integer(2, -1));
}

/// find, rfind, index, rindex.
Value method_find(const MethodCall& call, const std::string& text) {
    const Bound bound = call.bind({"sub", "start", "end"}, 1);
    const std::string needle = bound.required_text(0);
    const auto part = part_of(call, text, bound);
    size_t at = std::string_view::npos;
    if (part) {
        spend_search(call.context, *part, needle);
        at = call.name.starts_with('r') ? part->rfind(needle) : part->find(needle);
    }
    if (at != std::string_view::npos) {
        const auto before = static_cast<size_t>(part->data() + at - text.data());
        return static_cast<int64_t>(
            characters(call.context, std::string_view(text).substr(0, before)).size());
    }
    if (call.name.ends_with("index")) call.context.fail("index: the substring is not there");
    return int64_t{-1};
}

Value method_count(const MethodCall& call, const std::string& text) {
    const Bound bound = call.bind({"sub", "start", "end"}, 1);
    const std::string needle = bound.required_text(0);
    const auto part = part_of(call, text, bound);
    if (!part) return int64_t{0};
    if (needle.empty()) {
        return static_cast<int64_t>(characters(call.context, *part).size()) + 1;
    }
    return static_cast<int64_t>(split(call.context, *part, needle, -1).size()) - 1;
}

Value method_join(const MethodCall& call, const std::string& text) {
    const auto items = iterate(call.context, call.bind({"iterable"}, 1).value(0));
    for (const Value& item : items->items) {
        if (item.text() == nullptr) {
            call.context.fail(fmt::format("join needs strings, not {}", item.kind()));
        }
    }
    return join(call.context, items->items, text);
}

Value method_case(const MethodCall& call, const std::string& text) {
    call.bind({});
    if (call.name == "upper") return upper(call.context, text);
    if (call.name == "lower") return lower(call.context, text);
    if (call.name == "title") return title(call.context, text);
    return capitalize(call.context, text);
}

Value method_is(const MethodCall& call, const std::string& text) {
    call.bind({});
    return text_is(call.context, text, call.name);
}

Value method_remove(const MethodCall& call, const std::string& text) {
    const std::string affix = call.bind({"prefix"}, 1).required_text(0);
    call.context.spend_bytes(text.size());
    if (call.name == "removeprefix") {
        return text.starts_with(affix) ? text.substr(affix.size()) : text;
    }
    return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
}

/// ljust, rjust, center, zfill.
Value method_pad(const MethodCall& call, const std::string& text) {
    const bool zeros = call.name == "zfill";
    const Bound bound = zeros ? call.bind({"width"}, 1) : call.bind({"width", "fillchar"}, 1);
    const std::string fill = zeros ? "0" : bound.text(1).value_or(" ");
    if (characters(call.context, fill).size() != 1) {
        call.context.fail(fmt::format("{}: one character is needed to fill", call.name));
    }
    const auto length = static_cast<int64_t>(characters(call.context, text).size());
    const int64_t missing = std::max<int64_t>(bound.integer(0, 0) - length, 0);
    // Where an odd one goes depends on both lengths, as in Python.
    const int64_t left = call.name == "ljust"    ? 0
                         : call.name == "center" ? missing / 2 + (missing & (length + missing) & 1)
                                                 : missing;
    const std::string before = repeated(call.context, fill, left);
    const std::string after = repeated(call.context, fill, missing - left);
    const bool has_sign = zeros && (text.starts_with('-') || text.starts_with('+'));
    if (has_sign) return text.substr(0, 1) + before + text.substr(1);
    return before + text + after;
}

Value method_format(const MethodCall& call, const std::string& text) {
    return format_braces(call.context, text, call.arguments);
}

Value method_unsupported(const MethodCall& call, const std::string& /*text*/) {
    call.context.unsupported(fmt::format("the string method '{}'", call.name));
}

struct NamedMethod {
    std::string_view name;
    TextMethod method;
};

constexpr NamedMethod kTextMethods[] = {
    {"strip", method_strip},
    {"lstrip", method_strip},
    {"rstrip", method_strip},
    {"startswith", method_affix},
    {"endswith", method_affix},
    {"split", method_split},
    {"rsplit", method_split},
    {"partition", method_partition},
    {"rpartition", method_partition},
    {"splitlines", method_splitlines},
    {"replace", method_replace},
    {"find", method_find},
    {"rfind", method_find},
    {"index", method_find},
    {"rindex", method_find},
    {"count", method_count},
    {"join", method_join},
    {"upper", method_case},
    {"lower", method_case},
    {"title", method_case},
    {"capitalize", method_case},
    {"isdigit", method_is},
    {"isdecimal", method_is},
    {"isalpha", method_is},
    {"isalnum", method_is},
    {"isspace", method_is},
    {"isupper", method_is},
    {"islower", method_is},
    {"removeprefix", method_remove},
    {"removesuffix", method_remove},
    {"ljust", method_pad},
    {"rjust", method_pad},
    {"center", method_pad},
    {"zfill", method_pad},
    {"format", method_format},
    {"casefold", method_unsupported},
    {"encode", method_unsupported},
    {"expandtabs", method_unsupported},
    {"format_map", method_unsupported},
    {"isascii", method_unsupported},
    {"isidentifier", method_unsupported},
    {"isnumeric", method_unsupported},
    {"isprintable", method_unsupported},
    {"istitle", method_unsupported},
    {"maketrans", method_unsupported},
    {"swapcase", method_unsupported},
    {"translate", method_unsupported},
};

TextMethod find_text_method(std::string_view name) {
    const auto* found = std::find_if(std::begin(kTextMethods), std::end(kTextMethods),
                                     [&](const NamedMethod& each) { return each.name == name; });
    return found == std::end(kTextMethods) ? nullptr : found->method;
}

Value call_text_method(const MethodCall& call, const Value& self) {
    // Those that take text escape it if they belong to markup.
    constexpr std::string_view kEscaping[] = {"join", "format", "replace", "partition"};
    if (self.is_markup() &&
        std::find(std::begin(kEscaping), std::end(kEscaping), call.name) != std::end(kEscaping)) {
        call.context.unsupported(fmt::format("'{}' of a safe string", call.name));
    }
    const Value result = find_text_method(call.name)(call, *self.text());
    return result.text() != nullptr ? result.marked_as(self) : result;
}

Value call_mapping_method(const MethodCall& call, const Value& self) {
    Context& context = call.context;
    const Dict& dict = *self.dict();
    if (call.name == "get") {
        const Bound bound = call.bind({"key", "default"}, 1);
        const Value key = bound.value(0);
        const Value* found = dict.find(context, key);
        return found != nullptr ? *found : bound.value(1);
    }
    if (call.name == "fromkeys") context.unsupported("the mapping method 'fromkeys'");
    call.bind({});
    if (call.name == "copy") return self;
    std::vector<Value> result;
    for (const auto& [key, value] : dict.entries) {
        if (call.name == "keys") {
            result.push_back(key);
        } else if (call.name == "values") {
            result.push_back(value);
        } else {
            result.push_back(make_list(context, {key, value}, Sequence::tuple));
        }
    }
    return make_list(context, std::move(result),
                     call.name == "keys"     ? Sequence::keys
                     : call.name == "values" ? Sequence::values
                                             : Sequence::items);
}

Value call_list_method(const MethodCall& call, const Value& self) {
    if (call.name == "copy") {
        call.bind({});
        return self;
    }
    const std::vector<Value>& items = self.list()->items;
    const Value sought = call.bind({"value"}, 1).value(0);
    int64_t count = 0;
    for (size_t i = 0; i < items.size(); ++i) {
        if (!equal(call.context, items[i], sought)) continue;
        if (call.name == "index") return static_cast<int64_t>(i);
        ++count;
    }
    if (call.name == "index") call.context.fail("index: the value is not in the list");
    return count;
}

Value call_loop_method(const MethodCall& call, Loop& loop) {
    const std::vector<Value>& given = call.arguments.positional;
    if (!call.arguments.named.empty()) call.context.fail("a loop's methods take no named values");
    if (call.name == "cycle") {
        if (given.empty()) call.context.fail("cycle needs items");
        return given[loop.index % given.size()];
    }
    Value now = make_list(call.context, given, Sequence::tuple);
    const bool changed = !loop.changed || !equal(call.context, *loop.changed, now);
    loop.changed = std::move(now);
    return changed;
}

template <size_t N>
bool has(const std::string_view (&names)[N], std::string_view name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

bool is_method(const Value& value, std::string_view name) {
    constexpr std::string_view kMapping[] = {"get", "items", "keys", "values", "copy", "fromkeys"};
    constexpr std::string_view kSequence[] = {"index", "count"};
    constexpr std::string_view kLoop[] = {"cycle", "changed"};
    if (value.text() != nullptr) return find_text_method(name) != nullptr;
    if (value.dict() != nullptr) return has(kMapping, name);
    if (const List* list = value.list(); list != nullptr && !list->is_view()) {
        return has(kSequence, name) || (list->kind == Sequence::list && name == "copy");
    }
    return value.loop() != nullptr && has(kLoop, name);
}

Value call_method(Context& context, const Value& self, std::string_view name,
                  const Arguments& arguments) {
    const MethodCall call{context, name, arguments};
    if (self.text() != nullptr) return call_text_method(call, self);
    if (self.dict() != nullptr) return call_mapping_method(call, self);
    if (self.list() != nullptr) return call_list_method(call, self);
    return call_loop_method(call, *self.loop());
}

}  // namespace kd::jinja
