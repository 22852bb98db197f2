#include "formats/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "encode_seconds.h"
#include "formats/pretokenize.h"
#include "tiny_tokenizer.h"

namespace kd {
namespace {

using Ids = std::vector<int32_t>;

std::string bytes_of_hex(const std::string& hex) {
    std::string bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
        bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    return bytes;
}

/// What the construction of a tokenizer says; empty if it says nothing.
std::string refusal(const GgufWriter& writer) {
    try {
        tokenizer_of(writer);
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

std::string refusal(const TinyVocabulary& vocabulary) {
    return refusal(writer_of(vocabulary));
}

void expect_has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << "'" << part << "' is not in '" << text << "'";
}

class RealTokenizer : public testing::Test {
  protected:
    void SetUp() override {
        const std::optional<std::string> path = smollm_path();
        if (!path) GTEST_SKIP() << "SmolLM2-135M-Instruct.Q4_1.gguf is not in the cache folder";
        tokenizer_.emplace(GgufFile(*path));
    }
    std::optional<Tokenizer> tokenizer_;
};

TEST_F(RealTokenizer, GivesTheIdsOfHuggingFace) {
    std::ifstream file(std::string(KD_TEST_DATA) + "/formats/tokenizer_smollm.jsonl");
    std::string line;
    ASSERT_TRUE(std::getline(file, line)) << "the header line";
    int cases = 0;
    int wrong = 0;
    while (std::getline(file, line)) {
        const auto entry = nlohmann::json::parse(line);
        const std::string text =
            entry.contains("x") ? bytes_of_hex(entry["x"]) : entry["t"].get<std::string>();
        const Ids expected = entry["i"];
        const Ids ids = tokenizer_->encode(text, entry.contains("s"));
        const std::string decoded = replace_invalid_utf8(tokenizer_->decode(ids, true));
        const std::string expected_text =
            entry.contains("d") ? entry["d"].get<std::string>() : text;
        ++cases;
        if (ids == expected && decoded == expected_text) continue;
        if (++wrong <= 5) {
            ADD_FAILURE() << line << "\nids: " << testing::PrintToString(ids)
                          << "\ntext: " << decoded;
        }
    }
    EXPECT_EQ(wrong, 0) << "of " << cases;
    EXPECT_GE(cases, 1000);
}

TEST_F(RealTokenizer, KnowsItsSpecialTokens) {
    EXPECT_EQ(tokenizer_->vocabulary(), 49152);
    EXPECT_EQ(tokenizer_->bos(), 1);
    EXPECT_EQ(tokenizer_->eos(), 2);
    EXPECT_EQ(tokenizer_->stop_ids(), (Ids{0, 2}));
    EXPECT_EQ(tokenizer_->token_text(2), "<|im_end|>");
    EXPECT_EQ(tokenizer_->token_text(-1), "");
    EXPECT_EQ(tokenizer_->named_tokens(),
              (std::vector<std::pair<std::string_view, int32_t>>{
                  {"bos_token", 1}, {"eos_token", 2}, {"unk_token", 0}, {"pad_token", 2}}));
    EXPECT_TRUE(tokenizer_->is_control(16));
    EXPECT_FALSE(tokenizer_->is_control(17));
    EXPECT_EQ(tokenizer_->chat_template().substr(0, 33), "{% for message in messages %}{% i");
    EXPECT_EQ(tokenizer_->encode("<|im_end|>", true), Ids{2});
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode("<|im_end|>", false)), "<|im_end|>");
    EXPECT_EQ(tokenizer_->decode(Ids{1, 81, 2}), "a");
    EXPECT_EQ(tokenizer_->decode(Ids{1, 81, 2}, true), "<|im_start|>a<|im_end|>");
}

TEST_F(RealTokenizer, DropsExactlyTheBytesWithoutAToken) {
    std::string dropped;
    for (int byte = 0; byte < 256; ++byte) {
        const std::string text(1, static_cast<char>(byte));
        const Ids ids = tokenizer_->encode(text, false);
        if (ids.empty())
            dropped += text;
        else
            EXPECT_EQ(tokenizer_->decode(ids), text);
    }
    EXPECT_EQ(dropped,
              "\x04\x06\x13\x14\x16\x1D\xC0\xC1\xF1\xF2\xF5\xF6\xF7\xF8\xF9\xFA\xFB\xFC"
              "\xFD\xFE\xFF");
}

Pretokenizer pretokenizer_of(std::string_view name) {
    return Pretokenizer(named_pretokenizer(name).steps);
}

// Numbers newer than the Unicode tables of the libraries at hand: taken for symbols, two of them
// would make one piece, and take along the space before them.
constexpr char32_t kNewerNumbers[] = {0x10D40, 0x10D49, 0x116D0, 0x116E3, 0x11BF9, 0x11DE0,
                                      0x11F59, 0x16130, 0x16D70, 0x16FF4, 0x16FF6, 0x1CCF0,
                                      0x1D2D3, 0x1E4F9, 0x1E5F1, 0x1E5FA};

TEST(Pretokenizer, IsolatesNumbersNewerThanTheRegexLibrary) {
    const Pretokenizer smollm = pretokenizer_of("smollm");
    for (const char32_t code_point : kNewerNumbers) {
        std::string digit;
        append_utf8(digit, code_point);
        const std::string text = "a " + digit + digit + "!";
        std::vector<std::string_view> pieces;
        smollm.split(text, pieces);
        EXPECT_EQ(pieces, (std::vector<std::string_view>{"a", " ", digit, digit, "!"}))
            << "U+" << std::hex << uint32_t{code_point};
    }
}

// Letters assigned after Unicode 14: taken for symbols they would swallow the apostrophe.
constexpr char32_t kNewerLetters[] = {0x1C89,  0xA7CB,  0x105C0, 0x10D4A, 0x11F12, 0x13460,
                                      0x1E030, 0x1E4EB, 0x2EBF0, 0x31350, 0x323AF};

TEST(Pretokenizer, KnowsLettersNewerThanTheRegexLibrary) {
    for (const std::string_view name : {"smollm", "gpt2"}) {
        const Pretokenizer pretokenizer = pretokenizer_of(name);
        for (const char32_t code_point : kNewerLetters) {
            std::string letter;
            append_utf8(letter, code_point);
            const std::string head = "a" + letter;
            const std::string text = head + "'dx!";
            std::vector<std::string_view> pieces;
            pretokenizer.split(text, pieces);
            EXPECT_EQ(pieces, (std::vector<std::string_view>{head, "'d", "x", "!"}))
                << "U+" << std::hex << uint32_t{code_point};
        }
    }
}

TEST(Pretokenizer, SplitsAsItsNameSays) {
    using Pieces = std::vector<std::string_view>;
    const auto split = [](std::string_view name, std::string_view text) {
        Pieces pieces;
        pretokenizer_of(name).split(text, pieces);
        return pieces;
    };
    EXPECT_EQ(split("gpt-2", "I've 123  45\n\n x  "),
              (Pieces{"I", "'ve", " 123", " ", " 45", "\n\n", " x", "  "}));
    EXPECT_EQ(split("smollm", "I've 123  45\n\n x  "),
              (Pieces{"I", "'ve", " ", "1", "2", "3", "  ", "4", "5", "\n\n", " x", "  "}));
    EXPECT_EQ(split("default", "don't'S"), split("gpt2", "don't'S"));
    EXPECT_EQ(split("gpt2", "a\u180Eb\u00A0\u0085c"),  // U+180E is no white space
              (Pieces{"a", "\u180E", "b", "\u00A0", "\u0085", "c"}));
    EXPECT_THROW(pretokenizer_of("tekken"), Error);
}

TEST(TinyTokenizer, MergesByRankThenFromTheLeft) {
    const Tokenizer tokenizer = tokenizer_of(writer_of(tiny_vocabulary()));
    const int32_t aa = 256;
    const int32_t aaaa = 257;
    EXPECT_EQ(tokenizer.encode("aaa", false), (Ids{aa, 'a'}));
    EXPECT_EQ(tokenizer.encode("aaaaaaa", false), (Ids{aaaa, aa, 'a'}));
    EXPECT_EQ(tokenizer.encode("baa", false), (Ids{'b', aa}));  // "a a" ranks before "b a"
    EXPECT_EQ(tokenizer.encode("baba", false), (Ids{258, 258}));
    EXPECT_EQ(tokenizer.encode("a1a", false), (Ids{'a', '1', 'a'}));
}

TEST(TinyTokenizer, IllFormedUnitsArePiecesOfTheirBytes) {
    const Tokenizer tokenizer = tokenizer_of(writer_of(tiny_vocabulary()));
    EXPECT_EQ(tokenizer.encode("aa\xFF"
                               "aa",
                               false),
              (Ids{256, 255, 256}));
    EXPECT_EQ(tokenizer.encode("\xF0\x9F", false), Ids{260});           // merged inside the unit
    EXPECT_EQ(tokenizer.encode("\xF0\x80", false), (Ids{0xF0, 0x80}));  // two units
    EXPECT_EQ(tokenizer.encode("\xED\xA0\x80", false), (Ids{0xED, 0xA0, 0x80}));
    for (int seed = 1; seed <= 200; ++seed) {  // with all byte tokens nothing is lost
        std::string text;
        uint32_t state = 2654435761u * static_cast<uint32_t>(seed);
        for (int i = 0; i < 50; ++i) {
            state = state * 1664525u + 1013904223u;
            text.push_back(static_cast<char>(state >> 24));
        }
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false)), text) << "seed " << seed;
    }
}

