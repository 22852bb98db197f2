#include "formats/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "formats/jinja_strings.h"
#include "formats/utf8.h"

namespace kd::jinja {

namespace {

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// Line ends become \n; one at the end of the template is dropped.
std::string normalised(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
        out.push_back(source[i] == '\r' ? '\n' : source[i]);
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

std::string_view without_leading_space(std::string_view text) {
    while (!text.empty()) {
        const Utf8Unit unit = next_utf8(text);
        if (unit.kind != Utf8Kind::valid || !is_space(unit.code_point)) break;
        text.remove_prefix(unit.bytes);
    }
    return text;
}

std::string_view without_trailing_space(std::string_view text) {
    size_t end = 0;  // one past the last character that is no space
    for (size_t at = 0; at < text.size();) {
        const Utf8Unit unit = next_utf8(text.substr(at));
        at += unit.bytes;
        if (unit.kind != Utf8Kind::valid || !is_space(unit.code_point)) end = at;
    }
    return text.substr(0, end);
}

class Lexer {
  public:
    Lexer(Context& context, std::string_view source)
        : context_(context), source_(normalised(source)), rest_(source_) {
        context_.line = 1;
    }

    std::vector<Token> run() {
        while (!rest_.empty()) lex_data();
        emit(Token::Kind::end);
        return std::move(tokens_);
    }

  private:
    void emit(Token::Kind kind, std::string text = {}) {
        tokens_.push_back({.kind = kind, .line = context_.line, .text = std::move(text)});
    }

    void skip(size_t bytes) {
        context_.line += static_cast<int>(
            std::count(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(bytes), '\n'));
        rest_.remove_prefix(bytes);
    }

    void skip_space() { skip(rest_.size() - without_leading_space(rest_).size()); }

    /// Data up to the next tag, and that tag.
    void lex_data() {
        size_t at = 0;
        const auto opens_tag = [&](size_t i) {
            return i + 1 < rest_.size() && rest_[i] == '{' &&
                   (rest_[i + 1] == '{' || rest_[i + 1] == '%' || rest_[i + 1] == '#');
        };
        while (at < rest_.size() && !opens_tag(at)) ++at;
        const std::string_view data = rest_.substr(0, at);
        const std::string_view tag = rest_.substr(at);
        if (tag.empty()) {
            emit(Token::Kind::text, std::string(data));
            skip(at);
            return;
        }
        const char sign = tag.size() > 2 && (tag[2] == '-' || tag[2] == '+') ? tag[2] : ' ';
        emit_data(data, sign, tag[1] != '{');
        skip(at + (sign == ' ' ? 2 : 3));
        if (tag[1] == '#') return lex_comment();
        const WordTag raw = tag[1] == '%' ? word_tag(rest_, "raw", "") : WordTag{};
        if (raw.bytes == 0) return lex_tag(tag[1] == '%');
        skip(raw.bytes);
        end_tag(raw.sign, false);
        lex_raw();
    }

    /// Data before a tag that begins with this sign.
    void emit_data(std::string_view data, char sign, bool is_block) {
        if (sign == '-') {
            data = without_trailing_space(data);
        } else if (sign != '+' && is_block) {
            data = without_indent(data);
        }
        if (!data.empty()) emit(Token::Kind::text, std::string(data));
    }

    struct WordTag {
        size_t bytes = 0;  // 0: the text begins with something else
        char sign = ' ';   // at its end
    };

    /// A tag of one word, from behind its opening and sign: `word`, one of the signs or none, the
    /// end of the tag.
    static WordTag word_tag(std::string_view text, std::string_view word, std::string_view signs) {
        std::string_view rest = without_leading_space(text);
        if (!rest.starts_with(word)) return {};
        rest = without_leading_space(rest.substr(word.size()));
        const char sign = rest.empty() ? ' ' : rest[0];
        const bool is_signed = sign == '-' || signs.find(sign) != signs.npos;
        if (!rest.substr(is_signed ? 1 : 0).starts_with("%}")) return {};
        return {text.size() - rest.size() + (is_signed ? 3 : 2), is_signed ? sign : ' '};
    }

    /// Text up to the tag `endraw`.
    void lex_raw() {
        for (size_t at = rest_.find("{%"); at != rest_.npos; at = rest_.find("{%", at + 2)) {
            const char sign = rest_.size() > at + 2 ? rest_[at + 2] : ' ';
            const size_t begin = at + (sign == '-' || sign == '+' ? 3 : 2);
            const WordTag tag = word_tag(rest_.substr(begin), "endraw", "+");
            if (tag.bytes == 0) continue;
            emit_data(rest_.substr(0, at), sign, true);
            skip(begin + tag.bytes);
            return end_tag(tag.sign, true);
        }
        context_.fail("'endraw' is missing");
    }

    /// lstrip_blocks: white space alone before a block on its line goes.
    std::string_view without_indent(std::string_view data) const {
        const size_t line_begin = data.rfind('\n') + 1;  // npos + 1 is 0
        if (line_begin == 0 && !line_starting_) return data;
        const std::string_view kept = without_trailing_space(data);
        return kept.size() <= line_begin ? data.substr(0, line_begin) : data;
    }

    void end_tag(char sign, bool trims_newline) {
        if (sign == '-') {
            const std::string_view before = rest_;
            skip_space();
            const size_t skipped = before.size() - rest_.size();
            line_starting_ = skipped > 0 && before[skipped - 1] == '\n';
        } else {
            line_starting_ = trims_newline && sign != '+' && rest_.starts_with('\n');
            if (line_starting_) skip(1);
        }
    }

    void lex_comment() {
        const size_t close = rest_.find("#}");
        if (close == rest_.npos) context_.fail("a comment is not closed");
        const char sign = close > 0 ? rest_[close - 1] : ' ';
        skip(close + 2);
        end_tag(sign, true);
    }

    void lex_tag(bool block) {
        emit(block ? Token::Kind::block_begin : Token::Kind::variable_begin);
        const std::string_view close = block ? "%}" : "}}";
        std::string open;  // brackets that wait for their partner: inside them }} is no end
        while (!rest_.empty()) {
            if (open.empty()) {
                const bool signed_end = rest_.substr(1).starts_with(close) &&
                                        (rest_[0] == '-' || (block && rest_[0] == '+'));
                if (signed_end || rest_.starts_with(close)) {
                    const char sign = signed_end ? rest_[0] : ' ';
                    emit(block ? Token::Kind::block_end : Token::Kind::variable_end);
                    skip(signed_end ? 3 : 2);
                    return end_tag(sign, block);
                }
            }
            lex_token(open);
        }
        context_.fail(block ? "a block tag is not closed" : "a print tag is not closed");
    }

    void lex_token(std::string& open) {
        const Utf8Unit unit = next_utf8(rest_);
        if (unit.kind == Utf8Kind::valid && is_space(unit.code_point)) return skip(unit.bytes);
        const char c = rest_[0];
        if (is_digit(c)) return lex_number();
        if (is_name_start(c)) {
            size_t bytes = 1;
            while (bytes < rest_.size() &&
                   (is_name_start(rest_[bytes]) || is_digit(rest_[bytes]))) {
                ++bytes;
            }
            emit(Token::Kind::name, std::string(rest_.substr(0, bytes)));
            return skip(bytes);
        }
        if (c == '\'' || c == '"') return lex_string();
        constexpr std::string_view kOperators[] = {
            "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "(",
            ")",  "[",  "]",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
        for (const std::string_view op : kOperators) {
            if (!rest_.starts_with(op)) continue;
            balance(op[0], open);
            emit(Token::Kind::op, std::string(op));
            return skip(op.size());
        }
        context_.fail(fmt::format("unexpected character '{}'", rest_.substr(0, unit.bytes)));
    }

    void balance(char c, std::string& open) const {
        if (c == '(' || c == '[' || c == '{') open.push_back(c);
        if (c != ')' && c != ']' && c != '}') return;
        const char partner = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (open.empty() || open.back() != partner) {
            context_.fail(fmt::format("unexpected '{}'", c));
        }
        open.pop_back();
    }

    void lex_number() {
        // After a dot digits are an index: a.0.1 is (a.0).1.
        const bool index = !tokens_.empty() && tokens_.back().kind == Token::Kind::op &&
                           tokens_.back().text == ".";
        if (!index && rest_[0] == '0' && lex_prefixed_number()) return;
        size_t bytes = 0;
        std::string digits;
        const auto take_digits = [&] {
            while (bytes < rest_.size() && (is_digit(rest_[bytes]) || rest_[bytes] == '_')) {
                if (rest_[bytes] != '_') digits.push_back(rest_[bytes]);
                ++bytes;
            }
        };
        const auto at = [&](size_t i) { return i < rest_.size() ? rest_[i] : ' '; };
        take_digits();
        bool floating = false;
        if (!index && at(bytes) == '.' && is_digit(at(bytes + 1))) {
            floating = true;
            digits += rest_[bytes++];
            take_digits();
        }
        const size_t sign = at(bytes + 1) == '-' || at(bytes + 1) == '+' ? 1 : 0;
        if (!index && (at(bytes) == 'e' || at(bytes) == 'E') && is_digit(at(bytes + 1 + sign))) {
            floating = true;
            digits += 'e';
            if (at(bytes + 1) == '-') digits += '-';
            bytes += 1 + sign;
            take_digits();
        }
        const std::string text(rest_.substr(0, bytes));
        Token token{.kind = floating ? Token::Kind::floating : Token::Kind::integer,
                    .line = context_.line,
                    .text = text};
        const char* end = digits.data() + digits.size();
        const auto result = floating ? std::from_chars(digits.data(), end, token.floating)
                                     : std::from_chars(digits.data(), end, token.integer);
        if (result.ec != std::errc{} || is_name_start(at(bytes)) ||
            (!floating && digits.size() > 1 && digits.find_first_not_of('0') != 0 &&
             digits.find_first_not_of('0') != digits.npos)) {
            context_.unsupported(fmt::format("the number {}", shortened(text)));
        }
        tokens_.push_back(std::move(token));
        skip(bytes);
    }

    /// 0x1F, 0o17, 0b11.
    bool lex_prefixed_number() {
        const char letter = rest_.size() > 1 ? static_cast<char>(rest_[1] | 0x20) : ' ';
        const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
        if (base == 0) return false;
        size_t bytes = 2;
        std::string digits;
        while (bytes < rest_.size() && (is_name_start(rest_[bytes]) || is_digit(rest_[bytes]))) {
            if (rest_[bytes] != '_') digits.push_back(rest_[bytes]);
            ++bytes;
        }
        Token token{.kind = Token::Kind::integer,
                    .line = context_.line,
                    .text = std::string(rest_.substr(0, bytes))};
        const char* end = digits.data() + digits.size();
        const auto result = std::from_chars(digits.data(), end, token.integer, base);
        if (result.ec != std::errc{} || result.ptr != end) {
            context_.unsupported(fmt::format("the number {}", shortened(token.text)));
        }
        tokens_.push_back(std::move(token));
        skip(bytes);
        return true;
    }

    void lex_string() {
        size_t end = 1;
        while (end < rest_.size() && rest_[end] != rest_[0]) end += rest_[end] == '\\' ? 2 : 1;
        if (end >= rest_.size()) context_.fail("a string is not closed");
        emit(Token::Kind::string, unescaped(rest_.substr(1, end - 1)));
        skip(end + 1);
    }

    std::string unescaped(std::string_view text) const {
        std::string out;
        while (!text.empty()) {
            const size_t plain = std::min(text.find('\\'), text.size());
            out.append(text.substr(0, plain));
            text.remove_prefix(plain);
            if (text.empty()) break;
            text.remove_prefix(1);  // the lexer has made sure that a character follows
            text.remove_prefix(append_escape(out, text));
        }
        return out;
    }

    /// Appends what the escape (after its backslash) stands for; returns its bytes.
    size_t append_escape(std::string& out, std::string_view escape) const {
        constexpr std::string_view kLetters = "\\'\"abfnrtv";
        constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
        const char letter = escape[0];
        if (const size_t at = kLetters.find(letter); at != kLetters.npos) {
            out.push_back(kMeanings[at]);
            return 1;
        }
        if (letter == '\n') return 1;
        const size_t hex = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
        if (hex > 0) {
            const std::string_view digits = escape.substr(1, hex);
            uint32_t code_point = 0;
            const auto end = digits.data() + digits.size();
            const auto result = std::from_chars(digits.data(), end, code_point, 16);
            if (digits.size() != hex || result.ptr != end || code_point > 0x10FFFF ||
                (code_point >= 0xD800 && code_point < 0xE000)) {
                context_.fail(
                    fmt::format("bad escape '\\{}' in a string", escape.substr(0, hex + 1)));
            }
            append_utf8(out, code_point);
            return hex + 1;
        }
        if (letter >= '0' && letter <= '7') {
            size_t bytes = 0;
            uint32_t code_point = 0;
            for (; bytes < std::min<size_t>(3, escape.size()); ++bytes) {
                if (escape[bytes] < '0' || escape[bytes] > '7') break;
                code_point = code_point * 8 + static_cast<uint32_t>(escape[bytes] - '0');
            }
            append_utf8(out, code_point);
            return bytes;
        }
        if (letter == 'N') context_.unsupported("the escape '\\N' in a string");
        out.push_back('\\');  // Python keeps what it does not know
        return 0;
    }

    Context& context_;
    const std::string source_;
    std::string_view rest_;
    bool line_starting_ = true;
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(Context& context, std::string_view source) {
    return Lexer(context, source).run();
}

}  // namespace kd::jinja
