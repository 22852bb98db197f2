// How values print: Python's str, repr and json.dumps.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "formats/code_point_set.h"
#include "formats/jinja_value.h"
#include "formats/utf8.h"

namespace kd::jinja {

namespace {

/// Python's repr of a float: the shortest digits that read back, an exponent below 1e-4 and from
/// 1e16 on.
std::string repr_of(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    std::array<char, 40> buffer{};
    const double magnitude = std::fabs(value);
    const bool fixed = value == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
    const auto end = std::to_chars(buffer.begin(), buffer.end(), value,
                                   fixed ? std::chars_format::fixed : std::chars_format::scientific)
                         .ptr;
    std::string text(buffer.begin(), end);
    if (fixed && text.find('.') == text.npos) text += ".0";
    return text;
}

/// str.isprintable of one well-formed character.
bool is_printable(std::string_view character) {
    static const CodePointSet kUnprintable = *unicode_property("C") | *unicode_property("Z");
    return character == " " || !kUnprintable.contains(next_utf8(character).code_point);
}

/// The character, or the escape for one that does not print.
void append_printable(std::string& out, std::string_view character) {
    const Utf8Unit unit = next_utf8(character);
    const auto code_point = static_cast<uint32_t>(unit.code_point);
    if (character == "\n") {
        out += "\\n";
    } else if (character == "\r") {
        out += "\\r";
    } else if (character == "\t") {
        out += "\\t";
    } else if (unit.kind != Utf8Kind::valid) {
        out += kReplacementCharacter;
    } else if ((code_point >= 0x20 && code_point < 0x7F) || is_printable(character)) {
        out += character;
    } else if (code_point < 0x100) {
        out += fmt::format("\\x{:02x}", code_point);
    } else if (code_point < 0x10000) {
        out += fmt::format("\\u{:04x}", code_point);
    } else {
        out += fmt::format("\\U{:08x}", code_point);
    }
}

std::string repr_of(Context& context, const std::string& text) {
    const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
    const char quote = double_quotes ? '"' : '\'';
    std::string out(1, quote);
    for (const std::string_view c : characters(context, text)) {
        if (c[0] == quote || c[0] == '\\') out += '\\';
        append_printable(out, c);
    }
    out += quote;
    return out;
}

/// A number, boolean or none; false for other kinds.
bool scalar_text(const Value& value, std::string& out) {
    if (value.is_none()) {
        out += "None";
    } else if (value.is_bool()) {
        out += value.truth() ? "True" : "False";
    } else if (value.is_integer()) {
        out += std::to_string(value.integer());
    } else if (value.is_float()) {
        out += repr_of(value.number());
    } else {
        return false;
    }
    return true;
}

std::string json_string(const std::string& text, bool ascii) {
    std::string out = "\"";
    for (std::string_view rest = text; !rest.empty();) {
        const Utf8Unit unit = next_utf8(rest);
        const char32_t c = unit.code_point;
        constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
        constexpr std::string_view kLetters = "\"\\bfnrt";
        if (unit.kind != Utf8Kind::valid) {
            out += ascii ? "\\ufffd" : kReplacementCharacter;
        } else if (const size_t at = kEscaped.find(rest[0]); at != kEscaped.npos) {
            out += '\\';
            out += kLetters[at];
        } else if (c < 0x20 || (ascii && c > 0x7F && c < 0x10000)) {
            out += fmt::format("\\u{:04x}", uint32_t{c});
        } else if (ascii && c >= 0x10000) {
            out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((uint32_t{c} - 0x10000) >> 10),
                               0xDC00 + (uint32_t{c} & 0x3FF));
        } else {
            out += rest.substr(0, unit.bytes);
        }
        rest.remove_prefix(unit.bytes);
    }
    return out + '"';
}

class JsonPrinter {
  public:
    JsonPrinter(Context& context, const JsonStyle& style) : context_(context), style_(style) {}

    void print(const Value& value, int64_t level, std::string& out) {
        context_.spend_steps(1);
        if (value.is_none()) {
            out += "null";
        } else if (value.is_bool()) {
            out += value.truth() ? "true" : "false";
        } else if (value.is_integer()) {
            out += std::to_string(value.integer());
        } else if (value.is_float()) {
            print_float(value.number(), out);
        } else if (value.text() != nullptr) {
            out += json_string(*value.text(), style_.ascii);
        } else if (value.list() != nullptr && value.list()->kind <= Sequence::tuple) {
            print_items(value.list()->items, '[', ']', level, out,
                        [&](const Value& item) { print(item, level + 1, out); });
        } else if (value.dict() != nullptr) {
            auto entries = value.dict()->entries;
            if (style_.sort_keys) {
                std::stable_sort(entries.begin(), entries.end(),
                                 [&](const Entry& a, const Entry& b) {
                                     context_.spend_steps(1);
                                     return less(context_, a.first, b.first);
                                 });
            }
            print_items(entries, '{', '}', level, out, [&](const auto& entry) {
                out += json_string(key_text(entry.first), style_.ascii);
                out += style_.key_separator;
                print(entry.second, level + 1, out);
            });
        } else {
            context_.fail(fmt::format("{} cannot be written as JSON", value.kind()));
        }
        if (out.size() > kMaxOutputBytes) context_.spend_bytes(out.size());
    }

