#include "formats/jinja_access.h"

#include <algorithm>

#include "formats/jinja_builtins.h"

namespace kd::jinja {

namespace {

Value loop_attribute(const Loop& loop, std::string_view name) {
    const std::vector<Value>& items = loop.items->items;
    const auto index = static_cast<int64_t>(loop.index);
    const auto count = static_cast<int64_t>(items.size());
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return count - index;
    if (name == "revindex0") return count - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == count;
    if (name == "length") return count;
    if (name == "depth") return int64_t{1};  // jinja2 counts recursive loops alone
    if (name == "depth0") return int64_t{0};
    if (name == "previtem" && index > 0) return items[loop.index - 1];
    if (name == "nextitem" && index + 1 < count) return items[loop.index + 1];
    return {};
}

/// What is no item: a method, or an attribute of a namespace or a loop.
Value own_attribute(Context& context, const Value& value, std::string_view name) {
    if (is_method(value, name)) {
        return std::make_shared<const Method>(Method{value, std::string(name)});
    }
    if (const Namespace* space = value.name_space()) {
        spend_look_up(context, space->attributes.size(), name);
        for (const auto& [key, attribute] : space->attributes) {
            if (key == name) return attribute;
        }
    }
    if (const Loop* loop = value.loop()) return loop_attribute(*loop, name);
    return {};
}

void require_defined(const Context& context, const Value& value) {
    if (const Undefined* undefined = value.undefined()) {
        context.fail(undefined->source.empty()
                         ? "an attribute of an undefined value"
                         : fmt::format("'{}' is undefined", undefined->source));
    }
}

/// The elements of what has an order, characters as texts.
std::shared_ptr<const List> elements(Context& context, const Value& value) {
    const bool ordered =
        value.text() != nullptr || (value.list() != nullptr && !value.list()->is_view());
    return ordered ? iterate(context, value) : nullptr;
}

}  // namespace

Value get_attribute(Context& context, const Value& value, std::string_view name) {
    require_defined(context, value);
    const Value own = own_attribute(context, value, name);
    if (!own.is_undefined() || value.dict() == nullptr) return own;
    const Value* found = value.dict()->find(context, name);
    return found != nullptr ? *found : Value();
}

Value get_item(Context& context, const Value& value, const Value& key) {
    require_defined(context, value);
    if (const Dict* dict = value.dict(); dict != nullptr && is_hashable(key)) {
        if (const Value* found = dict->find(context, key)) return *found;
    }
    if (const std::string* name = key.text()) return own_attribute(context, value, *name);
    if (!key.is_integer()) return {};
    if (const List* list = value.list(); list != nullptr && !list->is_view()) {
        const auto count = static_cast<int64_t>(list->items.size());
        const int64_t index = key.integer() < 0 ? key.integer() + count : key.integer();
        return index >= 0 && index < count ? list->items[static_cast<size_t>(index)] : Value();
    }
    if (const std::string* text = value.text()) {
        const std::vector<std::string_view> all = characters(context, *text);
        const auto count = static_cast<int64_t>(all.size());
        const int64_t index = key.integer() < 0 ? key.integer() + count : key.integer();
        if (index < 0 || index >= count) return {};
        return Value(all[static_cast<size_t>(index)]).marked_as(value);
    }
    return {};
}

Value get_slice(Context& context, const Value& value, const Value& begin, const Value& end,
                const Value& step) {
    require_defined(context, value);
    const auto items = elements(context, value);
    if (!items) context.fail(fmt::format("a {} cannot be sliced", value.kind()));
    const auto count = static_cast<int64_t>(items->items.size());
    const auto part = [&](const Value& bound) -> std::optional<int64_t> {
        if (bound.is_none()) return std::nullopt;
        if (!bound.is_integer()) context.fail("a slice needs integers");
        return bound.integer();
    };
    const auto begin_part = part(begin);
    const auto end_part = part(end);
    const int64_t stride = part(step).value_or(1);
    if (stride == 0) context.fail("a slice with step 0");
    // Bounds beyond the ends are pulled to the place where a walk in this direction would stop.
    const int64_t lowest = stride > 0 ? 0 : -1;
    const int64_t highest = stride > 0 ? count : count - 1;
    const auto place = [&](std::optional<int64_t> bound, int64_t fallback) {
        if (!bound) return fallback;
        return std::clamp(*bound < 0 ? *bound + count : *bound, lowest, highest);
    };
    const int64_t first = place(begin_part, stride > 0 ? lowest : highest);
    const int64_t last = place(end_part, stride > 0 ? highest : lowest);
    std::vector<Value> result;
    for (int64_t i = first; stride > 0 ? i < last : i > last;) {
        result.push_back(items->items[static_cast<size_t>(i)]);
        if (__builtin_add_overflow(i, stride, &i)) break;
    }
    if (value.list() != nullptr) return make_list(context, std::move(result), value.list()->kind);
    std::string text;
    for (const Value& character : result) text += *character.text();
    context.spend_bytes(text.size());
    return Value(std::move(text)).marked_as(value);
}

}  // namespace kd::jinja
