#include "formats/jinja_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/utf8.h"

namespace kd::jinja {

std::string Context::place() const {
    return line > 0 ? fmt::format("{}, line {}", name_, line) : name_;
}

void Context::fail(const std::string& message) const {
    KD_THROW(invalid_argument, "{}: {}", place(), one_line(message));
}

void Context::unsupported(const std::string& message) const {
    KD_THROW(unsupported, "{}: {} is not supported", place(), one_line(message));
}

void Context::spend_steps(size_t steps) {
    if (steps > size_t{kMaxSteps} || (steps_ += static_cast<int64_t>(steps)) > kMaxSteps) {
        KD_THROW(out_of_resources, "{}: more than {} steps", place(), kMaxSteps);
    }
}

void Context::spend_bytes(size_t bytes) {
    if (bytes > size_t{kMaxBytes} || (bytes_ += static_cast<int64_t>(bytes)) > kMaxBytes) {
        KD_THROW(out_of_resources, "{}: more than {} bytes of strings", place(), kMaxBytes);
    }
}

bool Value::truth() const {
    if (is_undefined() || is_none()) return false;
    if (is_number()) return number() != 0;
    if (const std::string* string = text()) return !string->empty();
    if (const List* items = list()) return !items->items.empty();
    if (const Dict* entries = dict()) return !entries->entries.empty();
    return true;
}

Value Value::as_markup() const {
    Value result;
    result.kinds_ = is_markup() ? kinds_ : Markup{std::get<Text>(kinds_)};
    return result;
}

std::string_view Value::kind() const {
    constexpr std::string_view kNames[] = {
        "undefined", "none",      "boolean", "integer",   "float",  "string", "string",  "list",
        "mapping",   "namespace", "loop",    "generator", "method", "macro",  "function"};
    constexpr std::string_view kSequences[] = {"list", "tuple", "range", "view", "view", "view"};
    if (const List* sequence = list()) return kSequences[static_cast<size_t>(sequence->kind)];
    return kNames[kinds_.index()];
}

void spend_look_up(Context& context, size_t entries, std::string_view name) {
    context.spend_steps(entries / 8 + name.size() / 256 * (entries + 1));
}

const Value* Dict::find(Context& context, std::string_view key) const {
    spend_look_up(context, entries.size(), key);
    for (const auto& [name, value] : entries) {
        if (name.text() != nullptr && *name.text() == key) return &value;
    }
    return nullptr;
}

const Value* Dict::find(Context& context, const Value& key) const {
    if (!is_hashable(key)) context.fail(fmt::format("a {} is no key", key.kind()));
    if (key.text() != nullptr) return find(context, std::string_view(*key.text()));
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
        return equal(context, entry.first, key);
    });
    return found == entries.end() ? nullptr : &found->second;
}

namespace {

int depth_of(Context& context, const Value& value) {
    if (value.name_space() != nullptr || value.loop() != nullptr) {
        context.unsupported(fmt::format("a {} inside another value", value.kind()));
    }
    if (const List* list = value.list()) return list->depth;
    if (const Dict* dict = value.dict()) return dict->depth;
    if (const Iterator* iterator = value.iterator()) return iterator->items->depth;
    if (const Method* method = value.method()) return depth_of(context, method->self);
    return 0;
}

void check_depth(Context& context, int depth) {
    if (depth > kMaxValueDepth) {
        context.fail(fmt::format("values nested deeper than {}", kMaxValueDepth));
    }
}

Value value_at_depth(Context& context, const nlohmann::ordered_json& json, int depth) {
    check_depth(context, depth);
    switch (json.type()) {
        case nlohmann::json::value_t::boolean:
            return json.get<bool>();
        case nlohmann::json::value_t::number_integer:
            return json.get<int64_t>();
        case nlohmann::json::value_t::number_unsigned:
            if (json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
                context.unsupported(fmt::format("the integer {}", json.get<uint64_t>()));
            }
            return json.get<int64_t>();
        case nlohmann::json::value_t::number_float:
            return json.get<double>();
        case nlohmann::json::value_t::string:
            return json.get_ref<const std::string&>();
        case nlohmann::json::value_t::array: {
            std::vector<Value> items;
            items.reserve(json.size());
            for (const auto& item : json) items.push_back(value_at_depth(context, item, depth + 1));
            return make_list(context, std::move(items));
        }
        case nlohmann::json::value_t::object: {
            std::vector<Entry> entries;
            entries.reserve(json.size());
            for (const auto& [key, item] : json.items()) {
                entries.emplace_back(key, value_at_depth(context, item, depth + 1));
            }
            return make_dict(context, std::move(entries));
        }
        default:
            return None{};
    }
}

}  // namespace

