#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/tokenizer.h"
#include "formats/tokenizer_spec.h"
#include "tokenizer_fixtures.h"

namespace kd {
namespace {

const std::map<std::string, std::string>& fixture_files(const std::string& family) {
    static const Json kFixture = read_fixture("tokenizer_families.json.gz");
    static std::map<std::string, std::map<std::string, std::string>> files;
    auto& own = files[family];
    if (own.empty()) own = kFixture["families"].at(family).at("files");
    return own;
}

/// What is said of the folder, less its path; empty if nothing.
std::string refusal(const std::map<std::string, std::string>& files) {
    const FilesFolder folder(files);
    try {
        Tokenizer tokenizer(tokenizer_spec_from_folder(folder.path()));
    } catch (const Error& error) {
        const std::string said = error.what();
        EXPECT_EQ(said.find('\n'), said.npos);
        EXPECT_LT(said.size(), 600u);
        const size_t at = said.find(folder.path());
        return at == said.npos ? said : said.substr(at + folder.path().size() + 1);
    }
    return {};
}

/// Of the tokenizer.json of deepseek-v3 with the value at `pointer` replaced.
std::string refusal(const std::string& pointer, const std::string& value) {
    auto files = fixture_files("deepseek-v3");
    Json json = parse_json(files["tokenizer.json"], "");
    json[Json::json_pointer(pointer)] = parse_json(value, "");
    files["tokenizer.json"] = json.dump();
    return refusal(files);
}

void expect_says(const std::string& said, const std::string& expected) {
    EXPECT_EQ(said.rfind(expected, 0), 0u) << said << "\nnot: " << expected;
}

TEST(HostileTokenizerJson, IsRefusedByField) {
    const auto says = [](const std::string& pointer, const std::string& value,
                         const std::string& expected) {
        expect_says(refusal(pointer, value), "tokenizer.json: " + expected);
    };
    EXPECT_EQ(refusal("/version", "7"), "");
    says("/model/type", R"("Unigram")", "model.type: 'Unigram' is not supported");
    says("/model/byte_fallback", "true", "model.byte_fallback: 'true' is not supported");
    says("/model/byte_fallback", "1", "model.byte_fallback: 1, not true or false");
    says("/model/dropout", "0.5", "model.dropout: '0.5' is not supported");
    says("/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix: '</w>'");
    says("/model/vocab", "[]", "model.vocab: an array of 0, not an object");
    says("/model/vocab", "{}", "model.vocab: 0 tokens");
    says("/model/vocab/a", "-1", "model.vocab: 'a': -1 is not an id from 0");
    says("/model/vocab/a", "1e9", "model.vocab: 'a': 1000000000.0 is not an id");
    says("/model/vocab/a", "5", "model.vocab: ");
    says("/model/vocab/a", "1400", "model.vocab: 'a': 1400 is not an id from 0 to 1399");
    says("/model/vocab", R"({"a": 0, "b": 2})", "model.vocab: 'b': 2 is not an id from 0 to 1");
    says("/model/merges", "{}", "model.merges: an object of 0, not an array");
    says("/model/merges/3", R"("a b c")", "model.merges[3]: 'a b c' is not two tokens");
    says("/model/merges/3", R"(["a"])", "model.merges[3]: an array of 1, not two tokens");
    says("/model/merges/3", R"(["a", "zzqq"])", "model.merges[3]: 'zzqq' is not in the vocabulary");
    says("/model/merges/3", R"("\u007f a")", "model.merges[3]: '\\x7f' is not in the vocabulary");
    says("/added_tokens/0/id", "7", "added_tokens[0].id: 7, not an integer from 1400 to 1400");
    says("/added_tokens/1/id", "1409", "added_tokens[1].id: 1409, not an integer");
    says("/added_tokens/1/content", R"("<|endoftext|>")",
         "added_tokens[1]: '<|endoftext|>' stands");
    says("/added_tokens/1/content", R"("")", "added_tokens[1].content: 0 bytes");
    says("/added_tokens/1/lstrip", "0", "added_tokens[1].lstrip: 0, not true or false");
    says("/normalizer", R"({"type": "NFKC"})", "normalizer.type: 'NFKC' is not supported");
    says("/normalizer",
         R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})",
         "normalizer.normalizers[1].type: 'Lowercase' is not supported");
    says("/pre_tokenizer/pretokenizers/1", R"({"type": "Metaspace"})",
         "pre_tokenizer.pretokenizers[1].type: 'Metaspace' is not supported");
    says("/pre_tokenizer/pretokenizers/1/behavior", R"("Isolate")",
         "pre_tokenizer.pretokenizers[1].behavior: 'Isolate' is not supported");
    says("/pre_tokenizer/pretokenizers/1/pattern", R"({"Regex": "a\\w"})",
         "pre_tokenizer.pretokenizers[1].pattern: regex 'a\\w' at byte 2: this escape");
    says("/pre_tokenizer/pretokenizers/1/pattern", R"({"Glob": "a"})",
         "pre_tokenizer.pretokenizers[1].pattern: 'String' is missing");
    says("/pre_tokenizer/pretokenizers/3/add_prefix_space", "true",
         "pre_tokenizer.pretokenizers[3].add_prefix_space: true is not supported");
    says("/pre_tokenizer/pretokenizers/0", R"({"type": "ByteLevel", "add_prefix_space": false})",
         "pre_tokenizer.pretokenizers[1]: nothing may follow ByteLevel");
    says("/pre_tokenizer", R"({"type": "Digits"})", "pre_tokenizer: there is no ByteLevel");
    says("/pre_tokenizer", "null", "'pre_tokenizer' is missing");
    says("/post_processor", R"({"type": "BertProcessing"})",
         "post_processor.type: 'BertProcessing'");
    says("/post_processor", R"({"type": "TemplateProcessing", "single": []})",
         "post_processor.single: it leaves the text out");
    says("/post_processor",
         R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<tool"}}]})",
         "post_processor.single[0].SpecialToken.id: '<tool' is not the bos token");
    says("/decoder", R"({"type": "Metaspace"})", "decoder.type: 'Metaspace' is not supported");
}

