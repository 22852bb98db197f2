// Losslessness under greedy decoding: trees emit what plain decoding emits, token for token.
#include <gtest/gtest.h>

#include <map>

#include "app/prompt.h"
#include "support/engine_support.h"

namespace kd {
namespace {

constexpr int32_t kNodeCounts[] = {1, 2, 3, 4, 8, 16, 32};

/// A profile in which depth d's candidates are right with first - d * fall, and fixed lower ranks.
std::vector<std::vector<float>> hit_rates(float first, float fall, std::vector<float> others) {
    std::vector<std::vector<float>> hit;
    for (int depth = 0; depth < 31; ++depth) {
        std::vector<float>& row = hit.emplace_back();
        row.push_back(std::max(0.05f, first - fall * static_cast<float>(depth)));
        row.insert(row.end(), others.begin(), others.end());
    }
    return hit;
}

/// The drafters of the grid by name, as engines.
std::unique_ptr<Engine> make_engine(Config config, const std::string& drafter, int32_t vocabulary) {
    if (drafter == "nonsense") {
        return std::make_unique<Engine>(config,
                                        std::make_unique<NonsenseDrafter>(31, 6, vocabulary, 11u));
    }
    if (drafter == "ngram") {
        config.speculative_algorithm = SpeculativeAlgorithm::ngram;
    } else {
        config.speculative_algorithm = SpeculativeAlgorithm::oracle;
        config.speculative_draft_model_path =
            drafter == "oracle-good"
                ? oracle_profile("good.json", hit_rates(0.85f, 0.01f, {0.08f, 0.03f}))
                : oracle_profile("poor.json", hit_rates(0.30f, 0.02f, {0.25f, 0.2f, 0.1f}));
    }
    return std::make_unique<Engine>(config);
}

constexpr const char* kDrafters[] = {"ngram", "oracle-good", "oracle-poor", "nonsense"};

/// A pool that is too small for eight sessions, with rows that move between all rounds.
struct SmallPool {
    int32_t page_size = 0;  // 0: roomy pools, without a cache
    int32_t tokens = 0;
};

struct Grid {
    std::string model;
    std::vector<std::vector<int32_t>> prompts;  // spread over the cells
    size_t prompts_a_cell = 0;                  // at most eight
    int32_t max_tokens = 0;
    int32_t context_length = 0;
    SmallPool pool = {};
};

/// Plain decoding of every prompt, one session at a time.
std::vector<std::vector<int32_t>> plain_texts(const Grid& grid) {
    Config config{.model = grid.model, .context_length = grid.context_length};
    config.speculative_algorithm = SpeculativeAlgorithm::none;
    config.radix_cache = false;
    Engine engine(config);
    std::vector<std::vector<int32_t>> texts;
    for (const std::vector<int32_t>& prompt : grid.prompts) {
        const Request request = {.prompt = prompt, .max_tokens = grid.max_tokens};
        texts.push_back(run_all(engine, {request})[0].ids);
    }
    return texts;
}

struct Tally {
    int64_t tokens = 0;
    int64_t rounds = 0;
    KvPoolTotals pool;
    int32_t retracted = 0;
    int32_t reused_inside_pages = 0;  // sessions whose cached prefix was no number of whole pages
};

/// Runs T x drafter x {1, 8 sessions}, each cell on its own slice of the prompts, alternating trees
/// and chains, and expects plain decoding's tokens.
std::map<std::string, Tally> expect_equal_on_grid(const Grid& grid, int32_t vocabulary) {
    const std::vector<std::vector<int32_t>> expected = plain_texts(grid);
    std::map<std::string, Tally> tallies;
    size_t next = 0;
    for (const char* drafter : kDrafters) {
        for (const int32_t sessions : {1, 8}) {
            Config config{.model = grid.model,
                          .context_length = grid.context_length,
                          .max_running_requests = sessions};
            config.chunked_prefill_size = 48;  // several chunks a prompt, mixed with trees
            config.radix_cache = grid.pool.page_size > 0;
            if (config.radix_cache) {
                config.page_size = grid.pool.page_size;
                config.max_total_tokens = grid.pool.tokens;
                config.kv_relocate = 64;
            }
            const std::unique_ptr<Engine> engine = make_engine(config, drafter, vocabulary);
            for (const int32_t nodes : kNodeCounts) {
                std::vector<Request> requests;
                std::vector<size_t> indices;
                for (size_t i = 0; i < grid.prompts_a_cell; ++i) {
                    const size_t index = next++ % grid.prompts.size();
                    indices.push_back(index);
                    requests.push_back(
                        {.prompt = grid.prompts[index],
                         .max_tokens = grid.max_tokens,
                         .speculation = {.shape = i % 3 == 2 ? DraftShape::chain : DraftShape::tree,
                                         .nodes = nodes},
                         .known_continuation = expected[index]});
                }
                const std::vector<Delta> outputs = run_all(*engine, requests);
                for (size_t i = 0; i < outputs.size(); ++i) {
                    EXPECT_EQ(outputs[i].ids, expected[indices[i]])
                        << drafter << ", " << sessions << " sessions, T = " << nodes << ", prompt "
                        << indices[i];
                    Tally& tally = tallies[drafter];
                    const SessionStats& stats = outputs[i].stats;
                    tally.retracted += stats.retracted;
                    tally.reused_inside_pages +=
                        stats.reused_tokens % config.page_size != 0 ? 1 : 0;
                    if (nodes == 32) {
                        tally.tokens += stats.tokens;
                        tally.rounds += stats.rounds;
                    }
                }
            }
            KvPoolTotals& pool = tallies[drafter].pool;
            pool.reused += engine->pool().totals().reused;
            pool.evicted += engine->pool().totals().evicted;
            pool.moved += engine->pool().totals().moved;
        }
    }
    return tallies;
}

TEST(GreedyEquality, TinyModelOnTheWholeGrid) {
    const Grid grid = {.model = tiny_model_path(),
                       .prompts = random_prompts(200, 90, 320, 5),
                       .prompts_a_cell = 8,
                       .max_tokens = 40,
                       .context_length = 256};
    std::map<std::string, Tally> tallies = expect_equal_on_grid(grid, 320);
    // The drafters are what they claim to be: a test in which nothing is accepted proves little.
    const auto length = [&](const std::string& drafter) {
        return static_cast<double>(tallies[drafter].tokens) /
               static_cast<double>(tallies[drafter].rounds);
    };
    EXPECT_GT(length("oracle-good"), 4.0);
    EXPECT_GT(length("oracle-poor"), 1.5);
    EXPECT_LT(length("oracle-poor"), length("oracle-good"));
    EXPECT_GE(length("ngram"), 1.0);
    EXPECT_LT(length("nonsense"), 1.6);
}

TEST(GreedyEquality, SharedPrefixesInSmallPools) {
    for (const SmallPool pool : {SmallPool{1, 420}, SmallPool{16, 480}}) {
        SCOPED_TRACE(pool.page_size);
        const Grid grid = {.model = tiny_model_path(),
                           .prompts = sharing_prompts(120, 60, 320, 7),
                           .prompts_a_cell = 8,
                           .max_tokens = 40,
                           .context_length = 256,
                           .pool = pool};
        for (const auto& [drafter, tally] : expect_equal_on_grid(grid, 320)) {
            SCOPED_TRACE(drafter);
            EXPECT_GT(tally.pool.reused, 1000);
            EXPECT_GT(tally.pool.evicted, 1000);
            EXPECT_GT(tally.pool.moved, 100);
            EXPECT_GT(tally.retracted, 0);
            if (pool.page_size > 1) {
                EXPECT_GT(tally.reused_inside_pages, 0);
            }
        }
    }
}

/// Chat prompts of mixed kinds: questions, code, lists, other languages, digits, white space.
std::vector<std::string> mixed_prompts(size_t count) {
    const std::vector<std::string> topics = {
        "the sea",        "prime numbers", "bread",   "the moon", "a sorting function",
        "photosynthesis", "chess",         "gravity", "Paris",    "honey bees"};
    const std::vector<std::string> forms = {
        "Explain {} in two sentences.",
        "List five facts about {}.",
        "Write a Python function about {} with a docstring.",
        "def f(x):\n    # {}\n    return x\n\nContinue this code.",
        "Translate to French: I like {}.",
        "12 + 30 = 42, 7 * 8 = 56. What has {} to do with 3.14159?",
        "Repeat after me: {} {} {} {} {} {}",
        "Qu'est-ce que {} ? Réponds en français.",
        "日本語で{}について書いてください。 🙂🙂",
        "  {}\n\n\t{}   \n",
        "Write a short poem on {}.",
        "{}? Answer yes or no, then why.",
        "Make a table | name | value | for {}.",
        "Correct the grammar: him go to {} yesterday.",
        "Summarise: {} is old. {} is new. {} is borrowed. {} is blue.",
        "What is the opposite of {}?",
        "Write JSON with keys name and kind for {}.",
        "Count from 1 to 10 and mention {} at 5.",
        "Who wrote about {} and when?",
        "Give me a recipe with {}."};
    std::vector<std::string> prompts;
    for (size_t i = 0; i < count; ++i) {
        std::string text = forms[i % forms.size()];
        const std::string& topic = topics[(i / forms.size()) % topics.size()];
        for (size_t at = 0; (at = text.find("{}", at)) != std::string::npos; at += topic.size()) {
            text.replace(at, 2, topic);
        }
        prompts.push_back(text);
    }
    return prompts;
}

Grid smollm2_grid(const std::string& model, size_t prompts, size_t a_cell, int32_t max_tokens) {
    Config config{.model = model, .context_length = 64};
    config.speculative_algorithm = SpeculativeAlgorithm::none;
    const Engine engine(config);
    Grid grid = {
        .model = model, .prompts_a_cell = a_cell, .max_tokens = max_tokens, .context_length = 512};
    for (const std::string& text : mixed_prompts(prompts)) {
        grid.prompts.push_back(encode_prompt(engine.tokenizer(), text, false));
    }
    return grid;
}

TEST(GreedyEqualitySmolLm2, TwoHundredPromptsOverTheGrid) {
    const std::optional<std::string> model = smollm2_path();
    if (!model) GTEST_SKIP() << "SmolLM2 is not in the cache folder";
    // 56 cells of four prompts: every prompt once, the first ones twice.
    expect_equal_on_grid(smollm2_grid(*model, 200, 4, 20), 49152);
}

TEST(GreedyEqualitySmolLm2Long, EveryCellWithEightLongAnswers) {
    const std::optional<std::string> model = smollm2_path();
    if (!model) GTEST_SKIP() << "SmolLM2 is not in the cache folder";
    expect_equal_on_grid(smollm2_grid(*model, 200, 8, 96), 49152);
}

TEST(GreedyEquality, TheCostModelsBudgetToo) {
    const std::vector<std::vector<int32_t>> prompts = random_prompts(16, 60, 320, 9);
    const Grid grid = {
        .model = tiny_model_path(), .prompts = prompts, .max_tokens = 48, .context_length = 256};
    const std::vector<std::vector<int32_t>> expected = plain_texts(grid);
    Config config{.model = grid.model, .context_length = 256, .max_running_requests = 4};
    Engine engine(config);
    std::vector<Request> requests;
    for (size_t i = 0; i < prompts.size(); ++i) {
        requests.push_back(
            {.prompt = prompts[i],
             .max_tokens = 48,
             .speculation = {.shape = i % 2 == 0 ? DraftShape::tree : DraftShape::chain}});
    }
    const std::vector<Delta> outputs = run_all(engine, requests);
    for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i].ids, expected[i]) << i;
}

}  // namespace
}  // namespace kd