namespace {

std::shared_ptr<const List> make_sequence(Context& context, std::vector<Value> items,
                                          Sequence kind) {
    context.spend_steps(items.size());
    int depth = 0;
    bool hashable = kind == Sequence::tuple;
    for (const Value& item : items) {
        depth = std::max(depth, depth_of(context, item));
        hashable = hashable && is_hashable(item);
    }
    check_depth(context, depth + 1);
    hashable = hashable || kind == Sequence::range;
    return std::make_shared<const List>(List{std::move(items), kind, depth + 1, hashable});
}

}  // namespace

Value make_list(Context& context, std::vector<Value> items, Sequence kind) {
    return make_sequence(context, std::move(items), kind);
}

Value make_iterator(Context& context, std::vector<Value> items) {
    return std::make_shared<Iterator>(
        Iterator{make_sequence(context, std::move(items), Sequence::list)});
}

void insert(Context& context, std::vector<Entry>& entries, const Value& key, Value value) {
    if (!is_hashable(key)) context.fail(fmt::format("a {} is no key", key.kind()));
    context.spend_steps(1);
    if (key.text() != nullptr) spend_look_up(context, entries.size(), *key.text());
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
        if (key.text() == nullptr) return equal(context, entry.first, key);
        return entry.first.text() != nullptr && *entry.first.text() == *key.text();
    });
    if (found == entries.end()) {
        entries.emplace_back(key, std::move(value));
    } else {
        found->second = std::move(value);
    }
}

Value make_dict(Context& context, std::vector<Entry> entries) {
    context.spend_steps(entries.size());
    int depth = 0;
    for (const auto& [key, value] : entries) {
        depth = std::max({depth, depth_of(context, key), depth_of(context, value)});
    }
    check_depth(context, depth + 1);
    return std::make_shared<const Dict>(Dict{std::move(entries), depth + 1});
}

Value value_of(Context& context, const nlohmann::ordered_json& json) {
    return value_at_depth(context, json, 0);
}

namespace {

bool equal_lists(Context& context, const List& a, const List& b) {
    if (a.kind == Sequence::values || b.kind == Sequence::values) return &a == &b;
    const bool sets = a.is_view() && b.is_view();
    if (a.items.size() != b.items.size() || (a.kind != b.kind && !sets)) return false;
    if (sets) {
        return std::all_of(a.items.begin(), a.items.end(), [&](const Value& x) {
            return std::any_of(b.items.begin(), b.items.end(),
                               [&](const Value& y) { return equal(context, x, y); });
        });
    }
    return std::equal(a.items.begin(), a.items.end(), b.items.begin(),
                      [&](const Value& x, const Value& y) { return equal(context, x, y); });
}

bool less_lists(Context& context, const List& a, const List& b) {
    const size_t both = std::min(a.items.size(), b.items.size());
    for (size_t i = 0; i < both; ++i) {
        if (!equal(context, a.items[i], b.items[i])) return less(context, a.items[i], b.items[i]);
    }
    return a.items.size() < b.items.size();
}

}  // namespace