TEST(TinyTokenizer, SplitsOutTheLeftmostLongestSpecialToken) {
    const Tokenizer tokenizer = tokenizer_of(writer_of(tiny_vocabulary()));
    const int32_t s = 261;  // <s>, then <s>>, <|im_end|>, [x]
    EXPECT_EQ(tokenizer.encode("<s>", true), Ids{s});
    EXPECT_EQ(tokenizer.encode("<s>>", true), Ids{s + 1});
    EXPECT_EQ(tokenizer.encode("<<s>>>", true), (Ids{'<', s + 1, '>'}));
    EXPECT_EQ(tokenizer.encode("<s<s>", true), (Ids{'<', 's', s}));
    EXPECT_EQ(tokenizer.encode("a[x]<s>", false), (Ids{'a', s + 3, '<', 's', '>'}));
    EXPECT_EQ(tokenizer.decode(Ids{s, s + 3}), "[x]");
    EXPECT_EQ(tokenizer.encode("a<s>a", true), (Ids{'a', s, 'a'}));  // no merge across
    EXPECT_EQ(tokenizer.stop_ids(), Ids{s + 2});
    EXPECT_THROW(tokenizer.decode(Ids{s + 4}), Error);
    EXPECT_THROW(tokenizer.decode(Ids{-1}), Error);
    EXPECT_THROW(tokenizer.bytes_of_token(-1), Error);
    EXPECT_THROW(tokenizer.is_control(s + 4), Error);
}

