#include <algorithm>

#include "formats/jinja_access.h"
#include "formats/jinja_arithmetic.h"
#include "formats/jinja_filters.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

using Items = std::vector<Value>;

Items items_of(const FilterCall& call) {
    return iterate(call.context, call.value)->items;
}

/// Reads the attribute `path`, as "function.name" or "0", from each value; every value itself for
/// an empty path.
class Getter {
  public:
    Getter(Context& context, const Value& path) : context_(context) {
        if (path.is_integer()) {
            parts_.push_back(path);
        } else if (const std::string* text = path.text()) {
            if (text->find(',') != text->npos) context.unsupported("several attributes");
            for (const Value& part : split(context, *text, ".", -1)) {
                const bool digits = !part.text()->empty() && part.text()->size() < 10 &&
                                    part.text()->find_first_not_of("0123456789") == text->npos;
                parts_.push_back(digits ? Value(int64_t{std::stol(*part.text())}) : part);
            }
        } else if (!path.is_none()) {
            context.fail(fmt::format("an attribute must be a string, not {}", path.kind()));
        }
    }

    Value operator()(Value value, const Value& fallback = None{}) const {
        for (const Value& part : parts_) {
            context_.spend_steps(1);
            value = get_item(context_, value, part);
            if (!value.is_undefined()) continue;
            if (!fallback.is_none()) {
                value = fallback;
            } else if (part.text() != nullptr) {
                value = Undefined{shortened(*part.text())};
            }
        }
        return value;
    }

  private:
    Context& context_;
    Items parts_;
};

/// The attribute, strings in lower case unless case matters: what sort and its kin compare.
class Key {
  public:
    Key(Context& context, const Value& path, bool case_sensitive)
        : context_(context), getter_(context, path), case_sensitive_(case_sensitive) {}

    Value operator()(const Value& value) const {
        Value key = getter_(value);
        return key.text() == nullptr || case_sensitive_ ? key : lower(context_, *key.text());
    }

  private:
    Context& context_;
    Getter getter_;
    bool case_sensitive_;
};

/// Stable in both directions, as sorted() is.
Items sorted(Context& context, Items items, bool reverse, const auto& key_of) {
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& item : items) {
        Value key = key_of(item);
        keyed.emplace_back(std::move(key), std::move(item));
    }
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
        context.spend_steps(1);
        return reverse ? less(context, b.first, a.first) : less(context, a.first, b.first);
    });
    for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
    return items;
}

Value filter_length(const FilterCall& call) {
    call.bind({});
    if (call.value.text() != nullptr) {
        return static_cast<int64_t>(characters(call.context, *call.value.text()).size());
    }
    if (call.value.list() != nullptr) {
        return static_cast<int64_t>(call.value.list()->items.size());
    }
    if (call.value.dict() != nullptr) {
        return static_cast<int64_t>(call.value.dict()->entries.size());
    }
    if (!call.value.is_undefined()) {
        call.context.fail(fmt::format("a {} has no length", call.value.kind()));
    }
    return int64_t{0};
}

Value filter_join(const FilterCall& call) {
    const Bound bound = call.bind({"d", "attribute"});
    const Getter getter(call.context, bound.value(1));
    Items items = items_of(call);
    for (Value& item : items) item = getter(item);
    return join(call.context, items, to_text(call.context, bound.value(0, "")));
}

Value filter_first(const FilterCall& call) {
    call.bind({});
    if (Iterator* iterator = call.value.iterator()) {
        const Items& all = iterator->items->items;
        return iterator->next < all.size() ? all[iterator->next++]
                                           : Value(Undefined{"the first item of nothing"});
    }
    const Items items = items_of(call);
    return items.empty() ? Value(Undefined{"the first item of nothing"}) : items.front();
}

void refuse_iterator(const FilterCall& call) {
    if (call.value.iterator() != nullptr) {
        call.context.fail(fmt::format("{} of a generator", call.name));
    }
}

Value filter_last(const FilterCall& call) {
    call.bind({});
    refuse_iterator(call);
    const Items items = items_of(call);
    return items.empty() ? Value(Undefined{"the last item of nothing"}) : items.back();
}

Value filter_list(const FilterCall& call) {
    call.bind({});
    return make_list(call.context, items_of(call));
}

Value filter_items(const FilterCall& call) {
    call.bind({});
    if (call.value.is_undefined()) return make_iterator(call.context, {});
    if (call.value.dict() == nullptr) {
        call.context.fail(fmt::format("items: a mapping is needed, not {}", call.value.kind()));
    }
    const Value items = call_method(call.context, call.value, "items", {});
    return make_iterator(call.context, items.list()->items);
}

Value filter_reverse(const FilterCall& call) {
    call.bind({});
    Items items = items_of(call);
    std::reverse(items.begin(), items.end());
    if (call.value.text() != nullptr) return join(call.context, items, "");
    if (call.value.iterator() != nullptr) return make_list(call.context, std::move(items));
    return make_iterator(call.context, std::move(items));
}

Value filter_sort(const FilterCall& call) {
    const Bound bound = call.bind({"reverse", "case_sensitive", "attribute"});
    const Key key(call.context, bound.value(2), bound.flag(1, false));
    // jinja2 compares lists of keys: equal ones need no order.
    const auto keys = [&](const Value& item) { return make_list(call.context, {key(item)}); };
    return make_list(call.context,
                     sorted(call.context, items_of(call), bound.flag(0, false), keys));
}

