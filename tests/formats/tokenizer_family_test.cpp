// Ids of Hugging Face tokenizers and tiktoken under the published pipeline of each model family.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "encode_seconds.h"
#include "formats/bpe.h"
#include "formats/nfc.h"
#include "formats/tokenizer.h"
#include "formats/tokenizer_spec.h"
#include "formats/utf8.h"
#include "tokenizer_fixtures.h"

namespace kd {
namespace {

using Ids = std::vector<int32_t>;

const Json& families() {
    static const Json kFixture = read_fixture("tokenizer_families.json.gz");
    return kFixture;
}

std::map<std::string, std::string> files_of(const std::string& family) {
    return families()["families"].at(family).at("files").get<std::map<std::string, std::string>>();
}

std::string alphabet_text(std::string_view bytes) {
    static const auto kAlphabet = byte_alphabet();
    std::string text;
    for (const char c : bytes) append_utf8(text, kAlphabet[static_cast<uint8_t>(c)]);
    return text;
}

/// The same tokenizer as a GGUF file, which has no flags of added tokens.
Tokenizer through_gguf(const TokenizerSpec& spec, const std::string& pre) {
    std::vector<std::string> tokens;
    for (const std::string& token : spec.tokens) tokens.push_back(alphabet_text(token));
    std::vector<int32_t> types(tokens.size(), 1);
    for (const AddedToken& token : spec.added) {
        tokens[token.id] = token.content;
        types[token.id] = token.special ? 3 : 4;
    }
    GgufWriter writer;
    writer.set_string("tokenizer.ggml.model", "gpt2");
    writer.set_string("tokenizer.ggml.pre", pre);
    writer.set_strings("tokenizer.ggml.tokens", tokens);
    writer.set_array("tokenizer.ggml.token_type", types);
    if (pre != "kimi-k2") {
        std::vector<std::string> merges;
        for (const TokenMerge& merge : spec.merges) {
            merges.push_back(tokens[merge.left] + " " + tokens[merge.right]);
        }
        writer.set_strings("tokenizer.ggml.merges", merges);
    }
    const TempPath file;
    writer.write(file.path());
    return Tokenizer(GgufFile(file.path()));
}

std::string hash_of(const Ids& ids) {  // FNV-1a
    uint32_t value = 0x811C9DC5;
    for (const int32_t id : ids) {
        for (int shift = 0; shift < 32; shift += 8) {
            value = (value ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x01000193;
        }
    }
    return fmt::format("{:08x}", value);
}

class Family : public testing::TestWithParam<std::string> {
  protected:
    void compare(const Tokenizer& tokenizer, const std::string& key) {
        const auto& hashes =
            families()["families"].at(GetParam()).at(key).get_ref<const std::string&>();
        const Json& texts = families()["texts"];
        ASSERT_EQ(hashes.size(), texts.size() * 8);
        int wrong = 0;
        for (size_t i = 0; i < texts.size(); ++i) {
            const auto& text = texts[i][0].get_ref<const std::string&>();
            const Ids ids = tokenizer.encode(text, texts[i][1]);
            if (hash_of(ids) == hashes.substr(8 * i, 8)) continue;
            if (++wrong > 3) continue;
            ADD_FAILURE() << key << " " << i << ": " << texts[i].dump(-1, ' ', true) << "\nids "
                          << testing::PrintToString(ids);
        }
        EXPECT_EQ(wrong, 0) << "of " << texts.size();
    }
};

TEST_P(Family, GivesTheIdsOfTheReference) {
    const FilesFolder folder(files_of(GetParam()));
    compare(Tokenizer(tokenizer_spec_from_folder(folder.path())), "hashes");
}

TEST_P(Family, GivesThemFromGgufAndLosesNothing) {
    const FilesFolder folder(files_of(GetParam()));
    const TokenizerSpec spec = tokenizer_spec_from_folder(folder.path());
    const bool normalizes = spec.normalizer == Normalizer::nfc;
    EXPECT_EQ(normalizes, GetParam().starts_with("qwen"));
    EXPECT_EQ(spec.ignore_merges, GetParam() == "llama3" || GetParam() == "kimi");
    const Tokenizer tokenizer = through_gguf(spec, families()["families"].at(GetParam()).at("pre"));
    compare(tokenizer, "gguf_hashes");
    for (const Json& entry : families()["texts"]) {
        const auto& text = entry[0].get_ref<const std::string&>();
        const std::string decoded = tokenizer.decode(tokenizer.encode(text, entry[1]), true);
        if (normalizes) {
            EXPECT_EQ(nfc(decoded), nfc(text));
        } else {
            EXPECT_EQ(decoded, text);
        }
    }
}

// Four times the text: about 4 to 6 times the time, 16 times where something is quadratic.
TEST_P(Family, TimeGrowsWithTheText) {
    const FilesFolder folder(files_of(GetParam()));
    const Tokenizer tokenizer(tokenizer_spec_from_folder(folder.path()));
    constexpr size_t kBytes = 1 << 15;
    for (const std::string unit :
         {"a", "A", " ", "\n", " \n", "\u00A0", "\U0001F600", "7", "\u0301", "\u0301\u0327",
          "e\u0301", "\u6F22", "\u3042A", "'", "'s", "!", "a ", "\u0627\u0301"}) {
        std::string text;
        while (text.size() < 4 * kBytes) text += unit;
        const double whole = encode_seconds(tokenizer, text);
        const double quarter =
            encode_seconds(tokenizer, std::string_view(text).substr(0, kBytes / 12 * 12));
        EXPECT_LT(whole / quarter, 11)
            << "'" << unit << "': " << quarter << " s, " << whole << " s";
    }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Family,
                         testing::Values("gpt2", "smollm", "llama3", "qwen2", "qwen35",
                                         "deepseek-llm", "deepseek-v3", "kimi"),
                         [](const auto& parameter) {
                             std::string name = parameter.param;
                             std::erase(name, '-');
                             return name;
                         });

TEST(TokenizerFolder, ReadsWhatStandsBesideTheVocabulary) {
    auto files = files_of("llama3");
    files["tokenizer_config.json"] = R"({"bos_token": "<|im_start|>", "pad_token": null,
        "eos_token": {"content": "<|im_end|>", "lstrip": false},
        "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})";
    files["special_tokens_map.json"] =
        R"({"eos_token": "<left>", "unk_token": {"content": "<|endoftext|>"}})";
    const FilesFolder folder(files);
    const TokenizerSpec spec = tokenizer_spec_from_folder(folder.path());
    const Tokenizer tokenizer(spec);
    const int32_t first = spec.added.front().id;
    EXPECT_EQ(tokenizer.vocabulary(), first + 16);
    EXPECT_EQ(tokenizer.bos(), first + 1);
    EXPECT_EQ(tokenizer.eos(), first + 2);  // the configuration wins over the map
    EXPECT_EQ(tokenizer.stop_ids(), Ids{first + 2});
    EXPECT_EQ(tokenizer.named_tokens(),
              (std::vector<std::pair<std::string_view, int32_t>>{
                  {"bos_token", first + 1}, {"eos_token", first + 2}, {"unk_token", first}}));
    EXPECT_TRUE(tokenizer.adds_bos());  // by the template of its post-processor
    EXPECT_FALSE(tokenizer.adds_eos());
    EXPECT_EQ(tokenizer.encode("<|im_start|>", true), Ids{first + 1});
    EXPECT_EQ(tokenizer.chat_template(), "D");
    EXPECT_EQ(tokenizer.named_templates(), (std::map<std::string, std::string>{{"tool_use", "T"}}));
    EXPECT_TRUE(tokenizer.is_control(first));
    EXPECT_FALSE(tokenizer.is_control(first + 5));  // <both> is added, not special

    write_test_file(folder.path() + "/chat_template.jinja", "J");
    write_test_file(folder.path() + "/generation_config.json",
                    fmt::format(R"({{"eos_token_id": [{}, {}]}})", first + 9, first));
    write_test_file(
        folder.path() + "/tokenizer_config.json",
        R"({"bos_token": "<|im_start|>", "add_bos_token": false, "chat_template": "C"})");
    const Tokenizer changed(tokenizer_spec_from_folder(folder.path()));
    EXPECT_EQ(changed.chat_template(), "J");
    EXPECT_EQ(changed.eos(), first + 3);  // the map's <left>
    EXPECT_EQ(changed.stop_ids(), (Ids{first, first + 3, first + 9}));
    EXPECT_FALSE(changed.adds_bos());
}

TEST(TokenizerFolder, ReadsKimisSpecialTokens) {
    const FilesFolder folder(files_of("kimi"));
    const TokenizerSpec spec = tokenizer_spec_from_folder(folder.path());
    const Tokenizer tokenizer(spec);
    const int32_t first = spec.added.front().id;
    EXPECT_EQ(tokenizer.vocabulary(), first + 256);
    EXPECT_EQ(tokenizer.token_text(first + 7), "<tool");
    EXPECT_EQ(tokenizer.token_text(first + 8), fmt::format("<|reserved_token_{}|>", first + 8));
    EXPECT_EQ(tokenizer.bos(), first + 1);
    EXPECT_EQ(tokenizer.stop_ids(), Ids{first + 2});
    EXPECT_FALSE(tokenizer.adds_bos());
}

}  // namespace
}  // namespace kd
