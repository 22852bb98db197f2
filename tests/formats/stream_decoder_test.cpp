#include <gtest/gtest.h>

#include "base/rng.h"
#include "formats/tokenizer.h"
#include "formats/utf8.h"
#include "tiny_tokenizer.h"

namespace kd {
namespace {

constexpr std::string_view kBad = kReplacementCharacter;

std::string text_of(std::initializer_list<std::string_view> parts) {
    std::string text;
    for (const std::string_view part : parts) text += part;
    return text;
}

TEST(Utf8, CutsMaximalSubparts) {
    // The Unicode Standard 17, section 3.9, tables 3-8 to 3-11, and the ends of every range.
    const auto replaced = [](std::string_view text) { return replace_invalid_utf8(text); };
    EXPECT_EQ(replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                       "A"),
              text_of({kBad, kBad, kBad, kBad, kBad, kBad, kBad, kBad, "A"}));
    EXPECT_EQ(replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
                       "A"),
              text_of({kBad, kBad, kBad, kBad, kBad, kBad, kBad, kBad, "A"}));
    EXPECT_EQ(replaced("\xF4\x91\x92\x93\xFF"
                       "A\x80\xBF"
                       "B"),
              text_of({kBad, kBad, kBad, kBad, kBad, "A", kBad, kBad, "B"}));
    EXPECT_EQ(replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
                       "A"),
              text_of({kBad, kBad, kBad, kBad, "A"}));
    EXPECT_EQ(replaced("\xE2\x82"), kBad);
    for (const std::string_view good :
         {"\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
          "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
        EXPECT_EQ(replaced(good), good);
    }
}

TEST(Utf8, EveryScalarValueSurvives) {
    for (char32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
        if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
        std::string text;
        append_utf8(text, code_point);
        const Utf8Unit unit = next_utf8(text);
        ASSERT_EQ(unit.kind, Utf8Kind::valid);
        ASSERT_EQ(unit.code_point, code_point);
        ASSERT_EQ(unit.bytes, text.size());
    }
}

TEST(StreamDecoder, WaitsForWholeCharacters) {
    const Tokenizer tokenizer = tokenizer_of(writer_of(tiny_vocabulary()));
    StreamDecoder stream(tokenizer);
    EXPECT_EQ(stream.push('a'), "a");
    EXPECT_EQ(stream.push(0xE2), "");
    EXPECT_EQ(stream.push(0x82), "");
    EXPECT_EQ(stream.push(261), "");  // a control token adds nothing, the bytes go on waiting
    EXPECT_EQ(stream.push(0xAC), "€");
    EXPECT_EQ(stream.push(0xF0), "");
    EXPECT_EQ(stream.push('b'), text_of({kBad, "b"}));
    EXPECT_EQ(stream.push(0xFF), kBad);
    EXPECT_EQ(stream.push(260), "");  // F0 9F in one token
    EXPECT_EQ(stream.finish(), kBad);
    EXPECT_EQ(stream.finish(), "");
}

void expect_same_as_whole(const Tokenizer& tokenizer, uint64_t seed, int32_t first_ids) {
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < 200; ++i) {
        const int32_t bound = i % 4 == 3 ? tokenizer.vocabulary() : first_ids;
        ids.push_back(static_cast<int32_t>(uniform(seed, RngStream::test, i) * bound));
    }
    StreamDecoder stream(tokenizer);
    std::string text;
    for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        EXPECT_EQ(valid_utf8_bytes(piece), piece.size()) << "seed " << seed;
        text += piece;
    }
    text += stream.finish();
    EXPECT_EQ(text, replace_invalid_utf8(tokenizer.decode(ids))) << "seed " << seed;
}

TEST(StreamDecoder, PiecesJoinToTheWholeText) {
    const Tokenizer tokenizer = tokenizer_of(writer_of(tiny_vocabulary()));
    for (uint64_t seed = 1; seed <= 300; ++seed) expect_same_as_whole(tokenizer, seed, 256);
}

TEST(StreamDecoder, PiecesOfTheRealVocabularyJoin) {
    const std::optional<std::string> path = smollm_path();
    if (!path) GTEST_SKIP() << "SmolLM2-135M-Instruct.Q4_1.gguf is not in the cache folder";
    const Tokenizer tokenizer{GgufFile(*path)};
    for (uint64_t seed = 1; seed <= 100; ++seed) expect_same_as_whole(tokenizer, seed, 300);
    // A well-formed text comes out as it went in, character by character.
    const std::string text = "naïve 漢字 👨‍👩‍👧‍👦 שלום ½ \n  end";
    StreamDecoder stream(tokenizer);
    std::string joined;
    for (const int32_t id : tokenizer.encode(text, false)) joined += stream.push(id);
    EXPECT_EQ(joined, text);
    EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace kd
