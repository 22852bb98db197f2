// Patterns of files may be made to take long: the steps of a whole text are bounded.
#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/pretokenize.h"
#include "formats/split_regex.h"

namespace kd {
namespace {

std::string repeat(const std::string& unit, size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += unit;
    return text;
}

/// The matches in the text, or -1 if it is given up.
int64_t count_matches(const std::string& pattern, const std::string& text) {
    const SplitRegex regex(pattern);
    SplitRegex::Scratch scratch(regex, text.size());
    std::vector<TextRange> matches;
    try {
        regex.find_all(text, scratch, matches);
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::out_of_resources) << error.what();
        return -1;
    }
    return static_cast<int64_t>(matches.size());
}

int64_t count_pieces(std::vector<SplitStep> steps, const std::string& text) {
    std::vector<std::string_view> pieces;
    try {
        Pretokenizer(std::move(steps)).split(text, pieces);
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::out_of_resources) << error.what();
        return -1;
    }
    return static_cast<int64_t>(pieces.size());
}

// Each takes some steps of PCRE2 a match or a start, but goes over the rest of the text.
TEST(ByteRegex, RefusesToReadTheRestAgainAtEachPlace) {
    const std::string run(20000, 'a');
    EXPECT_EQ(count_matches("[^b]+b|.", run), -1);
    EXPECT_EQ(count_matches("[^b]++b|.", run), -1);
    EXPECT_EQ(count_matches("a*" + std::string(2000, 'a') + "b|a", run), -1);
    EXPECT_EQ(count_matches("a(?=[^b]*$)", run), -1);
    EXPECT_EQ(count_matches("x?[^b]+bc", run + "bxc"), -1);  // in one search
    EXPECT_EQ(count_matches("(?:a|x)+b|.", run), -1);
    EXPECT_EQ(count_matches("[^b]+b|.", run + "b"), 1);
    EXPECT_EQ(count_matches("[^b]+b|.", std::string(200, 'a')), 200);  // short is cheap
}

// Ways to match a group multiply, and each may be followed by a long comparison.
TEST(ByteRegex, RefusesToTryAgainAndAgain) {
    const std::string run(4000, 'a');
    EXPECT_EQ(count_matches(repeat("(?:a|aa)", 14) + "b|.", run), -1);
    EXPECT_EQ(count_matches("a{0,100}" + std::string(3000, 'a') + "b|.", run), -1);
    EXPECT_EQ(count_matches("a{0,100}" + std::string(30, 'a') + "b|.", run.substr(0, 40)), 40);
}

TEST(ByteRegex, CountsRepeatsThatFailBeforeTheirLeastCount) {
    std::string pattern;
    for (int i = 0; i < 10; ++i) pattern += "a{1000}" + std::to_string(i) + "|";
    const std::string text = repeat(std::string(999, 'a') + "x", 20);
    EXPECT_EQ(count_matches(pattern + ".", text), -1);
    EXPECT_EQ(count_matches("a{512}(?!b)|a{256}(?!b)|a{128}(?!b)|.", text), 20 * (3 + 103 + 1));
}

// Short pieces have no steps of their own to waste.
TEST(ByteRegex, BoundsTheStepsOfATextNotOfAPiece) {
    const std::string text = repeat(std::string(12, 'a') + "\n", 1000);
    EXPECT_EQ(count_pieces({{.pattern = "\\n"}}, text), 2000);
    EXPECT_EQ(count_pieces({{.pattern = "\\n"}, {.pattern = "(?:a+a+)+[bc]|."}}, text), -1);
    EXPECT_EQ(count_pieces({{.pattern = "\\n"}, {.pattern = "(?:a+a+)[bc]|."}}, text), 13000);
}

TEST(ByteRegex, LeavesPublishedPatternsAMegabyteOfAnything) {
    for (const std::string name : {"gpt2", "smollm", "llama-bpe", "qwen2", "qwen35", "deepseek-llm",
                                   "deepseek-v3", "kimi-k2"}) {
        for (const std::string unit : {"a", " ", "'", "\u3042"}) {
            const std::string text = repeat(unit, (size_t{1} << 20) / unit.size());
            EXPECT_GT(count_pieces(named_pretokenizer(name).steps, text), 0)
                << name << " '" << unit << "'";
        }
    }
}

}  // namespace
}  // namespace kd
