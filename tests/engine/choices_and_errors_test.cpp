// Several answers of one prompt, requests that end in an error of their own, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "support/engine_support.h"

namespace kd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Config tiny_config(int32_t sessions) {
    return {.model = tiny_model_path(),
            .context_length = 96,
            .threads = 1,
            .max_running_requests = sessions};
}

std::vector<Delta> run_choices(Engine& engine, const Request& request, int32_t n) {
    const std::vector<RequestId> ids = engine.submit_n(request, n);
    while (engine.step() != nullptr) engine.check_books();
    std::vector<Delta> outputs;
    for (const RequestId id : ids) outputs.push_back(engine.poll(id));
    return outputs;
}

TEST(Choices, ChoiceIIsTheRequestWithSeedPlusI) {
    Engine engine(tiny_config(3));
    Request request = {.prompt = {20, 21, 22},
                       .sampling = {.temperature = 1.0f, .seed = UINT64_MAX - 1},
                       .max_tokens = 16,
                       .speculation = {.nodes = 6},
                       .top_logprobs = 1};
    const std::vector<Delta> choices = run_choices(engine, request, 4);
    ASSERT_EQ(choices.size(), 4u);
    for (const Delta& choice : choices) {
        expect_same_output(choice, run_all(engine, {request})[0]);
        request.sampling.seed += 1;  // wraps to 0
    }
    EXPECT_NE(choices[0].ids, choices[1].ids);
    request.sampling.temperature = 0;
    for (const Delta& choice : run_choices(engine, request, 3)) {
        expect_same_output(choice, run_all(engine, {request})[0]);
    }
}

TEST(Choices, AllOrNone) {
    Engine engine(tiny_config(2));
    EXPECT_EQ(error_of([&] { engine.submit_n({.prompt = {5}}, 0); }),
              "0 choices are outside 1..1024");
    EXPECT_EQ(error_of([&] { engine.submit_n({.prompt = {5}}, 1025); }),
              "1025 choices are outside 1..1024");
    EXPECT_EQ(error_of([&] { engine.submit_n({.prompt = {-1}}, 3); }),
              "token -1 is outside the vocabulary of 320");
    EXPECT_EQ(engine.step(), nullptr);
    EXPECT_EQ(engine.submit_n({.prompt = {5}, .max_tokens = 1}, 1024).size(), 1024u);
}

TEST(Refused, RulesOutOfRange) {
    Engine engine(tiny_config(1));
    const auto refused = [&](SamplingParams params, int32_t max_tokens = 0) {
        return error_of(
            [&] { engine.submit({.prompt = {5}, .sampling = params, .max_tokens = max_tokens}); });
    };
    EXPECT_EQ(refused({.repetition_penalty = 0}),
              "repetition penalty 0 is not a finite number > 0");
    EXPECT_EQ(refused({.repetition_penalty = kInfinity}),
              "repetition penalty inf is not a finite number > 0");
    EXPECT_EQ(refused({.presence_penalty = -2.5f}), "presence penalty -2.5 is not in [-2, 2]");
    EXPECT_EQ(refused({.frequency_penalty = kNaN}), "frequency penalty nan is not in [-2, 2]");
    EXPECT_EQ(refused({.min_tokens = -1}), "min tokens -1 is negative");
    EXPECT_EQ(refused({.min_tokens = 6}, 5), "min tokens 6 is beyond max tokens 5");
    EXPECT_EQ(refused({.min_tokens = 6}), "no error");

    const auto refused_bias = [&](std::vector<LogitBias> bias) {
        return error_of([&] { engine.submit({.prompt = {5}, .logit_bias = std::move(bias)}); });
    };
    EXPECT_EQ(refused_bias({{3, kInfinity}}),
              "logit bias inf of token 3 is not a number below infinity");
    EXPECT_EQ(refused_bias({{3, kNaN}}),
              "logit bias nan of token 3 is not a number below infinity");
    EXPECT_EQ(refused_bias({{320, 1}}), "token 320 is outside the vocabulary of 320");
    EXPECT_EQ(refused_bias({{-1, 1}}), "token -1 is outside the vocabulary of 320");
    EXPECT_EQ(refused_bias({{3, 1}, {4, 1}, {3, -kInfinity}}), "token 3 has two logit biases");
    EXPECT_EQ(refused_bias({{3, -kInfinity}}), "no error");

    EXPECT_EQ(error_of([&] { engine.submit({.prompt = {5}, .top_logprobs = 129}); }),
              "top logprobs 129 is outside 0..128 (-1: none)");
    EXPECT_EQ(error_of([&] { engine.submit({.prompt = {5}, .prompt_logprobs = -2}); }),
              "prompt logprobs -2 is outside 0..128 (-1: none)");
    EXPECT_EQ(error_of([&] {
                  engine.submit({.prompt = std::vector<int32_t>(97, 5), .prompt_only = true});
              }),
              "the prompt has 97 tokens, the context holds 96");
    while (engine.step() != nullptr) engine.check_books();
}

