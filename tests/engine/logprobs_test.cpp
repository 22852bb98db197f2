// Scores: what was said of a token when it was emitted, under trees, is what scoring the same text
// afterwards says, bit for bit; every position once; nothing computed that nobody asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/engine_support.h"
#include "support/model_runner.h"

namespace kd {
namespace {

Request score_request(std::vector<int32_t> text, int32_t top) {
    return {.prompt = std::move(text), .prompt_logprobs = top, .prompt_only = true};
}

/// Answers by trees with logprobs, then scores the whole texts in another engine.
void expect_scores_equal(Engine& answering, Engine& scoring, std::vector<Request> requests) {
    std::vector<Request> scores;
    const std::vector<Delta> outputs = run_all(answering, requests);
    for (size_t i = 0; i < outputs.size(); ++i) {
        std::vector<int32_t> text = requests[i].prompt;
        text.insert(text.end(), outputs[i].ids.begin(), outputs[i].ids.end());
        scores.push_back(score_request(std::move(text), requests[i].top_logprobs));
    }
    const std::vector<Delta> scored = run_all(scoring, scores);
    for (size_t i = 0; i < outputs.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_EQ(scored[i].finish, FinishReason::length);
        EXPECT_TRUE(scored[i].ids.empty());
        std::vector<PositionLogprobs> both = outputs[i].prompt_logprobs;
        both.insert(both.end(), outputs[i].logprobs.begin(), outputs[i].logprobs.end());
        expect_same_logprobs(both, scored[i].prompt_logprobs);
    }
}

std::vector<Request> sampled_requests(const std::vector<std::vector<int32_t>>& prompts,
                                      int32_t max_tokens) {
    std::vector<Request> requests;
    for (size_t i = 0; i < prompts.size(); ++i) {
        const auto top = static_cast<int32_t>(i % 8);
        requests.push_back({.prompt = prompts[i],
                            .sampling = {.temperature = i % 2 == 0 ? 0.9f : 0.0f,
                                         .seed = i,
                                         .repetition_penalty = i % 3 == 0 ? 1.2f : 1.0f},
                            .max_tokens = max_tokens,
                            .speculation = {.nodes = 12},
                            .top_logprobs = top,
                            .prompt_logprobs = top});
    }
    return requests;
}

TEST(Logprobs, EmittedEqualScoredOnTheTinyModel) {
    Config config{.model = tiny_model_path(), .context_length = 128, .max_running_requests = 4};
    config.chunked_prefill_size = 24;
    config.max_total_tokens = 160;
    Engine answering(config, std::make_unique<NonsenseDrafter>(8, 6, 320, 3u));
    Engine scoring({.model = tiny_model_path(), .context_length = 128, .max_running_requests = 3});
    expect_scores_equal(answering, scoring, sampled_requests(random_prompts(50, 50, 320, 8), 20));
}

TEST(LogprobsSmolLm2, EmittedEqualScored) {
    const std::optional<std::string> path = smollm2_path();
    if (!path) GTEST_SKIP() << "SmolLM2 is not in the cache folder";
    Config config{.model = *path, .context_length = 128, .max_running_requests = 4};
    Engine engine(config);
    std::vector<std::vector<int32_t>> prompts;
    for (const char* text : {"The river runs and the river runs and the", "1, 2, 3, 1, 2, 3, 1,",
                             "def f(x):\n    return x\n\ndef g(x):\n", "Paris is the capital of"}) {
        prompts.push_back(engine.tokenizer().encode(text, false));
    }
    expect_scores_equal(engine, engine, sampled_requests(prompts, 16));
}

TEST(Logprobs, EqualTheModelsLogitsInDouble) {
    const std::vector<int32_t> text = random_prompts(4, 70, 320, 12).back();
    ASSERT_GT(text.size(), 3u);
    ModelRunner model(tiny_model_path(), Kernels::fast, 128);
    const std::vector<float> logits = model.logits_of(text);
    Engine engine({.model = tiny_model_path(), .context_length = 128});
    const Delta output = run_all(engine, {score_request(text, 128)})[0];
    ASSERT_EQ(output.prompt_logprobs.size(), text.size() - 1);
    for (size_t i = 0; i + 1 < text.size(); ++i) {
        const std::vector<double> row = log_softmax(std::span(logits).subspan(320 * i, 320));
        const PositionLogprobs& got = output.prompt_logprobs[i];
        EXPECT_NEAR(got.logprob, row[static_cast<size_t>(text[i + 1])], 3e-6);
        ASSERT_EQ(got.top.size(), 128u);
        const double best = *std::ranges::max_element(row);
        EXPECT_NEAR(got.top[0].logprob, best, 3e-6);
        for (const TokenLogprob& each : got.top) {
            EXPECT_NEAR(each.logprob, row[static_cast<size_t>(each.token)], 3e-6);
        }
    }
}

TEST(Logprobs, EveryPromptPositionOnceWhateverIsRetracted) {
    Config config{.model = tiny_model_path(), .context_length = 96, .max_running_requests = 4};
    config.chunked_prefill_size = 16;
    Engine roomy(config);
    config.max_total_tokens = 110;
    Engine tight(config);
    std::vector<Request> requests;
    for (const std::vector<int32_t>& prompt : random_prompts(24, 60, 320, 33)) {
        requests.push_back({.prompt = prompt,
                            .sampling = {.ignore_eos = true},
                            .max_tokens = 30,
                            .speculation = {.nodes = 6},
                            .top_logprobs = 1,
                            .prompt_logprobs = 2});
    }
    const std::vector<Delta> expected = run_all(roomy, requests);
    const std::vector<Delta> outputs = run_all(tight, requests);
    int32_t retracted = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_EQ(outputs[i].prompt_logprobs.size(), requests[i].prompt.size() - 1);
        EXPECT_EQ(outputs[i].logprobs.size(), outputs[i].ids.size());
        expect_same_output(outputs[i], expected[i]);
        retracted += outputs[i].stats.retracted;
    }
    EXPECT_GT(retracted, 5);
}

TEST(Logprobs, OnlyRowsThatAreScoredGetLogits) {
    Config config{.model = tiny_model_path(), .context_length = 96};
    config.chunked_prefill_size = 16;
    Engine engine(config);
    const std::vector<int32_t> prompt(40, 7);
    const auto prompt_logit_rows = [&](const Request& request) {
        const RequestId id = engine.submit(request);
        size_t rows = 0;
        while (const RoundStats* stats = engine.step()) {
            const Batch& batch = engine.last_batch();
            rows += batch.logit_rows.size() - static_cast<size_t>(stats->nodes);
            EXPECT_EQ(stats->nodes > 0, stats->decoding > 0);
        }
        engine.poll(id);
        return rows;
    };
    EXPECT_EQ(prompt_logit_rows({.prompt = prompt, .max_tokens = 3}), 0u);
    EXPECT_EQ(prompt_logit_rows({.prompt = prompt, .max_tokens = 3, .top_logprobs = 5}), 0u);
    EXPECT_EQ(prompt_logit_rows({.prompt = prompt, .max_tokens = 3, .prompt_logprobs = 0}), 39u);
    EXPECT_EQ(prompt_logit_rows({.prompt = prompt, .prompt_only = true}), 0u);
    EXPECT_EQ(prompt_logit_rows(score_request(prompt, 0)), 39u);
}

TEST(PromptOnly, EndsWithThePromptWithoutADecodingRound) {
    Engine engine({.model = tiny_model_path(), .context_length = 64});
    const std::vector<Delta> outputs =
        run_all(engine, {score_request({9}, 3),
                         score_request({9, 8}, 3),
                         score_request({5}, 0),
                         score_request(std::vector<int32_t>(64, 7), 0),  // fills the context
                         {.prompt = {5, 6}, .max_tokens = 2, .speculation = {.nodes = 4}}});
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(outputs[i].finish, FinishReason::length) << i;
        EXPECT_TRUE(outputs[i].ids.empty() && outputs[i].text.empty()) << i;
        EXPECT_EQ(outputs[i].stats.rounds, 0) << i;
    }
    EXPECT_EQ(outputs[0].prompt_logprobs.size(), 0u);
    EXPECT_EQ(outputs[1].prompt_logprobs.size(), 1u);
    EXPECT_EQ(outputs[3].prompt_logprobs.size(), 63u);
    EXPECT_EQ(outputs[4].ids.size(), 2u);
}

TEST(Logprobs, StreamedInPiecesTheyAreComplete) {
    Config config{.model = tiny_model_path(), .context_length = 96};
    config.chunked_prefill_size = 8;
    Engine engine(config);
    const Request request = {.prompt = std::vector<int32_t>(20, 11),
                             .max_tokens = 12,
                             .speculation = {.nodes = 5},
                             .top_logprobs = 2,
                             .prompt_logprobs = 1};
    const Delta whole = run_all(engine, {request})[0];
    const RequestId id = engine.submit(request);
    Delta pieces;
    while (pieces.finish == FinishReason::none) {
        engine.step();
        const Delta delta = engine.poll(id);
        EXPECT_EQ(delta.ids.size(), delta.logprobs.size());
        pieces.ids.insert(pieces.ids.end(), delta.ids.begin(), delta.ids.end());
        pieces.text += delta.text;
        pieces.logprobs.insert(pieces.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
        pieces.prompt_logprobs.insert(pieces.prompt_logprobs.end(), delta.prompt_logprobs.begin(),
                                      delta.prompt_logprobs.end());
        pieces.finish = delta.finish;
    }
    expect_same_output(pieces, whole);
}

}  // namespace
}  // namespace kd
