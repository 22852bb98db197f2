// Tokenizer files that are unusual or lie: what they may ask for is bounded, and what they say is
// read as Hugging Face tokenizers, transformers and llama.cpp read it.
#include <gtest/gtest.h>

#include <ctime>

#include "base/error.h"
#include "formats/added_tokens.h"
#include "formats/model_tokenizer.h"
#include "formats/tokenizer.h"
#include "formats/tokenizer_spec.h"
#include "tiny_tokenizer.h"
#include "tokenizer_fixtures.h"

namespace kd {
namespace {

using Ids = std::vector<int32_t>;

/// tokenizer.json with the 256 bytes as ids 0 to 255 and `texts` behind them, split by ByteLevel.
Json tokenizer_json(const std::vector<std::string>& texts = {}) {
    Json vocabulary = Json::object();
    for (const char32_t code_point : byte_alphabet()) {
        std::string text;
        append_utf8(text, code_point);
        vocabulary[text] = vocabulary.size();
    }
    for (const std::string& text : texts) vocabulary[text] = vocabulary.size();
    return {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}};
}

void add_token(Json& json, int32_t id, const std::string& content, const Json& flags) {
    Json token = {{"id", id}, {"content", content}};
    token.update(flags);
    json["added_tokens"].push_back(token);
}

Tokenizer tokenizer_of(const Json& json) {
    const FilesFolder folder({{"tokenizer.json", json.dump()}});
    return Tokenizer(tokenizer_spec_from_folder(folder.path()));
}

template <class Call>
std::string refusal(Call call, ErrorCode code) {
    try {
        call();
    } catch (const Error& error) {
        EXPECT_EQ(error.code, code) << error.what();
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
        return error.what();
    }
    return {};
}

void expect_has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << "'" << part << "' is not in '" << text << "'";
}

TEST(AddedTokens, RefusesContentsThatNormaliseToTheSame) {
    Json json = tokenizer_json();
    add_token(json, 256, "e\u0301", {{"normalized", true}});
    add_token(json, 257, "\u00C9\u0301", {{"normalized", true}});
    EXPECT_EQ(tokenizer_of(json).encode("e\u0301", false), Ids{256});
    json["normalizer"] = {{"type", "NFC"}};
    EXPECT_EQ(tokenizer_of(json).encode("\u00E9" + std::string(2, '\0'), false), (Ids{256, 0, 0}));
    json["added_tokens"][1]["content"] = "E\u0301\u0301";  // of 257
    EXPECT_EQ(tokenizer_of(json).encode("\u00C9\u0301", false), Ids{257});
    add_token(json, 258, "\u00C9\u0301", {{"normalized", true}});
    EXPECT_EQ(refusal([&] { tokenizer_of(json); }, ErrorCode::unsupported),
              "added tokens 257 and 258 are the same '\\xc3\\x89\\xcc\\x81' in normalised text");
    const AddedToken token = {.id = 1, .content = "a"};
    EXPECT_NE(refusal([&] { AddedTokens({token, token}); }, ErrorCode::unsupported), "");
}

