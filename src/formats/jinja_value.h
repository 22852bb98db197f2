// Values of the template language, with Python's meaning: how they print, compare and nest.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace kd::jinja {

/// Bounds of one rendering. A chat of 10,000 turns needs some 10^5 steps.
inline constexpr int64_t kMaxSteps = 4'000'000;         // nodes evaluated, elements visited
inline constexpr int64_t kMaxBytes = int64_t{1} << 27;  // of all strings made
inline constexpr size_t kMaxOutputBytes = size_t{1} << 25;
inline constexpr int kMaxValueDepth = 128;  // lists in lists

/// `text` as one line for a message: what does not print, as line ends, control characters and
/// marks of direction, as Python's repr escapes it; what is behind some 1,000 bytes, as "...".
std::string one_line(std::string_view text);

/// Where a rendering stands, for messages, and what it may still spend.
class Context {
  public:
    using Time = std::chrono::system_clock::time_point;

    explicit Context(std::string name, Time time = {}) : now(time), name_(std::move(name)) {}

    const Time now;  // what strftime_now prints
    int line = 0;    // of the template; 0: before it

    /// Throws kd::Error{invalid_argument}: "name, line N: message", the message as one_line has it.
    [[noreturn]] void fail(const std::string& message) const;
    /// Throws kd::Error{unsupported}.
    [[noreturn]] void unsupported(const std::string& message) const;
    /// Throw kd::Error{out_of_resources} beyond the bounds above.
    void spend_steps(size_t steps);
    void spend_bytes(size_t bytes);
    /// For comparing or copying that much text, of which 256 bytes count as a step.
    void spend_text(size_t bytes) { spend_steps(bytes / 256); }

  private:
    std::string place() const;

    std::string name_;
    int64_t steps_ = 0;
    int64_t bytes_ = 0;
};

class Value;
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Iterator;
struct Method;
struct Macro;
struct Scope;

/// Where the value should have come from, as the template writes it.
struct Undefined {
    std::string source;
};
struct None {};
/// Text that counts as escaped for HTML: what `safe` returns. Joined by '+' with other text, that
/// is escaped, too.
struct Markup {
    std::shared_ptr<const std::string> text;
};
enum class Function : uint8_t { raise_exception, strftime_now, make_namespace, make_dict, range };

/// Cheap to copy: strings and containers are shared and never change. The shared owners form no
/// cycle: a namespace and a loop, which can change, are never put inside another value, and a macro
/// does not own the scope that it was defined in.
class Value {
  public:
    using Text = std::shared_ptr<const std::string>;
    using Kinds =
        std::variant<Undefined, None, bool, int64_t, double, Text, Markup,
                     std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                     std::shared_ptr<Namespace>, std::shared_ptr<Loop>, std::shared_ptr<Iterator>,
                     std::shared_ptr<const Method>, std::shared_ptr<const Macro>, Function>;

    Value() = default;  // undefined
    Value(None none) : kinds_(none) {}
    Value(Undefined undefined) : kinds_(std::move(undefined)) {}
    Value(bool value) : kinds_(value) {}
    Value(int64_t value) : kinds_(value) {}
    Value(double value) : kinds_(value) {}
    Value(std::string value) : kinds_(std::make_shared<const std::string>(std::move(value))) {}
    Value(std::string_view value) : Value(std::string(value)) {}
    Value(const char* value) : Value(std::string(value)) {}
    Value(std::shared_ptr<const List> value) : kinds_(std::move(value)) {}
    Value(std::shared_ptr<const Dict> value) : kinds_(std::move(value)) {}
    Value(std::shared_ptr<Namespace> value) : kinds_(std::move(value)) {}
    Value(std::shared_ptr<Loop> value) : kinds_(std::move(value)) {}
    Value(std::shared_ptr<Iterator> value) : kinds_(std::move(value)) {}
    Value(std::shared_ptr<const Method> value) : kinds_(std::move(value)) {}
    Value(std::shared_ptr<const Macro> value) : kinds_(std::move(value)) {}
    Value(Function value) : kinds_(value) {}

    /// This text as markup if `source` is markup, else as it is.
    Value marked_as(const Value& source) const { return source.is_markup() ? as_markup() : *this; }
    Value as_markup() const;
    bool is_markup() const { return std::holds_alternative<Markup>(kinds_); }

    bool is_undefined() const { return std::holds_alternative<Undefined>(kinds_); }
    bool is_none() const { return std::holds_alternative<None>(kinds_); }
    bool is_bool() const { return std::holds_alternative<bool>(kinds_); }
    bool is_float() const { return std::holds_alternative<double>(kinds_); }
    /// An integer; true and false count as 1 and 0, as in Python.
    bool is_integer() const { return is_bool() || std::holds_alternative<int64_t>(kinds_); }
    bool is_number() const { return is_integer() || is_float(); }

