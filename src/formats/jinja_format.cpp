#include "formats/jinja_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

/// [[fill]align][sign][#][0][width][,][.precision][type]
struct FieldStyle {
    std::string fill = " ";
    char align = 0;  // < > ^ =, or 0: as the value's kind has it
    char sign = '-';
    bool commas = false;
    int64_t width = 0;
    int64_t precision = -1;
    char type = 0;
};

class Cursor {
  public:
    explicit Cursor(std::string_view rest) : rest_(rest) {}

    bool done() const { return rest_.empty(); }
    char peek() const { return rest_.empty() ? '\0' : rest_[0]; }
    char take() {
        const char c = peek();
        if (!rest_.empty()) rest_.remove_prefix(1);
        return c;
    }
    bool skip(char c) {
        if (rest_.empty() || rest_[0] != c) return false;
        rest_.remove_prefix(1);
        return true;
    }
    std::string_view take_until(std::string_view stops) {
        const std::string_view part = rest_.substr(0, rest_.find_first_of(stops));
        rest_.remove_prefix(part.size());
        return part;
    }
    std::string_view take_bytes(size_t bytes) {
        const std::string_view part = rest_.substr(0, bytes);
        rest_.remove_prefix(part.size());
        return part;
    }
    /// -1: no digits here.
    int64_t take_number(const Context& context) {
        if (peek() < '0' || peek() > '9') return -1;
        int64_t number = 0;
        const auto result = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
        if (result.ec != std::errc{} || number > int64_t{kMaxOutputBytes}) {
            context.fail("a width or precision is too large");
        }
        rest_.remove_prefix(static_cast<size_t>(result.ptr - rest_.data()));
        return number;
    }
    std::string_view rest() const { return rest_; }

  private:
    std::string_view rest_;
};

std::string padded(Context& context, const std::string& sign, const std::string& text,
                   const FieldStyle& style, char natural_align) {
    const char align = style.align == 0 ? natural_align : style.align;
    const auto length = static_cast<int64_t>(sign.size() + characters(context, text).size());
    const int64_t missing = std::max<int64_t>(style.width - length, 0);
    const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
    const std::string before = repeated(context, style.fill, left);
    const std::string after = repeated(context, style.fill, missing - left);
    return align == '=' ? sign + before + text : before + sign + text + after;
}

/// Digits in groups of three.
std::string with_commas(const std::string& digits) {
    const size_t whole = std::min(digits.find('.'), digits.size());
    std::string out;
    for (size_t i = 0; i < whole; ++i) {
        if (i > 0 && (whole - i) % 3 == 0) out += ',';
        out += digits[i];
    }
    return out + digits.substr(whole);
}

std::string format_number(Context& context, const Value& value, const FieldStyle& style) {
    const bool fixed = style.type == 'f' || style.type == 'F';
    bool negative = false;
    std::string digits;
    if (fixed) {
        const double number = value.number();
        negative = std::signbit(number) && !std::isnan(number);
        if (style.precision > 100) context.unsupported("a precision above 100");
        const auto precision = static_cast<int>(style.precision < 0 ? 6 : style.precision);
        digits = std::isfinite(number) ? fmt::format("{:.{}f}", std::fabs(number), precision)
                 : std::isnan(number)  ? "nan"
                                       : "inf";
        if (style.type == 'F') digits = upper(context, digits);
    } else {
        const int64_t number = value.integer();
        negative = number < 0;
        const uint64_t magnitude =
            negative ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
        digits = style.type == 'x'   ? fmt::format("{:x}", magnitude)
                 : style.type == 'X' ? fmt::format("{:X}", magnitude)
                                     : std::to_string(magnitude);
    }
    if (style.commas) digits = with_commas(digits);
    const std::string sign = negative ? "-" : style.sign == '-' ? "" : std::string(1, style.sign);
    return padded(context, sign, digits, style, '>');
}

std::string format_text(Context& context, std::string text, const FieldStyle& style,
                        char natural_align) {
    if (style.precision >= 0) {
        const auto all = characters(context, text);
        if (static_cast<size_t>(style.precision) < all.size()) {
            text.resize(static_cast<size_t>(all[static_cast<size_t>(style.precision)].data() -
                                            text.data()));
        }
    }
    return padded(context, "", text, style, natural_align);
}

// text % values