bool equal(Context& context, const Value& a, const Value& b) {
    context.spend_steps(1);
    if (a.is_number() && b.is_number()) {
        if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
        return a.number() == b.number();
    }
    if (a.text() != nullptr && b.text() != nullptr) {
        context.spend_text(std::min(a.text()->size(), b.text()->size()));
        return *a.text() == *b.text();
    }
    if (a.list() != nullptr && b.list() != nullptr)
        return equal_lists(context, *a.list(), *b.list());
    if (a.dict() != nullptr && b.dict() != nullptr) {
        if (a.dict()->entries.size() != b.dict()->entries.size()) return false;
        for (const auto& [key, value] : a.dict()->entries) {
            const Value* other = b.dict()->find(context, key);
            if (other == nullptr || !equal(context, value, *other)) return false;
        }
        return true;
    }
    if (a.name_space() != nullptr) return a.name_space() == b.name_space();
    if (a.loop() != nullptr) return a.loop() == b.loop();
    if (a.iterator() != nullptr) return a.iterator() == b.iterator();
    if (a.macro() != nullptr) return a.macro() == b.macro();
    if (a.method() != nullptr || b.method() != nullptr) context.unsupported("comparing methods");
    if (a.function() != nullptr && b.function() != nullptr) return *a.function() == *b.function();
    return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(Context& context, const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) {
        if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
        return a.number() < b.number();
    }
    // Bytes of UTF-8 sort as their code points do.
    if (a.text() != nullptr && b.text() != nullptr) {
        context.spend_text(std::min(a.text()->size(), b.text()->size()));
        return *a.text() < *b.text();
    }
    if (a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind &&
        a.list()->kind <= Sequence::tuple) {
        return less_lists(context, *a.list(), *b.list());
    }
    context.fail(fmt::format("{} and {} have no order", a.kind(), b.kind()));
}

bool contains(Context& context, const Value& haystack, const Value& needle) {
    if (const std::string* text = haystack.text()) {
        if (needle.text() == nullptr) {
            context.fail(fmt::format("'in' a string needs a string, not {}", needle.kind()));
        }
        context.spend_steps(text->size() / 256 * needle.text()->size());
        return text->find(*needle.text()) != text->npos;
    }
    if (const Dict* dict = haystack.dict()) {
        return dict->find(context, needle) != nullptr;
    }
    if (Iterator* iterator = haystack.iterator()) {
        const std::vector<Value>& items = iterator->items->items;
        while (iterator->next < items.size()) {
            if (equal(context, items[iterator->next++], needle)) return true;
        }
        return false;
    }
    const bool looks_up = haystack.list() != nullptr && haystack.list()->kind == Sequence::keys;
    if (looks_up && !is_hashable(needle)) {
        context.fail(fmt::format("a {} is no key", needle.kind()));
    }
    const std::shared_ptr<const List> items = iterate(context, haystack);
    return std::any_of(items->items.begin(), items->items.end(),
                       [&](const Value& item) { return equal(context, item, needle); });
}

std::shared_ptr<const List> iterate(Context& context, const Value& value) {
    auto result = std::make_shared<List>();
    if (const List* list = value.list()) {
        result->items = list->items;
        result->depth = list->depth;
    } else if (const Dict* dict = value.dict()) {
        for (const auto& [key, item] : dict->entries) result->items.push_back(key);
    } else if (const std::string* text = value.text()) {
        for (const std::string_view c : characters(context, *text)) result->items.emplace_back(c);
    } else if (Iterator* iterator = value.iterator()) {
        const std::vector<Value>& items = iterator->items->items;
        result->items.assign(items.begin() + static_cast<ptrdiff_t>(iterator->next), items.end());
        result->depth = iterator->items->depth;
        iterator->next = items.size();
    } else if (!value.is_undefined()) {
        context.fail(fmt::format("{} cannot be iterated", value.kind()));
    }
    context.spend_steps(result->items.size());
    return result;
}

bool is_hashable(const Value& value) {
    if (value.dict() != nullptr) return false;
    return value.list() == nullptr || value.list()->hashable;
}

std::vector<std::string_view> characters(Context& context, std::string_view text) {
    context.spend_steps(text.size());
    std::vector<std::string_view> result;
    while (!text.empty()) {
        const size_t bytes = next_utf8(text).bytes;
        result.push_back(text.substr(0, bytes));
        text.remove_prefix(bytes);
    }
    return result;
}

bool is_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace kd::jinja
