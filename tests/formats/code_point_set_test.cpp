// The classes of code points and the normal forms, over all of Unicode, as the model's own
// tokenizers have them.
#include "formats/code_point_set.h"

#include <gtest/gtest.h>

#include "formats/nfc.h"
#include "formats/regex_parse.h"
#include "formats/utf8.h"
#include "tokenizer_fixtures.h"

namespace kd {
namespace {

const Json& unicode() {
    static const Json kFixture = read_fixture("tokenizer_unicode.json.gz");
    return kFixture;
}

CodePointSet set_of(const Json& flat) {
    std::vector<CodePointRange> ranges;
    for (size_t i = 0; i + 1 < flat.size(); i += 2) ranges.push_back({flat[i], flat[i + 1]});
    return CodePointSet(std::move(ranges));
}

std::string text_of(const CodePointSet& set) {
    std::string text;
    for (const CodePointRange& range : set.ranges()) {
        text += fmt::format("{:X}-{:X} ", uint32_t{range.first}, uint32_t{range.last});
    }
    return text;
}

void expect_same(const CodePointSet& ours, const CodePointSet& theirs, const std::string& name) {
    EXPECT_EQ(text_of(ours & theirs.complement()), "") << name << ": ours alone";
    EXPECT_EQ(text_of(theirs & ours.complement()), "") << name << ": theirs alone";
}

char32_t code_point_of(const std::string& decimal) {
    return static_cast<char32_t>(std::stoul(decimal));
}

std::string utf8(char32_t code_point) {
    std::string text;
    append_utf8(text, code_point);
    return text;
}

TEST(CodePointSet, HasTheMembersThatTheReferenceHas) {
    // tokenizers cannot be asked about surrogates.
    const CodePointSet scalars = CodePointSet({{0xD800, 0xDFFF}}).complement();
    int named = 0;
    for (const auto& [name, flat] : unicode()["sets"].items()) {
        CodePointSet ours;
        if (name == "s" || name == "strip") {
            ours = white_space();
        } else if (name == "digits") {
            ours = numeric_characters();
        } else if (name == "word") {
            ours = word_characters();
        } else if (name == "d") {
            ours = *unicode_property("Nd");
        } else if (name.starts_with("fold ")) {
            ours = parse_regex("(?i:" + name.substr(5) + ")").at(1).set;
        } else {
            const auto property = unicode_property(name);
            ASSERT_TRUE(property) << name;
            ours = *property;
        }
        ++named;
        expect_same(ours & scalars, set_of(flat), name);
    }
    EXPECT_EQ(named, 36 + 2 + 27 + 3);
    EXPECT_FALSE(unicode_property("Xx"));
    EXPECT_FALSE(unicode_property(""));
    EXPECT_FALSE(unicode_property("han"));
}

TEST(CodePointSet, CombinesSets) {
    const CodePointSet set({{5, 9}, {0, 2}, {3, 3}, {8, 12}});
    EXPECT_EQ(text_of(set), "0-3 5-C ");
    EXPECT_EQ(text_of(set.complement()), "4-4 D-10FFFF ");
    EXPECT_EQ(text_of(set.complement().complement()), text_of(set));
    EXPECT_EQ(text_of(CodePointSet().complement()), "0-10FFFF ");
    EXPECT_EQ(text_of(set & CodePointSet({{2, 6}})), "2-3 5-6 ");
    EXPECT_EQ(text_of(set | CodePointSet({{4, 4}})), "0-C ");
    for (const char32_t inside : {0, 3, 5, 12}) EXPECT_TRUE(set.contains(inside));
    for (const char32_t outside : {4, 13, 0x10FFFF}) EXPECT_FALSE(set.contains(outside));
}

TEST(Nfc, IsTheReferencesForEveryCodePoint) {
    const Json& forms = unicode()["nfc"];
    std::map<char32_t, std::string> expected;
    for (const auto& [code_point, form] : forms.items()) expected[code_point_of(code_point)] = form;
    EXPECT_GE(expected.size(), 1000u);
    for (char32_t c = 0; c < kCodePoints; ++c) {
        if (c >= 0xD800 && c < 0xE000) continue;
        const auto found = expected.find(c);
        const std::string text = utf8(c);
        ASSERT_EQ(nfc(text), found == expected.end() ? text : found->second)
            << fmt::format("U+{:04X}", uint32_t{c});
    }
    // What tokenizers composes from the decomposed form, Hangul included.
    for (const auto& [code_point, form] : unicode()["nfc_of_nfd"].items()) {
        EXPECT_EQ(nfc(utf8(code_point_of(code_point))), form.get<std::string>()) << code_point;
    }
}

TEST(Nfc, OrdersMarksAsTheReferenceDoes) {
    for (const auto& [name, flat] : unicode()["orders"].items()) {
        const char32_t mark = code_point_of(name);
        const CodePointSet swapped = set_of(flat);
        std::vector<CodePointRange> ours;
        const CodePointSet marks = *unicode_property("M") | swapped;
        for (const CodePointRange& range : marks.ranges()) {
            for (char32_t c = range.first; c <= range.last; ++c) {
                if (c == mark) continue;
                const std::string text = fmt::format("q{}{}", utf8(mark), utf8(c));
                const std::string other = fmt::format("q{}{}", nfc(utf8(c)), utf8(mark));
                if (nfc(text) == other) ours.push_back({c, c});
            }
        }
        expect_same(CodePointSet(std::move(ours)), swapped, "marks before U+" + name);
    }
}

TEST(Nfc, KeepsWhatIsIllFormed) {
    EXPECT_EQ(nfc("e\xCC\x81\xFF"
                  "e\xCC\x81\xCC"),
              "\u00E9\xFF\u00E9\xCC");
    EXPECT_EQ(nfc("\u1100\u1161\u11A8"), "\uAC01");
    EXPECT_EQ(nfc("\u212B\u0344"), "\u00C5\u0308\u0301");
    EXPECT_EQ(nfc(""), "");
    // Composes since Unicode 13, not in the reference; neither does a newer mark let pass.
    EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
    EXPECT_EQ(nfc("e\u1DFA\u0301"), "e\u1DFA\u0301");
}

}  // namespace
}  // namespace kd
