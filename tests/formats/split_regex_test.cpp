#include "formats/split_regex.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/pretokenize.h"

namespace kd {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces matches(std::string_view pattern, std::string_view text) {
    const SplitRegex regex(pattern);
    SplitRegex::Scratch scratch(regex, text.size());
    std::vector<TextRange> ranges;
    regex.find_all(text, scratch, ranges);
    Pieces pieces;
    for (const TextRange& range : ranges) {
        pieces.push_back(text.substr(range.begin, range.end - range.begin));
    }
    return pieces;
}

Pieces split(std::vector<SplitStep> steps, std::string_view text) {
    Pieces pieces;
    Pretokenizer(std::move(steps)).split(text, pieces);
    return pieces;
}

/// What is said of a pattern; empty if nothing.
std::string refusal(std::string_view pattern, ErrorCode code) {
    try {
        SplitRegex regex(pattern);
    } catch (const Error& error) {
        EXPECT_EQ(error.code, code) << pattern << ": " << error.what();
        return error.what();
    }
    return {};
}

TEST(SplitRegex, IntersectsClasses) {
    // PCRE2 itself would take && for two literals: 漢 would match.
    EXPECT_EQ(matches(R"([\p{Lo}&&[^\p{Han}]]+)", "漢あ字い漢うえ&"), (Pieces{"あ", "い", "うえ"}));
    EXPECT_EQ(matches(R"([a-z&&[^aeiou]&&[^x-z]]+)", "abcxyz&de"), (Pieces{"bc", "d"}));
    EXPECT_EQ(matches(R"([^a-z&&[b]]+)", "abc"), (Pieces{"a", "c"}));  // ^ negates the whole
    EXPECT_EQ(matches(R"([a[cd]\d-]+)", "abcd1-2"), (Pieces{"a", "cd1-2"}));
}

TEST(SplitRegex, FoldsAsUnicodeDoes) {
    EXPECT_EQ(matches("(?i:'s|k)", "'s'S'\u017FkK\u212A\u0130"),
              (Pieces{"'s", "'S", "'\u017F", "k", "K", "\u212A"}));
    EXPECT_EQ(matches("(?i:a[b-c])d", "aBdAbDACd"), (Pieces{"aBd", "ACd"}));
}

TEST(SplitRegex, ReadsRepeatsGroupsAndEscapes) {
    EXPECT_EQ(matches(R"(\p{N}{1,3})", "1234 ５６"), (Pieces{"123", "4", "５６"}));
    EXPECT_EQ(matches(R"(a{2}|b{2,}|c{,2}d)", "aaabbbbccccd"), (Pieces{"aa", "bbbb", "ccd"}));
    EXPECT_EQ(matches(R"(a+?b*+c??)", "aabbc"), (Pieces{"a", "abb"}));
    EXPECT_EQ(matches(R"((?:ab)+|(?>c+)c|(d)(?=e))", "ababccdde"), (Pieces{"abab", "d"}));
    EXPECT_EQ(matches(R"(\x41\x{1F600}\u00e9\.\r)", "A\U0001F600\u00E9.\r"),
              (Pieces{"A\U0001F600\u00E9.\r"}));
    EXPECT_EQ(matches(R"(\s+$)", "a  \nb\u3000"), (Pieces{"  ", "\u3000"}));
    EXPECT_EQ(matches(".+", "a\u2028b\nc"), (Pieces{"a\u2028b", "c"}));
    EXPECT_EQ(matches(R"(\S+|\D)", "a1 "), (Pieces{"a1", " "}));
    EXPECT_EQ(matches(R"([\s]+)", "\u180E\u0085\u200B"), (Pieces{"\u0085"}));
}

TEST(SplitRegex, RefusesWhatItWouldMisread) {
    for (const std::string_view pattern : {"^a",        "a]",          "}",
                                           "*a",        "a**",         "a+{2}",
                                           "a{2}+",     "a{2}?",       "\\w",
                                           "\\b",       "\\X",         "\\R",
                                           "\\h",       "\\A",         "\\z",
                                           "\\Z",       "\\G",         "\\K",
                                           "\\1",       "\\k<n>",      "(?<n>a)",
                                           "(?<=a)b",   "(?<!a)b",     "(?i)a",
                                           "(?m:a)",    "(?#c)a",      "(?i:\\p{L})",
                                           "(?i:é)",    "(?i:ss)",     "(?i:oFf)",
                                           "(?i:[^a])", "\\p{Alpha}",  "\\p{Script=Han}",
                                           "\\pL",      "[[:alpha:]]", "[a-\\d]",
                                           "[\\d-z]",   "[a-c-e]",     "\\xFF",
                                           "a{1001}",   "a{2,5000}",   "a*",
                                           "a|",        "(?=a)",       "()"}) {
        EXPECT_NE(refusal(pattern, ErrorCode::unsupported), "") << pattern;
    }
    for (const std::string_view pattern : {"(a", "a)", "[a", "[", "\\", "\\p{L", "[b-a]", "a{3,2}",
                                           "a{", "a{x}", "\\x{110000}", "\\u12", "\\x{}", "\xFF"}) {
        EXPECT_NE(refusal(pattern, ErrorCode::corrupt), "") << pattern;
    }
    EXPECT_EQ(refusal("a\\w", ErrorCode::unsupported),
              "regex 'a\\w' at byte 2: this escape is not supported");
    EXPECT_NE(refusal(std::string(20000, 'a'), ErrorCode::unsupported), "");
    EXPECT_NE(refusal(std::string(100, '(') + "a" + std::string(100, ')'), ErrorCode::unsupported),
              "");
    EXPECT_NE(refusal(std::string(100, '[') + "a" + std::string(100, ']'), ErrorCode::unsupported),
              "");
    std::string classes;  // more than a byte can tell apart
    for (int c = 0x100; c < 0x200; ++c) classes += fmt::format("|\\x{{{:X}}}", c);
    EXPECT_NE(refusal("a" + classes, ErrorCode::unsupported), "");
}

TEST(SplitRegex, GivesUpOnExponentialPatterns) {
    const std::string text = std::string(200, 'a') + "\u00E9";
    EXPECT_THROW(matches("(?:a+a+)+[bc]", text), Error);
}

TEST(SplitRegex, RepeatsGroupsOverLongRuns) {
    const std::string text(1 << 18, 'a');
    EXPECT_EQ(matches("(?:a|b)+c|a+", text), (Pieces{text}));
}

// Expected as tokenizers 0.23.2 splits: Split("aa", behavior, invert) over "baacaabaaaad".
TEST(Pretokenizer, TreatsMatchesAsTheirBehaviorSays) {
    const auto with = [](SplitBehavior behavior, bool invert) {
        return split({{.pattern = "aa", .behavior = behavior, .invert = invert}}, "baacaabaaaad");
    };
    using enum SplitBehavior;
    EXPECT_EQ(with(isolated, false), (Pieces{"b", "aa", "c", "aa", "b", "aa", "aa", "d"}));
    EXPECT_EQ(with(isolated, true), with(isolated, false));
    EXPECT_EQ(with(removed, false), (Pieces{"b", "c", "b", "d"}));
    EXPECT_EQ(with(removed, true), (Pieces{"aa", "aa", "aa", "aa"}));
    EXPECT_EQ(with(contiguous, false), (Pieces{"b", "aa", "c", "aa", "b", "aaaa", "d"}));
    EXPECT_EQ(with(merged_with_previous, false), (Pieces{"baa", "caa", "baa", "aa", "d"}));
    EXPECT_EQ(with(merged_with_previous, true), (Pieces{"b", "aac", "aab", "aa", "aad"}));
    EXPECT_EQ(with(merged_with_next, false), (Pieces{"b", "aac", "aab", "aa", "aad"}));
    EXPECT_EQ(with(merged_with_next, true), (Pieces{"baa", "caa", "baa", "aa", "d"}));
}

TEST(Pretokenizer, TakesTextForItself) {
    EXPECT_EQ(split({{.pattern = pattern_of_text("a.[漢")}}, "xa.[漢y"),
              (Pieces{"x", "a.[漢", "y"}));
}

}  // namespace
}  // namespace kd
