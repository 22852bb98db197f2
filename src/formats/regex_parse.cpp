#include "formats/regex_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/utf8.h"

namespace kd {

namespace {

constexpr size_t kMaxPatternBytes = 16384;
constexpr int kMaxDepth = 32;
constexpr int kMaxRepeat = 1000;

CodePointSet one(char32_t code_point) {
    return CodePointSet({{code_point, code_point}});
}

bool is_ascii_letter(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Pairs that fold to one character (ss as in U+00DF, fi as in U+FB01): Oniguruma matches it, too.
bool folds_together(char32_t first, char32_t second) {
    const char pair[] = {static_cast<char>(first | 0x20), static_cast<char>(second | 0x20), 0};
    constexpr std::string_view kPairs[] = {"ss", "st", "ff", "fi", "fl"};
    return std::find(std::begin(kPairs), std::end(kPairs), std::string_view(pair, 2)) !=
           std::end(kPairs);
}

class Parser {
  public:
    explicit Parser(std::string_view pattern)
        : pattern_(pattern), callout_(callout(1 + pattern.size() / 32)) {}

    std::vector<RegexPart> parse() {
        if (pattern_.size() > kMaxPatternBytes) {
            KD_THROW(unsupported, "regex of {} bytes (at most {})", pattern_.size(),
                     kMaxPatternBytes);
        }
        if (valid_utf8_bytes(pattern_) != pattern_.size()) KD_THROW(corrupt, "regex: not UTF-8");
        alternatives(0);
        if (!at_end()) corrupt("unmatched )");
        return std::move(parts_);
    }

  private:
    /// What an escape in or outside brackets stands for.
    struct Escaped {
        bool is_set;
        char32_t literal;
        CodePointSet set;
    };

    bool at_end() const { return at_ == pattern_.size(); }
    bool sees(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
    bool take(std::string_view text) {
        if (!sees(text)) return false;
        at_ += text.size();
        return true;
    }
    char32_t next() {
        if (at_end()) corrupt("it ends too early");
        const Utf8Unit unit = next_utf8(pattern_.substr(at_));
        at_ += unit.bytes;
        return unit.code_point;
    }

    [[noreturn]] void unsupported(std::string_view what) const {
        KD_THROW(unsupported, "regex '{}' at byte {}: {} is not supported", printable(pattern_),
                 at_, what);
    }
    [[noreturn]] void corrupt(std::string_view what) const {
        KD_THROW(corrupt, "regex '{}' at byte {}: {}", printable(pattern_), at_, what);
    }

    static std::string callout(size_t steps) {
        return fmt::format("(?C{})", std::min<size_t>(steps, 255));
    }

    void emit(std::string syntax) { parts_.push_back({std::move(syntax), {}}); }
    void emit(CodePointSet set) { parts_.push_back({{}, std::move(set)}); }

    void alternatives(int depth) {
        if (depth > kMaxDepth) unsupported(fmt::format("nesting beyond {}", kMaxDepth));
        do {
            char32_t before = 0;  // the literal before this place, if any
            while (!at_end() && !sees("|") && !sees(")")) before = term(depth, before);
            if (depth > 0) emit(callout_);
        } while (take("|") && (emit("|"), true));
    }

    char32_t term(int depth, char32_t before) {
        if (take("(")) {
            if (group(depth)) repeat(/*of_set=*/false);
            return 0;
        }
        if (take("$")) {  // before a line break or at the end
            emit("(?=\\x0a|\\z)");
            return 0;
        }
        if (take("[")) {
            emit(bracket(0));
        } else if (take(".")) {
            emit(one('\n').complement());
        } else if (take("\\")) {
            Escaped escaped = escape();
            if (!escaped.is_set) return literal(escaped.literal, before);
            emit(std::move(escaped.set));
        } else if (sees("^") || sees("]") || sees("}") || sees("{") || sees("*") || sees("+") ||
                   sees("?")) {
            unsupported(fmt::format("'{}' here", pattern_[at_]));
        } else {
            return literal(next(), before);
        }
        repeat(/*of_set=*/true);
        return 0;
    }

    char32_t literal(char32_t code_point, char32_t before) {
        if (fold_ && before != 0 && folds_together(before, code_point)) {
            unsupported("a pair of letters that folds to one character, in (?i:...),");
        }
        emit(folded(one(code_point)));
        return repeat(/*of_set=*/true) ? 0 : code_point;
    }

    /// Whether what follows the group may repeat it.
    bool group(int depth) {
        const bool fold = fold_;
        bool repeats = true;
        if (take("?")) {
            if (take(":")) {
                emit("(?:");
            } else if (take("i:")) {
                fold_ = true;
                emit("(?:");
            } else if (take(">")) {
                emit("(?>");
            } else if (take("=") || take("!")) {
                emit(std::string("(?") + pattern_[at_ - 1]);
                repeats = false;
            } else {
                unsupported("this kind of group");
            }
        } else {
            emit("(?:");  // nothing refers to what a group has matched
        }
        alternatives(depth + 1);
        if (!take(")")) corrupt("missing )");
        emit(")");
        fold_ = fold;
        return repeats;
    }

    /// True if there is a repeat.
    bool repeat(bool of_set) {
        if (take("{")) {
            interval(of_set);
            if (sees("?") || sees("+")) unsupported("a mark after {n,m}");
        } else if (sees("*") || sees("+") || sees("?")) {
            std::string syntax(1, pattern_[at_++]);
            if (sees("?") || sees("+")) syntax += pattern_[at_++];
            emit(std::move(syntax));
        } else {
            return false;
        }
        emit(callout_);
        if (sees("*") || sees("+") || sees("?") || sees("{")) unsupported("a repeat of a repeat");
        return true;
    }

    void interval(bool of_set) {
        const auto number = [&](int otherwise) {
            int value = 0;
            const char* const begin = pattern_.data() + at_;
            const auto [end, error] =
                std::from_chars(begin, pattern_.data() + pattern_.size(), value);
            if (end == begin) return otherwise;
            if (error != std::errc() || value < 0 || value > kMaxRepeat) {
                unsupported(fmt::format("a repeat beyond {}", kMaxRepeat));
            }
            at_ += end - begin;
            return value;
        };
        const int low = number(-1);
        const bool comma = take(",");
        const int high = comma ? number(-1) : low;
        if (!take("}") || (low < 0 && high < 0)) corrupt("a { that is no {n}, {n,} or {n,m}");
        // A sixteenth, as most attempts fail at once. A group's alternatives have callouts.
        if (of_set && low >= 16) parts_.insert(parts_.end() - 1, {callout(low / 16), {}});
        if (comma && high < 0) {
            emit(fmt::format("{{{},}}", low));
        } else if (std::max(low, 0) <= high) {
            emit(fmt::format("{{{},{}}}", std::max(low, 0), high));
        } else {
            corrupt("a repeat from more to less");
        }
    }

    /// In (?i:...): a set of ASCII with the other case, and the two characters beyond ASCII that
    /// fold to an ASCII letter.
    CodePointSet folded(const CodePointSet& set) const {
        if (!fold_) return set;
        std::vector<CodePointRange> ranges = set.ranges();
        if (!ranges.empty() && ranges.back().last >= 0x80) {
            unsupported("what is not ASCII, in (?i:...),");
        }
        for (char32_t c = 0; c < 0x80; ++c) {
            if (!is_ascii_letter(c) || !set.contains(c)) continue;
            ranges.push_back({c ^ 0x20, c ^ 0x20});
            if ((c | 0x20) == 's') ranges.push_back({0x17F, 0x17F});
            if ((c | 0x20) == 'k') ranges.push_back({0x212A, 0x212A});
        }
        return CodePointSet(std::move(ranges));
    }

    char32_t hexadecimal(size_t digits) {
        uint32_t value = 0;
        const char* const begin = pattern_.data() + at_;
        const char* const limit = begin + std::min(digits, pattern_.size() - at_);
        const auto [end, error] = std::from_chars(begin, limit, value, 16);
        if (end == begin || error != std::errc() || value >= kCodePoints) {
            corrupt("no hexadecimal code point");
        }
        at_ += end - begin;
        return value;
    }

    Escaped escape() {
        const char32_t c = next();
        const auto literal = [](char32_t value) { return Escaped{false, value, {}}; };
        const auto set = [](CodePointSet value) { return Escaped{true, 0, std::move(value)}; };
        if (c < 0x80 && !is_ascii_letter(c) && !(c >= '0' && c <= '9')) return literal(c);
        switch (c) {
            case 'r':
                return literal('\r');
            case 'n':
                return literal('\n');
            case 't':
                return literal('\t');
            case 'f':
                return literal('\f');
            case 's':
                return set(white_space());
            case 'S':
                return set(white_space().complement());
            case 'd':
                return set(*unicode_property("Nd"));
            case 'D':
                return set(unicode_property("Nd")->complement());
            case 'p':
            case 'P':
                return set(property(c == 'P'));
            case 'u': {
                const size_t begin = at_;
                const char32_t value = hexadecimal(4);
                if (at_ != begin + 4) corrupt("\\u without four digits");
                return literal(value);
            }
            case 'x': {
                const bool braces = take("{");
                const char32_t value = hexadecimal(braces ? 8 : 2);
                if (braces && !take("}")) corrupt("missing }");
                if (!braces && value >= 0x80) unsupported("a byte that is no character");
                return literal(value);
            }
            default:
                --at_;
                unsupported("this escape");
        }
    }

    CodePointSet property(bool other) {
        if (!take("{")) unsupported("a property without {}");
        const bool caret = take("^");
        const size_t end = pattern_.find('}', at_);
        if (end == pattern_.npos) corrupt("missing }");
        const std::string_view name = pattern_.substr(at_, end - at_);
        const std::optional<CodePointSet> set = unicode_property(name);
        if (!set) unsupported(fmt::format("property '{}'", printable(name)));
        if (fold_) unsupported("a property in (?i:...)");
        at_ = end + 1;
        return other != caret ? set->complement() : *set;
    }

    /// Behind "[".
    CodePointSet bracket(int depth) {
        if (depth > kMaxDepth) unsupported(fmt::format("nesting beyond {}", kMaxDepth));
        if (sees(":")) unsupported("a POSIX class");
        const bool other = take("^");
        if (fold_ && other) unsupported("[^...] in (?i:...)");
        std::optional<CodePointSet> all;  // of what stands before the last &&
        std::vector<CodePointRange> own;
        bool any = false;
        const auto intersect = [&] {
            if (!any) unsupported("an empty class");
            CodePointSet set = folded(CodePointSet(std::move(own)));
            all = all ? *all & set : std::move(set);
            own.clear();
            any = false;
        };
        while (!take("]")) {
            if (at_end()) corrupt("missing ]");
            if (take("&&")) {
                intersect();
            } else {
                const CodePointSet element = class_element(depth, any);
                own.insert(own.end(), element.ranges().begin(), element.ranges().end());
                any = true;
            }
        }
        intersect();
        return other ? all->complement() : *all;
    }

    /// A nested class, a set, a character or a range of them.
    CodePointSet class_element(int depth, bool any) {
        if (take("[")) {
            CodePointSet set = bracket(depth + 1);
            refuse_range();
            return set;
        }
        // A hyphen stands for itself at either end only.
        if (sees("-") && any && !sees("-]")) unsupported("'-' here");
        const auto character = [&]() -> Escaped {
            if (take("\\")) return escape();
            if (sees("[")) unsupported("'[' here");
            return {false, next(), {}};
        };
        Escaped first = character();
        if (first.is_set) {
            refuse_range();
            return std::move(first.set);
        }
        if (!sees("-") || sees("-]")) return one(first.literal);
        ++at_;
        const Escaped last = character();
        if (last.is_set) unsupported("a range that ends in a set");
        if (last.literal < first.literal) corrupt("a range from more to less");
        return CodePointSet({{first.literal, last.literal}});
    }

    void refuse_range() const {
        if (sees("-") && !sees("-]")) unsupported("a range that begins with a set");
    }

    std::string_view pattern_;
    std::string callout_;
    size_t at_ = 0;
    bool fold_ = false;
    std::vector<RegexPart> parts_;
};

}  // namespace

std::vector<RegexPart> parse_regex(std::string_view pattern) {
    return Parser(pattern).parse();
}

}  // namespace kd