TEST(HostileTokenizerJson, MissingBytesNeedNoUnknownToken) {
    auto files = fixture_files("deepseek-v3");
    files["tokenizer.json"] =
        R"({"model": {"vocab": {"a": 0, "b": 1}, "merges": []}, "pre_tokenizer":
            {"type": "ByteLevel", "add_prefix_space": false}})";
    files.erase("tokenizer_config.json");
    EXPECT_EQ(refusal(files), "");
    files["tokenizer.json"].replace(files["tokenizer.json"].find("\"merges\""), 0,
                                    R"("unk_token": "a", )");
    expect_says(refusal(files), "tokenizer.json: model.unk_token: 'a' would stand for 254 bytes");
}

TEST(HostileTokenizerJson, WhatStandsBesideIsChecked) {
    const auto says = [](const std::string& name, const std::string& content,
                         const std::string& expected) {
        auto files = fixture_files("deepseek-v3");
        files[name] = content;
        expect_says(refusal(files), expected);
    };
    says("tokenizer_config.json", "{", "tokenizer_config.json: line 1, column 2");
    says("tokenizer_config.json", R"({"eos_token": "<none>"})",
         "tokenizer_config.json: eos_token: '<none>' is not a token");
    says("tokenizer_config.json", R"({"eos_token": {"text": "a"}})",
         "tokenizer_config.json: eos_token: 'content' is missing");
    says("tokenizer_config.json", R"({"eos_token": 3})",
         "tokenizer_config.json: eos_token: 3, not a string");
    says("tokenizer_config.json", R"({"add_bos_token": true})",
         "tokenizer_config.json: add_bos_token: true, but there is no such token");
    says("tokenizer_config.json", R"({"chat_template": 7})",
         "tokenizer_config.json: chat_template: 7, not a string");
    says("tokenizer_config.json", R"({"chat_template": [{"name": "a"}]})",
         "tokenizer_config.json: chat_template[0]: 'template' is missing");
    says("generation_config.json", R"({"eos_token_id": [1, 99999]})",
         "generation_config.json: eos_token_id[1]: 99999, not an integer from 0 to 1415");
    says("special_tokens_map.json", "[]", "special_tokens_map.json: an array of 0, not an object");
    EXPECT_NE(refusal(std::map<std::string, std::string>{}), "");
}

TEST(HostileTiktoken, IsRefusedByLine) {
    const auto says = [](const std::string& model, const std::string& expected) {
        auto files = fixture_files("kimi");
        files["tiktoken.model"] = model;
        expect_says(refusal(files), "tiktoken.model: " + expected);
    };
    const std::string good = fixture_files("kimi").at("tiktoken.model");
    says("IQ== 1\n", "line 1: rank 1, not 0");
    says("IQ= 0\n", "line 1: 'IQ= 0' is not base64 and a rank");
    says("IR== 0\n", "line 1: 'IR== 0' is not base64");  // stray bits
    says("I=== 0\n", "line 1: ");
    says(" 0\n", "line 1: ");
    says("IQ== x\n", "line 1: ");
    says("IQ== 0 \n", "line 1: ");
    says("IQ==\n", "line 1: ");
    says("IQ== 0\nIQ== 1\n", "ranks 0 and 1 are the same token");
    says("IQ== 0\nIg== 1\n", "byte 0 has no rank");
    says(good + "IQ== 99999999999\n", "line 1401: ");
    auto files = fixture_files("kimi");
    files["tokenizer_config.json"] = R"({"tokenizer_class": "QwenTokenizer"})";
    expect_says(refusal(files), "tokenizer_config.json: tokenizer_class: 'QwenTokenizer'");
    for (const std::string key : {"x", "7", "1656", "-1", "1400x"}) {
        files["tokenizer_config.json"] =
            R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {")" + key +
            R"(": {"content": "<x>"}}})";
        expect_says(refusal(files), "tokenizer_config.json: added_tokens_decoder." + key +
                                        ": not an id from 1400 to 1655");
    }
    files["tokenizer_config.json"] =
        R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder":
            {"1401": {"content": "<|reserved_token_1402|>"}}})";
    expect_says(refusal(files), "tokenizer_config.json: added_tokens_decoder: 1401 and 1402");
}

}  // namespace
}  // namespace kd