  private:
    std::string key_text(const Value& key) {
        if (key.text() != nullptr) return *key.text();
        std::string out;
        if (key.is_none() || key.is_number()) {
            print(key, 0, out);
        } else {
            context_.fail(fmt::format("a {} cannot be a key in JSON", key.kind()));
        }
        return out;
    }

    static void print_float(double value, std::string& out) {
        if (std::isnan(value))
            out += "NaN";
        else if (std::isinf(value))
            out += value < 0 ? "-Infinity" : "Infinity";
        else
            out += repr_of(value);
    }

    template <class Items, class Print>
    void print_items(const Items& items, char open, char close, int64_t level, std::string& out,
                     Print print_item) {
        out += open;
        bool first = true;
        for (const auto& item : items) {
            if (!first) out += style_.item_separator;
            new_line(level + 1, out);
            print_item(item);
            first = false;
        }
        if (!first) new_line(level, out);
        out += close;
    }

    void new_line(int64_t level, std::string& out) {
        if (style_.indent < 0) return;
        const auto spaces = static_cast<size_t>(style_.indent * level);
        context_.spend_bytes(spaces);
        out.append("\n").append(spaces, ' ');
    }

    Context& context_;
    const JsonStyle& style_;
};

}  // namespace

std::string one_line(std::string_view text) {
    constexpr size_t kMostBytes = 1000;
    std::string out;
    while (!text.empty()) {
        if (out.size() >= kMostBytes) return out + "...";
        const std::string_view character = text.substr(0, next_utf8(text).bytes);
        append_printable(out, character);
        text.remove_prefix(character.size());
    }
    return out;
}

std::string to_text(Context& context, const Value& value) {
    if (value.is_undefined()) return {};
    if (value.text() != nullptr) {
        context.spend_bytes(value.text()->size());
        return *value.text();
    }
    return to_repr(context, value);
}

namespace {

std::string repr_of(Context& context, const List& list) {
    if (list.kind == Sequence::range) context.unsupported("printing a range");
    constexpr std::string_view kOpen[] = {"[",           "(", "", "dict_keys([", "dict_values([",
                                          "dict_items(["};
    constexpr std::string_view kClose[] = {"]", ")", "", "])", "])", "])"};
    const auto kind = static_cast<size_t>(list.kind);
    std::string out(kOpen[kind]);
    for (size_t i = 0; i < list.items.size(); ++i) {
        if (i > 0) out += ", ";
        out += to_repr(context, list.items[i]);
    }
    if (list.kind == Sequence::tuple && list.items.size() == 1) out += ",";
    return out.append(kClose[kind]);
}

}  // namespace

std::string to_repr(Context& context, const Value& value) {
    std::string out;
    context.spend_steps(1);
    if (scalar_text(value, out)) return out;
    if (const std::string* text = value.text()) {
        out = repr_of(context, *text);
        if (value.is_markup()) out = "Markup(" + out + ")";
    } else if (const List* list = value.list()) {
        out = repr_of(context, *list);
    } else if (const Dict* dict = value.dict()) {
        for (const auto& [key, item] : dict->entries) {
            if (!out.empty()) out += ", ";
            out += to_repr(context, key) + ": " + to_repr(context, item);
        }
        out = "{" + out + "}";
    } else if (value.is_undefined()) {
        out = "Undefined";
    } else if (const Macro* macro = value.macro()) {
        out = macro->name.empty() ? "<Macro anonymous>" : fmt::format("<Macro '{}'>", macro->name);
    } else if (const Loop* loop = value.loop()) {
        out = fmt::format("<LoopContext {}/{}>", loop->index + 1, loop->items->items.size());
    } else {
        context.unsupported(fmt::format("printing a {}", value.kind()));
    }
    context.spend_bytes(out.size());
    return out;
}

std::string to_json(Context& context, const Value& value, const JsonStyle& style) {
    std::string out;
    JsonPrinter(context, style).print(value, 0, out);
    context.spend_bytes(out.size());
    return out;
}

}  // namespace kd::jinja