class PercentFormatter {
  public:
    PercentFormatter(Context& context, const Value& values) : context_(context), values_(values) {
        const List* list = values.list();
        if (list != nullptr && list->kind == Sequence::tuple) {
            positional_ = list->items;
        } else {
            positional_ = {values};
        }
    }

    std::string run(std::string_view text) {
        context_.spend_steps(text.size() / 16);
        Cursor cursor(text);
        std::string out;
        while (!cursor.done()) {
            out += cursor.take_until("%");
            if (cursor.skip('%')) out += field(cursor);
        }
        const bool leftovers_matter = values_.dict() == nullptr;
        if (leftovers_matter && next_ < positional_.size()) {
            context_.fail("'%': more values than fields");
        }
        context_.spend_bytes(out.size());
        return out;
    }

  private:
    Value take() {
        if (next_ >= positional_.size()) context_.fail("'%': more fields than values");
        return positional_[next_++];
    }

    std::string field(Cursor& cursor) {
        context_.spend_steps(1);
        std::optional<Value> named;
        if (cursor.skip('(')) {
            const std::string_view name = cursor.take_until(")");
            if (!cursor.skip(')')) context_.fail("'%': a name is not closed");
            if (values_.dict() == nullptr) context_.fail("'%': a name needs a mapping");
            const Value* found = values_.dict()->find(context_, name);
            if (found == nullptr) {
                context_.fail(fmt::format("'%': no value for '{}'", shortened(name)));
            }
            named = *found;
        }
        FieldStyle style;
        bool zero = false;
        for (constexpr std::string_view kFlags = "-+ 0#";
             kFlags.find(cursor.peek()) != kFlags.npos;) {
            const char flag = cursor.take();
            if (flag == '-') style.align = '<';
            if (flag == '+' || (flag == ' ' && style.sign == '-')) style.sign = flag;
            if (flag == '#') context_.unsupported("the flag '#' of '%'");
            zero = zero || flag == '0';
        }
        if (cursor.peek() == '*') context_.unsupported("a width '*' of '%'");
        style.width = std::max<int64_t>(cursor.take_number(context_), 0);
        if (cursor.skip('.')) style.precision = std::max<int64_t>(cursor.take_number(context_), 0);
        if (cursor.done()) context_.fail("'%': a field without a conversion");
        style.type = cursor.take();
        if (style.type == '%') return "%";
        const Value value = named ? *named : take();
        return convert(value, style, zero);
    }

    std::string convert(const Value& value, FieldStyle& style, bool zero) {
        const char type = style.type;
        if (type == 's') return format_text(context_, to_text(context_, value), style, '>');
        if (type == 'r') return format_text(context_, to_repr(context_, value), style, '>');
        const bool fixed = type == 'f' || type == 'F';
        if (!fixed && type != 'd' && type != 'i' && type != 'u' && type != 'x' && type != 'X') {
            context_.unsupported(fmt::format("the conversion '%{}'", shortened({&type, 1})));
        }
        if (!value.is_number() || ((type == 'x' || type == 'X') && !value.is_integer())) {
            context_.fail(fmt::format("'%{}' needs a number, not {}", type, value.kind()));
        }
        if (!fixed && style.precision >= 0) context_.unsupported("a precision of an integer");
        if (zero && style.align == 0) {
            style.align = '=';
            style.fill.assign(1, '0');
        }
        if (fixed || value.is_integer()) return format_number(context_, value, style);
        if (!(std::fabs(value.number()) < 0x1p63))
            context_.unsupported("a large number as integer");
        return format_number(context_, static_cast<int64_t>(value.number()), style);
    }

    Context& context_;
    const Value& values_;
    std::vector<Value> positional_;
    size_t next_ = 0;
};

// text.format(values)

class BraceFormatter {
  public:
    BraceFormatter(Context& context, const Arguments& arguments)
        : context_(context), arguments_(arguments) {}

    std::string run(std::string_view text) {
        context_.spend_steps(text.size() / 16);
        Cursor cursor(text);
        std::string out;
        while (!cursor.done()) {
            out += cursor.take_until("{}");
            if (cursor.done()) break;
            const char brace = cursor.take();
            if (cursor.skip(brace)) {
                out += brace;
            } else if (brace == '}') {
                context_.fail("format: a single '}'");
            } else {
                out += field(cursor);
            }
        }
        context_.spend_bytes(out.size());
        return out;
    }