TEST(TinyTokenizer, StopsAtWhatTheFileNames) {
    GgufWriter writer = writer_of(tiny_vocabulary());
    writer.set("tokenizer.ggml.eos_token_id", uint32_t{262});
    writer.set("tokenizer.ggml.eot_token_id", uint32_t{261});
    writer.set("tokenizer.ggml.eom_token_id", uint32_t{262});
    writer.set("tokenizer.ggml.bos_token_id", uint32_t{7});
    const Tokenizer tokenizer = tokenizer_of(writer);
    EXPECT_EQ(tokenizer.stop_ids(), (Ids{261, 262, 263}));
    EXPECT_EQ(tokenizer.eos(), 262);
    EXPECT_EQ(tokenizer.bos(), 7);
    EXPECT_EQ(tokenizer.chat_template(), "");
}

// A quadratic merge loop or a backtracking pattern needs minutes here and trips the test's timeout.
TEST(TinyTokenizer, LongRunsStayNearLinear) {
    const Tokenizer tokenizer = tokenizer_of(writer_of(tiny_vocabulary()));
    constexpr size_t kBytes = 1 << 20;
    for (const std::string unit : {"a", " ", "\xF0\x9F\x98\x80", "\xFF", "<", "1", "\xF0\x9F"}) {
        std::string text;
        while (text.size() < kBytes) text += unit;
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true)), text) << unit;
    }
    EXPECT_EQ(tokenizer.encode(std::string(kBytes, 'a'), false), Ids(kBytes / 4, 257));
}

// Eight times the text: about 8 to 12 times the time, 64 times where something is quadratic.
TEST(TinyTokenizer, TimeGrowsWithTheText) {
    TinyVocabulary vocabulary = tiny_vocabulary();
    for (const std::string letter : {"a", "Ġ"}) {  // runs merge into ever longer tokens
        std::string run = letter + letter + letter + letter;
        if (letter != "a") vocabulary.merge(letter + letter, letter + letter);
        for (; run.size() < 64; run += run) vocabulary.merge(run, run);
    }
    const Tokenizer tokenizer = tokenizer_of(writer_of(vocabulary));
    constexpr size_t kBytes = 1 << 15;
    for (const std::string unit : {"a", " ", "\n", "\xF0\x9F\x98\x80", "ab", "7", "a ", "'", "<",
                                   "<s>", "<|im_", "\xCC\x81", "\xFF", "a\xFF", "\xF0\x9F"}) {
        std::string text;
        while (text.size() < 8 * kBytes) text += unit;
        const double whole = encode_seconds(tokenizer, text);
        const double eighth = encode_seconds(tokenizer, text.substr(0, kBytes));
        EXPECT_LT(whole / eighth, 32) << "'" << unit << "': " << eighth << " s, " << whole << " s";
    }
}

