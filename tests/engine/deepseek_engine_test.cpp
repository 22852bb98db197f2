// A DeepSeek model in the engine: a latent cache under trees, pages, the prefix cache, relocation
// and retraction changes no token.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/counter_model.h"
#include "support/deepseek_model.h"
#include "support/engine_support.h"

namespace kd {
namespace {

constexpr int32_t kVocabulary = 320;

/// A model of one dense layer and two with 8 experts, 3 used, in 2 of 4 groups.
const std::string& deepseek_path() {
    static const TempPath file;
    static const bool written = [] {
        const nlohmann::ordered_json config = {
            {"attention_bias", false},
            {"first_k_dense_replace", 1},
            {"hidden_size", 64},
            {"intermediate_size", 96},
            {"kv_lora_rank", 32},
            {"max_position_embeddings", 512},
            {"moe_intermediate_size", 32},
            {"n_group", 4},
            {"n_routed_experts", 8},
            {"n_shared_experts", 1},
            {"norm_topk_prob", true},
            {"num_attention_heads", 4},
            {"num_experts_per_tok", 3},
            {"num_hidden_layers", 3},
            {"q_lora_rank", 48},
            {"qk_nope_head_dim", 16},
            {"qk_rope_head_dim", 16},
            {"rms_norm_eps", 1e-6},
            {"rope_theta", 10000},
            {"rope_parameters", nlohmann::ordered_json::object()},
            {"routed_scaling_factor", 2.5},
            {"scoring_func", "sigmoid"},
            {"tie_word_embeddings", false},
            {"topk_group", 2},
            {"topk_method", "noaux_tc"},
            {"v_head_dim", 16},
            {"vocab_size", kVocabulary}};
        deepseek_gguf({.config = config, .weights = nlohmann::ordered_json::object()},
                      {.matrices = DType::bf16})
            .write(file.path());
        return true;
    }();
    EXPECT_TRUE(written);
    return file.path();
}

Config deepseek_config() {
    Config config{.model = deepseek_path(), .context_length = 256, .threads = 1};
    config.max_draft_tokens = 16;
    config.chunked_prefill_size = 24;
    return config;
}

Request request_of(const std::vector<int32_t>& prompt, int32_t nodes) {
    return {.prompt = prompt,
            .sampling = {.ignore_eos = true},
            .max_tokens = 24,
            .speculation = {.nodes = nodes},
            .top_logprobs = 2};
}

/// Plain decoding of every prompt, one session at a time, nothing kept.
std::vector<Delta> plain_outputs(const std::vector<std::vector<int32_t>>& prompts) {
    Config config = deepseek_config();
    config.speculative_algorithm = SpeculativeAlgorithm::none;
    config.radix_cache = false;
    Engine engine(config);
    std::vector<Delta> outputs;
    for (const std::vector<int32_t>& prompt : prompts) {
        outputs.push_back(run_all(engine, {request_of(prompt, 1)})[0]);
    }
    return outputs;
}

TEST(DeepseekEngine, TreesEmitWhatPlainDecodingEmits) {
    const auto prompts = sharing_prompts(10, 40, kVocabulary, 3);
    const std::vector<Delta> expected = plain_outputs(prompts);
    for (const int32_t page_size : {1, 16}) {
        for (const bool ngram : {true, false}) {
            SCOPED_TRACE(testing::Message() << "pages of " << page_size << ", "
                                            << (ngram ? "ngram" : "random") << " trees");
            Config config = deepseek_config();
            config.max_running_requests = 5;
            config.page_size = page_size;
            config.max_total_tokens = 320;  // too little for five of these
            config.kv_relocate = 64;
            config.speculative_algorithm = SpeculativeAlgorithm::ngram;
            Engine engine(config, ngram
                                      ? nullptr
                                      : std::make_unique<NonsenseDrafter>(15, 6, kVocabulary, 7u));
            std::vector<Request> requests;
            for (size_t i = 0; i < prompts.size(); ++i) {
                requests.push_back(request_of(prompts[i], i % 2 == 0 ? 8 : 13));
            }
            const std::vector<Delta> outputs = run_all(engine, requests);
            for (size_t i = 0; i < outputs.size(); ++i) expect_same_output(outputs[i], expected[i]);
            EXPECT_GT(engine.pool().totals().reused, 0);
            EXPECT_GT(engine.pool().totals().moved, 0);
        }
    }
}

TEST(DeepseekEngine, TreesAcceptMoreThanOneToken) {
    // A text that repeats itself in the prompt: the random model goes on with parts of it.
    const auto prompts = random_prompts(8, 60, kVocabulary, 5);
    Config config = deepseek_config();
    config.speculative_algorithm = SpeculativeAlgorithm::ngram;
    Engine engine(config);
    int64_t tokens = 0, rounds = 0;
    for (const std::vector<int32_t>& prompt : prompts) {
        Request request = request_of(prompt, 8);
        request.max_tokens = 120;
        const Delta output = run_all(engine, {request})[0];
        tokens += output.stats.tokens;
        rounds += output.stats.rounds;
    }
    EXPECT_GT(tokens, rounds);
}

/// Kimi-K2's form: a folder with INT4 experts, in shards.
TEST(DeepseekEngine, AFolderRunsAsAFileDoes) {
    std::ifstream in(std::string(KD_TEST_DATA) + "/models/deepseek.json");
    const auto fixture = nlohmann::ordered_json::parse(in);
    const nlohmann::ordered_json& cases = fixture["cases"];
    const auto& test = *std::find_if(cases.begin(), cases.end(),
                                     [](const auto& each) { return each["name"] == "int4"; });
    const TempFolder folder;
    write_hf_shards(folder, test["config"],
                    deepseek_checkpoint({.config = test["config"], .weights = test["weights"]}), 2);
    write_byte_tokenizer(folder, kVocabulary);
    Config config = deepseek_config();
    config.model = folder.path();
    config.speculative_algorithm = SpeculativeAlgorithm::none;
    Engine plain(config);
    config.speculative_algorithm = SpeculativeAlgorithm::ngram;
    Engine trees(config);
    for (const auto& prompt : random_prompts(4, 30, kVocabulary, 9)) {
        const Delta output = run_all(trees, {request_of(prompt, 8)})[0];
        expect_same_output(output, run_all(plain, {request_of(prompt, 1)})[0]);
        EXPECT_EQ(output.ids.size(), 24u);
    }
}

TEST(DeepseekEngine, TheCacheHoldsOneLatentRowAToken) {
    Engine engine(deepseek_config());
    const KvView cache = cache_view(engine.model_config(), DType::f16, 1);
    EXPECT_EQ(cache.bytes(), 3 * (32 + 16) * 2);
    EXPECT_EQ(cache.rows, KvRows::latent);
}

}  // namespace
}  // namespace kd
