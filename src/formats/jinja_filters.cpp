#include "formats/jinja_filters.h"

#include <algorithm>

#include "formats/gguf.h"
#include "formats/jinja_format.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

Value filter_trim(const FilterCall& call) {
    return strip(call.context, call.text(), call.bind({"chars"}).text(0), Side::both);
}

Value filter_tojson(const FilterCall& call) {
    const Bound bound = call.bind({"ensure_ascii", "indent", "separators", "sort_keys"});
    JsonStyle style{.indent = bound.integer(1, -1),
                    .ascii = bound.flag(0, false),
                    .sort_keys = bound.flag(3, false)};
    if (style.indent > 64) call.context.unsupported("tojson with an indent above 64");
    // Python breaks lines, without spaces, for a negative indent, too.
    if (!bound.value(1).is_none()) style.indent = std::max<int64_t>(style.indent, 0);
    if (style.indent >= 0) style.item_separator.pop_back();
    const Value separators = bound.value(2);
    if (const List* list = separators.list()) {
        if (list->items.size() != 2 || !list->items[0].text() || !list->items[1].text()) {
            call.context.fail("tojson: separators must be two strings");
        }
        call.context.spend_text(list->items[0].text()->size() + list->items[1].text()->size());
        style.item_separator = *list->items[0].text();
        style.key_separator = *list->items[1].text();
    } else if (!separators.is_none()) {
        call.context.fail("tojson: separators must be two strings");
    }
    return to_json(call.context, call.value, style);
}

Value filter_default(const FilterCall& call) {
    const Bound bound = call.bind({"default_value", "boolean"});
    const bool missing = call.value.is_undefined() || (bound.flag(1, false) && !call.value.truth());
    return missing ? bound.value(0, "") : call.value;
}

Value filter_upper(const FilterCall& call) {
    call.bind({});
    return upper(call.context, call.text());
}

Value filter_lower(const FilterCall& call) {
    call.bind({});
    return lower(call.context, call.text());
}

Value filter_capitalize(const FilterCall& call) {
    call.bind({});
    return capitalize(call.context, call.text());
}

/// A capital after white space and after - ( { [ <, which is not what the method `title` does.
Value filter_title(const FilterCall& call) {
    call.bind({});
    const std::string text = call.text();
    std::string out;
    std::string_view word;
    const auto end_word = [&] {
        out += capitalize(call.context, word, Capital::upper);
        word = {};
    };
    for (const std::string_view c : characters(call.context, text)) {
        constexpr std::string_view kBreaks = "-({[<";
        if (is_space(c) || kBreaks.find(c) != kBreaks.npos) {
            end_word();
            out += c;
        } else {
            word = word.empty() ? c : std::string_view(word.data(), word.size() + c.size());
        }
    }
    end_word();
    return out;
}

Value filter_string(const FilterCall& call) {
    call.bind({});
    return call.text();
}

Value filter_replace(const FilterCall& call) {
    const Bound bound = call.bind({"old", "new", "count"}, 2);
    if (call.value.is_markup()) call.context.unsupported("replace in a safe string");
    return replace(call.context, call.text(), to_text(call.context, bound.value(0)),
                   to_text(call.context, bound.value(1)), bound.integer(2, -1));
}

Value filter_indent(const FilterCall& call) {
    const Bound bound = call.bind({"width", "first", "blank"});
    if (call.value.text() == nullptr) {
        call.context.fail(fmt::format("indent needs a string, not {}", call.value.kind()));
    }
    const Value width = bound.value(0, int64_t{4});
    std::string indent;
    if (width.text() != nullptr) {
        indent = *width.text();
    } else if (const int64_t spaces = bound.integer(0, 4); spaces > 0) {
        call.context.spend_bytes(static_cast<size_t>(spaces));
        indent.assign(static_cast<size_t>(spaces), ' ');
    }
    const bool blank = bound.flag(2, false);
    std::string out = bound.flag(1, false) ? indent : "";
    bool first = true;
    for (const Value& line : split_lines(call.context, *call.value.text() + "\n", false)) {
        const std::string& text = *line.text();
        call.context.spend_bytes(indent.size() + text.size() + 1);
        if (!first) out += "\n";
        if (!first && (blank || !text.empty())) out += indent;
        out += text;
        first = false;
    }
    return out;
}

Value filter_safe(const FilterCall& call) {
    call.bind({});
    return Value(call.text()).as_markup();
}

Value filter_escape(const FilterCall& call) {
    call.bind({});
    if (call.value.is_markup()) return call.value;
    return Value(escape(call.context, call.text())).as_markup();
}

Value filter_format(const FilterCall& call) {
    if (!call.arguments.named.empty()) {
        if (!call.arguments.positional.empty()) {
            call.context.fail("format takes either positional or named arguments");
        }
        return format_percent(
            call.context, call.text(),
            make_dict(call.context, {call.arguments.named.begin(), call.arguments.named.end()}));
    }
    return format_percent(call.context, call.text(),
                          make_list(call.context, call.arguments.positional, Sequence::tuple));
}

struct Named {
    std::string_view name;
    Filter filter;
    bool keeps_markup = false;
};

constexpr Named kFilters[] = {
    {"trim", filter_trim, true},
    {"tojson", filter_tojson},
    {"default", filter_default},
    {"d", filter_default},
    {"upper", filter_upper, true},
    {"lower", filter_lower, true},
    {"capitalize", filter_capitalize, true},
    {"title", filter_title},
    {"string", filter_string, true},
    {"replace", filter_replace},
    {"indent", filter_indent, true},
    {"safe", filter_safe},
    {"escape", filter_escape},
    {"e", filter_escape},
    {"format", filter_format},
};

const Named* find_named(std::string_view name) {
    const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                     [&](const Named& each) { return each.name == name; });
    return found == std::end(kFilters) ? nullptr : found;
}

Filter find_filter(std::string_view name) {
    if (const Filter filter = find_text_filter(name)) return filter;
    if (const Filter filter = find_number_filter(name)) return filter;
    return find_sequence_filter(name);
}

}  // namespace

Filter find_text_filter(std::string_view name) {
    const Named* found = find_named(name);
    return found == nullptr ? nullptr : found->filter;
}

void require_filter(const Context& context, std::string_view name) {
    if (find_filter(name) == nullptr) {
        context.unsupported(fmt::format("the filter '{}'", printable(name)));
    }
}

bool is_unknown_filter(std::string_view name) {
    constexpr std::string_view kOthers[] = {
        "attr",   "batch",     "center",   "filesizeformat", "forceescape", "groupby",
        "pprint", "random",    "slice",    "striptags",      "truncate",    "urlencode",
        "urlize", "wordcount", "wordwrap", "xmlattr"};
    return find_filter(name) == nullptr &&
           std::find(std::begin(kOthers), std::end(kOthers), name) == std::end(kOthers);
}

Value apply_filter(Context& context, std::string_view name, const Value& value,
                   const Arguments& arguments) {
    require_filter(context, name);
    const Value result = find_filter(name)({context, name, value, arguments});
    const Named* text_filter = find_named(name);
    const bool keeps = text_filter != nullptr && text_filter->keeps_markup;
    return keeps ? result.marked_as(value) : result;
}

}  // namespace kd::jinja
