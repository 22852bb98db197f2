// A Hugging Face folder in the engine: tokenizer, text, trees, and the cost table's place.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/cost_cache.h"
#include "support/counter_model.h"
#include "support/engine_support.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

Json small_model(const std::string& name) {
    std::ifstream in(std::string(KD_TEST_DATA) + "/models/dense_gqa.json");
    const Json fixture = Json::parse(in);
    for (const Json& model : fixture["cases"]) {
        if (model["name"] == name) return model;
    }
    throw std::out_of_range(name);
}

Config config_of(const TempFolder& folder, SpeculativeAlgorithm drafter) {
    return {.model = folder.path(),
            .context_length = 128,
            .threads = 1,
            .speculative_algorithm = drafter,
            .max_draft_tokens = 8};
}

TEST(HfFolderEngine, TreesEmitWhatPlainDecodingEmits) {
    constexpr int32_t kBeyond = 310;  // of the model's 320 ids, not of the tokenizer's 300
    for (const std::string name : {"llama_llama3", "qwen2_tied", "qwen3"}) {
        SCOPED_TRACE(name);
        const Json model = small_model(name);
        const TempFolder folder;
        write_hf_shards(folder, model["config"], counter_tensors(model), 2);
        write_byte_tokenizer(folder, 300);
        Engine plain(config_of(folder, SpeculativeAlgorithm::none));
        Engine tree(config_of(folder, SpeculativeAlgorithm::ngram));
        std::vector<Request> requests;
        for (const std::vector<int32_t>& prompt : random_prompts(6, 30, 320, 7)) {
            requests.push_back({.prompt = prompt, .max_tokens = 48});
        }
        // What small random weights emit depends on the last bit of a logit: one request is pushed.
        requests.back().logit_bias = {{.token = kBeyond, .bias = 1000.0f}};
        const std::vector<Delta> expected = run_all(plain, requests);
        const std::vector<Delta> actual = run_all(tree, requests);
        for (size_t i = 0; i < requests.size(); ++i) {
            expect_same_output(actual[i], expected[i]);
        }
        EXPECT_EQ(expected.back().ids, std::vector<int32_t>(48, kBeyond));
    }
}

TEST(HfFolderEngine, ATokenizerLargerThanTheModelIsRefused) {
    const Json model = small_model("qwen2");
    const TempFolder folder;
    write_hf_folder(folder, model["config"], counter_tensors(model));
    EXPECT_NE(error_of([&] {
                  Engine engine(config_of(folder, SpeculativeAlgorithm::none));
              }).find("tokenizer.json"),
              std::string::npos);
    write_byte_tokenizer(folder, 321);
    const std::string error =
        error_of([&] { Engine engine(config_of(folder, SpeculativeAlgorithm::none)); });
    EXPECT_NE(error.find("the tokenizer has 321 tokens, the model 320"), std::string::npos)
        << error;
}

// The table of costs belongs to the weights: any shard that changes makes it another one.
TEST(HfFolderEngine, CostTablesFollowEveryFile) {
    const Json model = small_model("qwen2");
    const std::vector<HfTensor> tensors = counter_tensors(model);
    const TempFolder folder;
    write_hf_shards(folder, model["config"], tensors, 2);
    const auto key = [&] { return cost_key(ModelFile(folder.path()), 1, 8, 64); };
    const std::string before = key();
    EXPECT_EQ(key(), before);
    const std::string shard = "model-00002-of-00002.safetensors";
    std::ofstream(folder.path() + "/" + shard, std::ios::app).flush();
    EXPECT_EQ(key(), before);
    std::vector<HfTensor> more = tensors;
    more.push_back(hf_tensor("z.weight", DType::f32, {1}, std::vector<float>{1}));
    write_hf_shards(folder, model["config"], more, 2);
    EXPECT_NE(key(), before);
}

}  // namespace
}  // namespace kd