    int64_t integer() const {
        return is_bool() ? int64_t{std::get<bool>(kinds_)} : std::get<int64_t>(kinds_);
    }
    double number() const {
        return is_float() ? std::get<double>(kinds_) : static_cast<double>(integer());
    }
    /// Null if the value is of another kind.
    const std::string* text() const {
        return is_markup() ? std::get<Markup>(kinds_).text.get() : shared<Text>();
    }
    const List* list() const { return shared<std::shared_ptr<const List>>(); }
    const Dict* dict() const { return shared<std::shared_ptr<const Dict>>(); }
    Namespace* name_space() const { return shared<std::shared_ptr<Namespace>>(); }
    Loop* loop() const { return shared<std::shared_ptr<Loop>>(); }
    Iterator* iterator() const { return shared<std::shared_ptr<Iterator>>(); }
    const Method* method() const { return shared<std::shared_ptr<const Method>>(); }
    const Macro* macro() const { return shared<std::shared_ptr<const Macro>>(); }
    const Function* function() const { return std::get_if<Function>(&kinds_); }
    const Undefined* undefined() const { return std::get_if<Undefined>(&kinds_); }

    bool truth() const;
    /// "string", "none", ... for messages.
    std::string_view kind() const;

  private:
    template <class Shared>
    auto shared() const -> decltype(std::declval<Shared>().get()) {
        const auto* pointer = std::get_if<Shared>(&kinds_);
        return pointer == nullptr ? nullptr : pointer->get();
    }

    Kinds kinds_;
};

/// What a List is in Python; the last three are the views that a mapping's methods return.
enum class Sequence : uint8_t { list, tuple, range, keys, values, items };

struct List {
    std::vector<Value> items;
    Sequence kind = Sequence::list;
    int depth = 1;
    bool hashable = false;  // a range, or a tuple of hashable items

    bool is_view() const { return kind >= Sequence::keys; }
};

/// What filters such as map and select return: true, without a length or an index, and empty after
/// it was visited once. The items are made at once; jinja2 makes each when it is visited.
struct Iterator {
    std::shared_ptr<const List> items;
    size_t next = 0;
};

using Entry = std::pair<Value, Value>;

struct Dict {
    std::vector<Entry> entries;  // keys hashable and distinct, in order of insertion
    int depth = 1;

    /// Null if absent. Fails for a key that is not hashable.
    const Value* find(Context& context, const Value& key) const;
    const Value* find(Context& context, std::string_view key) const;
};

struct Namespace {
    std::vector<std::pair<std::string, Value>> attributes;
};

struct Loop {
    std::shared_ptr<const List> items;
    size_t index = 0;              // from 0
    std::optional<Value> changed;  // what loop.changed saw last
};

/// A method that is not called yet: text.strip.
struct Method {
    Value self;
    std::string name;
};

struct Stmt;

struct Macro {
    std::string_view name;  // lives in the tree; empty: the body of a call block
    const Stmt* stmt = nullptr;
    std::weak_ptr<Scope> scope;  // gone: the block that defined the macro has ended
};

/// For finding `name` among so many, or adding it: at worst all are as long and differ at their
/// ends.
void spend_look_up(Context& context, size_t entries, std::string_view name);

/// Fail if the result would nest too deep or hold a namespace or a loop.
Value make_list(Context& context, std::vector<Value> items, Sequence kind = Sequence::list);
Value make_iterator(Context& context, std::vector<Value> items);
Value make_dict(Context& context, std::vector<Entry> entries);
/// entries[key] = value. Fails for a key that is not hashable.
void insert(Context& context, std::vector<Entry>& entries, const Value& key, Value value);

/// Throws for nesting beyond kMaxValueDepth and integers beyond 64 bits.
Value value_of(Context& context, const nlohmann::ordered_json& json);

/// Python's str() and repr(). Undefined is "" as text, "Undefined" inside a container.
std::string to_text(Context& context, const Value& value);
std::string to_repr(Context& context, const Value& value);

struct JsonStyle {
    int64_t indent = -1;  // spaces; -1: one line
    bool ascii = false;
    bool sort_keys = false;
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};
/// Python's json.dumps.
std::string to_json(Context& context, const Value& value, const JsonStyle& style);

bool equal(Context& context, const Value& a, const Value& b);
/// a < b; fails for kinds without an order between them.
bool less(Context& context, const Value& a, const Value& b);
/// `needle in haystack`.
bool contains(Context& context, const Value& haystack, const Value& needle);
/// Whether Python can use it as a key; lists and mappings it cannot.
bool is_hashable(const Value& value);
/// What a loop visits: elements, keys, characters, what is left of an iterator, which is empty
/// afterwards; nothing for undefined. Fails for the rest.
std::shared_ptr<const List> iterate(Context& context, const Value& value);

/// The characters of text (ill-formed units count as one).
std::vector<std::string_view> characters(Context& context, std::string_view text);
/// str.isspace of one code point.
bool is_space(char32_t code_point);

}  // namespace kd::jinja