/// Three sessions in one batch; the one in the middle has `mask`. Returns the outputs of all.
std::vector<Delta> run_beside(Engine& engine, const LogitMask& mask, const Speculation& shape) {
    std::vector<Request> requests(3, {.prompt = {40, 41, 42},
                                      .sampling = {.temperature = 0.7f, .ignore_eos = true},
                                      .max_tokens = 30,
                                      .speculation = shape,
                                      .top_logprobs = 0});
    for (size_t i = 0; i < 3; ++i) requests[i].sampling.seed = i;
    requests[1].logit_mask = mask;
    return run_all(engine, requests);
}

void expect_error_beside_others(const LogitMask& mask, size_t tokens, const std::string& message) {
    Engine engine(tiny_config(3), std::make_unique<NonsenseDrafter>(8, 8, 320, 5u));
    const Speculation plain = {.shape = DraftShape::plain};
    const Speculation tree = {.shape = DraftShape::tree, .nodes = 24};
    const std::vector<Delta> healthy = run_beside(engine, {}, plain);
    for (const Speculation& shape : {plain, tree}) {
        const std::vector<Delta> outputs = run_beside(engine, mask, shape);
        expect_same_output(outputs[0], healthy[0]);
        expect_same_output(outputs[2], healthy[2]);
        EXPECT_EQ(outputs[1].finish, FinishReason::error);
        EXPECT_EQ(outputs[1].error, message);
        EXPECT_EQ(outputs[1].logprobs.size(), tokens);
        ASSERT_EQ(outputs[1].ids.size(), tokens);
        EXPECT_TRUE(
            std::equal(outputs[1].ids.begin(), outputs[1].ids.end(), healthy[1].ids.begin()));
    }
    EXPECT_EQ(engine.running(), 0);
    EXPECT_EQ(engine.pool().used(), 0);
}

TEST(Errors, AMaskThatThrowsEndsItsRequestAlone) {
    for (const size_t tokens : {0u, 1u, 9u}) {
        expect_error_beside_others(
            [=](std::span<const int32_t> answer, std::span<uint32_t>) {
                if (answer.size() >= tokens) throw std::runtime_error("grammar\nlost");
            },
            tokens, "grammar lost");
    }
    expect_error_beside_others([](std::span<const int32_t>, std::span<uint32_t>) { throw 7; }, 0,
                               "the logit mask threw something unknown");
}

TEST(Errors, AMaskThatAllowsNothingEndsItsRequestAlone) {
    for (const size_t tokens : {0u, 5u}) {
        expect_error_beside_others(
            [=](std::span<const int32_t> answer, std::span<uint32_t> allowed) {
                if (answer.size() >= tokens) std::ranges::fill(allowed, 0u);
            },
            tokens,
            "no token is possible: none of 320 logits is finite, by the model or by bias, mask "
            "and minimum length (largest -inf)");
    }
}

/// What plain decoding never reaches is no error of a tree either.
TEST(Errors, AnEndBeforeTheFailureComesFirst) {
    Engine engine(tiny_config(1));
    Request request = {.prompt = {50, 51, 50, 51, 50, 51},
                       .sampling = {.ignore_eos = true},
                       .max_tokens = 6,
                       .speculation = {.nodes = 16}};
    request.logit_mask = [](std::span<const int32_t> answer, std::span<uint32_t> allowed) {
        if (answer.size() >= 6) throw std::runtime_error("too far");
        std::ranges::fill(allowed, 0u);
        allowed[1] = 1u << (50 + answer.size() % 2 - 32);  // 50, 51, 50, ...: what ngram drafts
    };
    Delta output = run_all(engine, {request})[0];
    EXPECT_EQ(output.finish, FinishReason::length);
    EXPECT_EQ(output.error, "");
    EXPECT_LT(output.stats.rounds, 6);
    // A stop string in the middle of an accepted path, and a mask that fails behind it.
    const std::string text = output.text;
    ASSERT_GE(text.size(), 6u);
    request.max_tokens = 20;
    request.stop = {text.substr(2, 3)};
    output = run_all(engine, {request})[0];
    EXPECT_EQ(output.finish, FinishReason::stop);
    EXPECT_EQ(output.error, "");
}

}  // namespace
}  // namespace kd