TEST(HostileTokenizer, IsRefusedByKey) {
    TinyVocabulary twice = tiny_vocabulary();
    twice.add("aa");
    expect_has(refusal(twice), "tokenizer.ggml.tokens: tokens 256 and 265 are the same");

    TinyVocabulary no_tokens;
    expect_has(refusal(no_tokens), "tokenizer.ggml.tokens: 0 tokens");

    TinyVocabulary empty_token = tiny_vocabulary();
    empty_token.add("");
    expect_has(refusal(empty_token), "tokenizer.ggml.tokens: token 265 is empty");
    empty_token.tokens.back() = "\xFF";
    expect_has(refusal(empty_token), "tokenizer.ggml.tokens: token 265 is empty or not UTF-8");

    for (const std::string merge : {"a", "a b c", "aaa", " a", "a ", "a  b"}) {
        TinyVocabulary bad_merge = tiny_vocabulary();
        bad_merge.merges.push_back(merge);
        expect_has(refusal(bad_merge), "tokenizer.ggml.merges: entry 5 ");
    }
    TinyVocabulary unknown = tiny_vocabulary();
    unknown.merges.push_back("zz a");
    expect_has(refusal(unknown), "'zz' is not in the vocabulary");
    unknown.merges.back() = "z a";
    expect_has(refusal(unknown), "'za' is not in the vocabulary");
    unknown.merges.back() = "a a";
    expect_has(refusal(unknown), "merges: entry 5, 'a' and 'a', stands there twice");

    TinyVocabulary types = tiny_vocabulary();
    types.types.pop_back();
    expect_has(refusal(types), "tokenizer.ggml.token_type: 264 entries for 265 tokens");
    for (const int32_t type : {0, 7, -1}) {
        types = tiny_vocabulary();
        types.types[3] = type;
        expect_has(refusal(types), "tokenizer.ggml.token_type: type");
    }
    types.types[3] = 6;
    expect_has(refusal(types), "tokenizer.ggml.token_type: token 3 is a byte token");

    TinyVocabulary long_special = tiny_vocabulary();
    long_special.add(std::string(1025, '<'), 3);
    expect_has(refusal(long_special), "tokenizer.ggml.tokens: special token 265 has 1025 bytes");
}

TEST(HostileTokenizer, SpecialIdsAndNamesAreChecked) {
    for (const std::string key :
         {"bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "cls", "mask"}) {
        const std::string name = "tokenizer.ggml." + key + "_token_id";
        for (const int64_t id : {int64_t{265}, int64_t{-1}, int64_t{1} << 40}) {
            GgufWriter writer = writer_of(tiny_vocabulary());
            writer.set(name, id);
            expect_has(refusal(writer), name);
        }
    }
    GgufWriter model;
    model.set_string("tokenizer.ggml.model", "llama");
    model.set_strings("tokenizer.ggml.tokens", {"a"});
    model.set_strings("tokenizer.ggml.merges", {});
    expect_has(refusal(model), "tokenizer.ggml.model: 'llama' is not supported");

    GgufWriter pre;
    pre.set_string("tokenizer.ggml.model", "gpt2");
    pre.set_string("tokenizer.ggml.pre", "tekken");
    pre.set_strings("tokenizer.ggml.tokens", {"a"});
    pre.set_strings("tokenizer.ggml.merges", {});
    expect_has(refusal(pre), "tokenizer.ggml.pre: pre-tokenizer 'tekken'");

    GgufWriter prefix = writer_of(tiny_vocabulary());
    prefix.set("tokenizer.ggml.add_space_prefix", true);
    expect_has(refusal(prefix), "tokenizer.ggml.add_space_prefix");
    expect_has(refusal(GgufWriter()), "tokenizer.ggml.tokens");
}

TEST(MergeTable, FindsWhatWasInserted) {
    MergeTable table(1000);
    for (int32_t i = 0; i < 1000; ++i) {
        EXPECT_TRUE(table.insert(i * 7919 % 1013, i, {.rank = i, .result = i + 1}));
    }
    EXPECT_FALSE(table.insert(0, 0, {}));
    for (int32_t i = 0; i < 1000; ++i) {
        EXPECT_EQ(table.find(i * 7919 % 1013, i).rank, i);
        EXPECT_EQ(table.find(i * 7919 % 1013, i + 1).rank, -1);
    }
    EXPECT_EQ(MergeTable(0).find(0, 0).rank, -1);
}

}  // namespace
}  // namespace kd