// Ids of tokenizers 0.23.2 with these added tokens.
TEST(AddedTokens, WhiteSpaceIsTakenAlongAndIsATokenItself) {
    Json json = tokenizer_json();
    add_token(json, 256, " ", {{"rstrip", true}});
    add_token(json, 257, "  ", Json::object());
    EXPECT_EQ(tokenizer_of(json).encode("a   b    c", false),
              (Ids{'a', 257, 256, 'b', 257, 257, 'c'}));
    json["added_tokens"].clear();
    add_token(json, 256, "<s>", {{"rstrip", true}});
    add_token(json, 257, " ", {{"rstrip", true}});
    const Tokenizer tokenizer = tokenizer_of(json);
    EXPECT_EQ(tokenizer.encode("<s>   b <s> ", false),
              (Ids{256, 257, 257, 257, 'b', 257, 256, 257}));

    const std::string spaces(1 << 15, ' ');  // quadratic: some seconds
    const auto now = [] {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const double begin = now();
    EXPECT_EQ(tokenizer.encode(spaces, false), Ids(spaces.size(), 257));
    EXPECT_LT(now() - begin, 0.5);
}

// Ids of tokenizers 0.23.2, encode_special_tokens for parse_special == false.
TEST(WholePieces, AreTextsOfTheVocabularyInItsAlphabet) {
    const Json special = {{"special", true}};
    Json json = tokenizer_json({"ab", "\u0120x", "\u6F22"});
    json["model"]["ignore_merges"] = true;
    EXPECT_EQ(tokenizer_of(json).encode("\u6F22", false), (Ids{230, 188, 162}));
    add_token(json, 256, "ab", special);
    add_token(json, 257, "\u0120x", special);
    add_token(json, 259, "cd", special);  // not of the vocabulary
    const Tokenizer tokenizer = tokenizer_of(json);
    EXPECT_EQ(tokenizer.encode("ab ab", false), (Ids{256, ' ', 'a', 'b'}));
    EXPECT_EQ(tokenizer.encode("a x", false), (Ids{'a', 257}));
    EXPECT_EQ(tokenizer.encode("cd", false), (Ids{'c', 'd'}));
    json["model"]["ignore_merges"] = false;
    EXPECT_EQ(tokenizer_of(json).encode("ab", false), (Ids{'a', 'b'}));
}

TEST(TokenizerJson, LimitsTheStepsOfThePreTokenizer) {
    Json json = tokenizer_json();
    const Json digits = {{"type", "Digits"}};
    const Json inner = {{"type", "Sequence"}, {"pretokenizers", Json(5, digits)}};
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json(3, inner)}};
    Json& steps = json["pre_tokenizer"]["pretokenizers"];
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}});
    EXPECT_EQ(tokenizer_of(json).encode("a 1", false),
              (Ids{'a', ' ', '1'}));  // 16 with ByteLevel's
    steps.insert(steps.begin(), digits);
    expect_has(refusal([&] { tokenizer_of(json); }, ErrorCode::unsupported),
               "tokenizer.json: pre_tokenizer.pretokenizers[4]: more than 16 steps");
    steps.insert(steps.begin(), digits);
    expect_has(refusal([&] { tokenizer_of(json); }, ErrorCode::unsupported),
               "pretokenizers[4].pretokenizers[4]: more than 16 steps");
}