Value filter_dictsort(const FilterCall& call) {
    const Bound bound = call.bind({"case_sensitive", "by", "reverse"});
    const std::string by = bound.text(1).value_or("key");
    if (by != "key" && by != "value") call.context.fail("dictsort: by must be key or value");
    if (call.value.dict() == nullptr) {
        call.context.fail(fmt::format("dictsort needs a mapping, not {}", call.value.kind()));
    }
    const Value items = call_method(call.context, call.value, "items", {});
    const Key key(call.context, int64_t{by == "key" ? 0 : 1}, bound.flag(0, false));
    return make_list(call.context,
                     sorted(call.context, items.list()->items, bound.flag(2, false), key));
}

Value filter_unique(const FilterCall& call) {
    const Bound bound = call.bind({"case_sensitive", "attribute"});
    const Key key_of(call.context, bound.value(1), bound.flag(0, false));
    Items seen;
    Items kept;
    for (const Value& item : items_of(call)) {
        Value key = key_of(item);
        if (!is_hashable(key)) call.context.fail(fmt::format("unique: a {} item", key.kind()));
        if (std::any_of(seen.begin(), seen.end(),
                        [&](const Value& other) { return equal(call.context, key, other); })) {
            continue;
        }
        seen.push_back(std::move(key));
        kept.push_back(item);
    }
    return make_iterator(call.context, std::move(kept));
}

Value filter_extreme(const FilterCall& call) {
    const Bound bound = call.bind({"case_sensitive", "attribute"});
    const Key key_of(call.context, bound.value(1), bound.flag(0, false));
    const Items items = items_of(call);
    if (items.empty()) return Undefined{"the extreme of nothing"};
    size_t best = 0;
    Value best_key = key_of(items[0]);
    for (size_t i = 1; i < items.size(); ++i) {
        Value key = key_of(items[i]);
        const bool better = call.name == "min" ? less(call.context, key, best_key)
                                               : less(call.context, best_key, key);
        if (!better) continue;
        best = i;
        best_key = std::move(key);
    }
    return items[best];
}

Value filter_sum(const FilterCall& call) {
    const Bound bound = call.bind({"attribute", "start"});
    const Getter getter(call.context, bound.value(0));
    Value total = bound.value(1, int64_t{0});
    if (total.text() != nullptr) call.context.fail("sum of strings");
    for (const Value& item : items_of(call)) {
        total = operate(call.context, "+", total, getter(item), "the sum", "an item");
    }
    return total;
}

/// map(attribute=...) or map('filter', arguments of the filter...).
Value filter_map(const FilterCall& call) {
    const Arguments& given = call.arguments;
    Items items;
    if (given.positional.empty()) {
        const Bound bound = call.bind({"attribute", "default"});
        if (bound.value(0).is_none()) call.context.fail("map needs a filter or an attribute");
        const Getter getter(call.context, bound.value(0));
        for (const Value& item : items_of(call)) items.push_back(getter(item, bound.value(1)));
        return make_iterator(call.context, std::move(items));
    }
    if (given.positional[0].text() == nullptr) call.context.fail("map needs the name of a filter");
    const std::string name = *given.positional[0].text();
    const Arguments rest{{given.positional.begin() + 1, given.positional.end()}, given.named};
    require_filter(call.context, name);
    for (const Value& item : items_of(call)) {
        items.push_back(apply_filter(call.context, name, item, rest));
    }
    return make_iterator(call.context, std::move(items));
}

/// select, reject, selectattr, rejectattr: the items for which a test, or their truth, holds.
Value filter_select(const FilterCall& call) {
    const bool by_attribute = call.name.ends_with("attr");
    const bool wanted = call.name.starts_with("select");
    const Items& given = call.arguments.positional;
    if (by_attribute && given.empty()) {
        call.context.fail(fmt::format("{} needs an attribute", call.name));
    }
    const Getter getter(call.context, by_attribute ? given[0] : Value(None{}));
    const size_t at = by_attribute ? 1 : 0;
    std::string_view test;
    if (given.size() > at) {
        if (given[at].text() == nullptr) call.context.fail("the name of a test must be a string");
        test = *given[at].text();
    }
    const auto first = std::min(at + 1, given.size());
    const Arguments rest{{given.begin() + static_cast<ptrdiff_t>(first), given.end()},
                         call.arguments.named};
    Items kept;
    if (!call.value.truth()) return make_iterator(call.context, {});
    if (!test.empty()) require_test(call.context, test);
    for (const Value& item : items_of(call)) {
        const Value part = getter(item);
        const bool holds = test.empty() ? part.truth() : apply_test(call.context, test, part, rest);
        if (holds == wanted) kept.push_back(item);
    }
    return make_iterator(call.context, std::move(kept));
}

struct Named {
    std::string_view name;
    Filter filter;
};

constexpr Named kFilters[] = {
    {"length", filter_length},     {"count", filter_length},    {"join", filter_join},
    {"first", filter_first},       {"last", filter_last},       {"list", filter_list},
    {"items", filter_items},       {"reverse", filter_reverse}, {"sort", filter_sort},
    {"dictsort", filter_dictsort}, {"unique", filter_unique},   {"min", filter_extreme},
    {"max", filter_extreme},       {"sum", filter_sum},         {"map", filter_map},
    {"select", filter_select},     {"reject", filter_select},   {"selectattr", filter_select},
    {"rejectattr", filter_select},
};

}  // namespace

Filter find_sequence_filter(std::string_view name) {
    const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                     [&](const Named& each) { return each.name == name; });
    return found == std::end(kFilters) ? nullptr : found->filter;
}

}  // namespace kd::jinja