  private:
    std::string field(Cursor& cursor) {
        context_.spend_steps(1);
        const std::string_view name = cursor.take_until("{}!:");
        if (name.find_first_of(".[") != name.npos) {
            context_.unsupported("an attribute or index in a field of format");
        }
        const Value value = argument(name);
        char conversion = 0;
        if (cursor.skip('!')) conversion = cursor.take();
        std::string_view style;
        if (cursor.skip(':')) style = cursor.take_until("{}");
        if (cursor.peek() == '{') context_.unsupported("a field inside a field of format");
        if (!cursor.skip('}')) context_.fail("format: a field is not closed");
        if (conversion == 'r') return apply(to_repr(context_, value), style);
        if (conversion == 's') return apply(to_text(context_, value), style);
        if (conversion != 0) context_.fail("format: an unknown conversion");
        return apply(value, style);
    }

    Value argument(std::string_view name) {
        const bool digits = name.find_first_not_of("0123456789") == name.npos;
        if (digits) {
            size_t index = next_;
            const bool automatic = name.empty();
            if (automatic) {
                ++next_;
            } else {
                std::from_chars(name.data(), name.data() + std::min<size_t>(name.size(), 9), index);
            }
            if (numbered_ && *numbered_ == automatic) {
                context_.fail("format: numbered fields beside automatic ones");
            }
            numbered_ = !automatic;
            if (index >= arguments_.positional.size()) {
                context_.fail("format: more fields than values");
            }
            return arguments_.positional[index];
        }
        spend_look_up(context_, arguments_.named.size(), name);
        for (const auto& [key, value] : arguments_.named) {
            if (key == name) return value;
        }
        context_.fail(fmt::format("format: no value for '{}'", shortened(name)));
    }

    std::string apply(const Value& value, std::string_view text) {
        if (text.empty()) return to_text(context_, value);
        const FieldStyle style = parse_style(text);
        const bool is_fixed = style.type == 'f' || style.type == 'F';
        const bool is_plain = style.type == 0 || style.type == 'd';
        if (value.text() != nullptr) {
            if ((style.type != 0 && style.type != 's') || style.commas || style.sign != '-' ||
                style.align == '=') {
                context_.fail("format: a style for numbers and a string");
            }
            return format_text(context_, *value.text(), style, '<');
        }
        if (!value.is_number() || (value.is_bool() && style.type == 0)) {
            context_.unsupported(fmt::format("a style for a {} in format", value.kind()));
        }
        if (!is_fixed && (!is_plain || value.is_float() || style.precision >= 0) &&
            !(style.type == 'x' || style.type == 'X')) {
            context_.unsupported(fmt::format("the style '{}' in format", shortened(text)));
        }
        if (!is_fixed && !value.is_integer()) context_.fail("format: a float as an integer");
        return format_number(context_, value, style);
    }

    FieldStyle parse_style(std::string_view text) {
        FieldStyle style;
        Cursor cursor(text);
        constexpr std::string_view kAligns = "<>^=";
        const auto all = characters(context_, text);
        if (all.size() > 1 && kAligns.find(all[1]) != kAligns.npos) {
            style.fill = all[0];
            cursor.take_bytes(all[0].size());
            style.align = cursor.take();
        } else if (!text.empty() && kAligns.find(cursor.peek()) != kAligns.npos) {
            style.align = cursor.take();
        }
        if (cursor.peek() == '+' || cursor.peek() == '-' || cursor.peek() == ' ') {
            style.sign = cursor.take();
        }
        if (cursor.peek() == '0' && style.align == 0) {
            style.align = '=';
            style.fill.assign(1, '0');
        }
        style.width = std::max<int64_t>(cursor.take_number(context_), 0);
        style.commas = cursor.skip(',');
        if (cursor.skip('.')) {
            style.precision = cursor.take_number(context_);
            if (style.precision < 0) context_.fail("format: a precision without digits");
        }
        style.type = cursor.done() ? '\0' : cursor.take();
        if (!cursor.done()) {
            context_.unsupported(fmt::format("the style '{}' in format", shortened(text)));
        }
        if (style.commas && style.fill == "0")
            context_.unsupported("zeros before commas in format");
        return style;
    }

    Context& context_;
    const Arguments& arguments_;
    size_t next_ = 0;
    std::optional<bool> numbered_;
};

}  // namespace

std::string format_percent(Context& context, std::string_view text, const Value& values) {
    return PercentFormatter(context, values).run(text);
}

std::string format_braces(Context& context, std::string_view text, const Arguments& arguments) {
    return BraceFormatter(context, arguments).run(text);
}

}  // namespace kd::jinja