TEST(TokenizerJson, CompilesPatternsOnceInTheTokenizer) {
    Json json = tokenizer_json();
    const Json split = {
        {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
    json["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", {split, json["pre_tokenizer"]}}};
    const FilesFolder folder({{"tokenizer.json", json.dump()}});
    const TokenizerSpec spec = tokenizer_spec_from_folder(folder.path());
    EXPECT_EQ(refusal([&] { Tokenizer{spec}; }, ErrorCode::corrupt)
                  .rfind(folder.path() +
                             "/tokenizer.json: pre_tokenizer.pretokenizers[0].pattern: regex '(a'",
                         0),
              0u);
}

TEST(TokenizerJson, TemplatesPutInTheirTokensOwnIds) {
    Json json = tokenizer_json();
    add_token(json, 256, "<s>", {{"special", true}});
    const auto refusal_of_ids = [&](const Json& special_tokens) {
        json["post_processor"] = {
            {"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
            {"special_tokens", special_tokens}};
        const FilesFolder folder({{"tokenizer.json", json.dump()},
                                  {"tokenizer_config.json", R"({"bos_token": "<s>"})"}});
        return refusal([&] { EXPECT_TRUE(tokenizer_spec_from_folder(folder.path()).adds_bos); },
                       ErrorCode::corrupt);
    };
    const auto ids = [](const Json& list) { return Json{{"<s>", {{"id", "<s>"}, {"ids", list}}}}; };
    const std::string where = "tokenizer.json: post_processor.special_tokens";
    EXPECT_EQ(refusal_of_ids(ids({256})), "");
    expect_has(refusal_of_ids(ids({7})), where + ".<s>.ids[0]: 7, not an integer from 256 to 256");
    expect_has(refusal_of_ids(ids(Json::array({256, 256}))),
               where + ".<s>.ids: an array of 2, not");
    expect_has(refusal_of_ids(ids(Json::array())), where + ".<s>.ids: an array of 0, not one id");
    expect_has(refusal_of_ids(Json::object()), where + ": '<s>' is missing");
    expect_has(refusal_of_ids(nullptr), "post_processor: 'special_tokens' is missing");
}

TEST(TokenizerFolder, ReadsLargeVocabulariesOnly) {
    const std::string spaces(kMaxJsonBytes, ' ');
    const std::string json = tokenizer_json().dump();
    const FilesFolder large({{"tokenizer.json", json + spaces}});
    EXPECT_EQ(tokenizer_spec_from_folder(large.path()).tokens.size(), 256u);
    for (const std::string name : {"tokenizer_config.json", "special_tokens_map.json",
                                   "generation_config.json", "config.json"}) {
        const FilesFolder folder({{"tokenizer.json", json}, {name, "{}" + spaces}});
        expect_has(refusal([&] { tokenizer_spec_from_folder(folder.path()); }, ErrorCode::corrupt),
                   name + ": 16777218 bytes (at most 16777216 are read)");
    }
}

TEST(TokenizerFolder, TakesEosFromTheModelsConfigWithoutGenerationConfig) {
    const auto spec_of = [](const std::string& config, const std::string& generation) {
        std::map<std::string, std::string> files = {{"tokenizer.json", tokenizer_json().dump()},
                                                    {"config.json", config}};
        if (!generation.empty()) files["generation_config.json"] = generation;
        const FilesFolder folder(files);
        return tokenizer_spec_from_folder(folder.path());
    };
    EXPECT_EQ(spec_of(R"({"eos_token_id": 7})", "").stop_ids, Ids{7});
    EXPECT_EQ(spec_of(R"({"eos_token_id": 7})", "").eos, 7);
    EXPECT_EQ(spec_of(R"({"eos_token_id": [9, 7]})", "").stop_ids, (Ids{7, 9}));
    EXPECT_EQ(spec_of(R"({"text_config": {"eos_token_id": [8]}})", "").stop_ids, Ids{8});
    EXPECT_EQ(spec_of(R"({"eos_token_id": 7, "text_config": {"eos_token_id": 8}})", "").stop_ids,
              Ids{7});
    EXPECT_EQ(spec_of(R"({"eos_token_id": null, "text_config": {}})", "").stop_ids, Ids{});
    EXPECT_EQ(spec_of(R"({"eos_token_id": 7})", R"({"eos_token_id": 5})").stop_ids, Ids{5});
    EXPECT_EQ(spec_of(R"({"eos_token_id": 7})", "{}").stop_ids, Ids{});
    expect_has(refusal([&] { spec_of(R"({"text_config": {"eos_token_id": 256}})", ""); },
                       ErrorCode::corrupt),
               "/config.json: text_config.eos_token_id: 256, not an integer from 0 to 255");
}

TEST(TokenizerGguf, EndsAtAllControlTokensThatEndATurn) {
    TinyVocabulary vocabulary = tiny_vocabulary();
    Ids expected = {263};  // <|im_end|>
    for (const std::string name :
         {"<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>",
          "<end_of_turn>", "<｜end▁of▁sentence｜>", "[EOS]", "[EOT]", "<EOT>", "</s>"}) {
        expected.push_back(vocabulary.add(name, 3));
    }
    vocabulary.add("<|start|>", 3);
    EXPECT_EQ(kd::tokenizer_of(writer_of(vocabulary)).stop_ids(), expected);
    for (int32_t& type : vocabulary.types) type = type == 3 ? 4 : type;  // no control tokens
    EXPECT_EQ(kd::tokenizer_of(writer_of(vocabulary)).stop_ids(), Ids{});
}

// An array of bytes would be widened eightfold before its count is looked at.
TEST(TokenizerGguf, ComparesTheCountOfTypesBeforeItReadsThem) {
    GgufWriter writer;
    writer.set_string("tokenizer.ggml.model", "gpt2");
    writer.set_strings("tokenizer.ggml.tokens", {"a", "b"});
    writer.set_array("tokenizer.ggml.token_type", std::vector<uint64_t>(3, ~uint64_t{0}));
    EXPECT_EQ(refusal([&] { kd::tokenizer_of(writer); }, ErrorCode::corrupt),
              "tokenizer.ggml.token_type: 3 entries for 2 tokens");
}

TEST(ModelTokenizer, NamesTheFile) {
    const TempPath file;
    const auto refusal_of = [&](const GgufWriter& writer, ErrorCode code) {
        writer.write(file.path());
        return refusal([&] { read_tokenizer(ModelFile(file.path())); }, code);
    };
    TinyVocabulary twice = tiny_vocabulary();
    twice.add("aa");
    EXPECT_EQ(refusal_of(writer_of(twice), ErrorCode::corrupt),
              file.path() + ": tokenizer.ggml.tokens: tokens 256 and 265 are the same string 'aa'");
    GgufWriter unknown;
    unknown.set_string("tokenizer.ggml.model", "gpt2");
    unknown.set_string("tokenizer.ggml.pre", "tekken");
    unknown.set_strings("tokenizer.ggml.tokens", {"a"});
    EXPECT_EQ(refusal_of(unknown, ErrorCode::unsupported)
                  .rfind(file.path() + ": tokenizer.ggml.pre: pre-tokenizer 'tekken'", 0),
              0u);
    TinyVocabulary merges = tiny_vocabulary();  // found by Tokenizer
    merges.merges.push_back("a a");
    EXPECT_EQ(
        refusal_of(writer_of(merges), ErrorCode::corrupt).rfind(file.path() + ": merges: ", 0), 0u);
    // A message that has the path is left alone.
    EXPECT_EQ(refusal_of(GgufWriter(), ErrorCode::corrupt).rfind(file.path()), 0u);
}

}  // namespace
}  // namespace kd
