// Penalties, bias, minimum length, masks and logprobs, each alone and all together: trees and
// chains give what plain decoding gives, everything a user sees of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/engine_support.h"

namespace kd {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
#ifdef __SANITIZE_ADDRESS__
constexpr int32_t kPrompts = 15;
#else
constexpr int32_t kPrompts = 50;
#endif

struct Feature {
    const char* name = "";
    std::function<void(Request&, size_t index)> ask;
};

void forbid_unless(std::span<uint32_t> allowed, const auto& wanted) {
    for (size_t token = 0; token < allowed.size() * 32; ++token) {
        if (!wanted(static_cast<int32_t>(token))) allowed[token / 32] &= ~(1u << token % 32);
    }
}

/// Tokens of two classes by turns; which one begins depends on the index.
LogitMask alternating(size_t index) {
    return [index](std::span<const int32_t> answer, std::span<uint32_t> allowed) {
        const auto turn = static_cast<int32_t>((answer.size() + index) % 2);
        forbid_unless(allowed, [&](int32_t token) { return token / 3 % 2 == turn; });
    };
}

/// No token whose distance to the one before is a multiple of three.
LogitMask away_from_the_last() {
    return [](std::span<const int32_t> answer, std::span<uint32_t> allowed) {
        if (answer.empty()) return;
        forbid_unless(allowed, [&](int32_t token) { return (token - answer.back()) % 3 != 0; });
    };
}

LogitMask one_of_seven() {
    return [](std::span<const int32_t>, std::span<uint32_t> allowed) {
        forbid_unless(allowed, [](int32_t token) { return token >= 100 && token < 107; });
    };
}

/// stop_bias makes ends likely, so that minimum lengths and ignored ends show.
std::vector<Feature> features(const std::vector<int32_t>& stop_ids, float stop_bias) {
    const auto likely_stop = [=](Request& request) {
        for (const int32_t token : stop_ids) {
            request.logit_bias.push_back({.token = token, .bias = stop_bias});
        }
    };
    std::vector<Feature> all = {
        {"repetition", [](Request& r, size_t) { r.sampling.repetition_penalty = 1.3f; }},
        {"presence",
         [](Request& r, size_t i) { r.sampling.presence_penalty = i % 4 == 0 ? -0.6f : 1.5f; }},
        {"frequency",
         [](Request& r, size_t i) { r.sampling.frequency_penalty = i % 4 == 1 ? -0.2f : 0.9f; }},
        {"bias",
         [](Request& r, size_t i) {
             r.logit_bias = {{40 + static_cast<int32_t>(i), 3.0f}, {90, kForbidden}, {91, -1.5f}};
         }},
        {"min tokens",
         [=](Request& r, size_t i) {
             likely_stop(r);
             r.sampling.min_tokens = static_cast<int32_t>(i % 9);
         }},
        {"ignore eos",
         [=](Request& r, size_t) {
             likely_stop(r);
             r.sampling.ignore_eos = true;
         }},
        {"path mask",
         [](Request& r, size_t i) {
             r.logit_mask = i % 2 == 0 ? alternating(i / 2) : away_from_the_last();
         }},
        {"small mask", [](Request& r, size_t) { r.logit_mask = one_of_seven(); }},
        {"logprobs",
         [](Request& r, size_t i) {
             r.top_logprobs = static_cast<int32_t>(i % 6);
             r.prompt_logprobs = static_cast<int32_t>(i % 4) - 1;
         }},
    };
    const std::vector<Feature> each = all;
    all.push_back({"all together", [each](Request& r, size_t i) {
                       for (const Feature& feature : each) {
                           const std::string name = feature.name;
                           const bool other_mask = name == "small mask" || name == "ignore eos";
                           const std::vector<LogitBias> before = r.logit_bias;
                           if (!other_mask || i % 5 == 0) feature.ask(r, i);
                           r.logit_bias = name == "min tokens" ? r.logit_bias : before;
                       }
                   }});
    return all;
}

std::vector<Request> requests_of(const Feature& feature,
                                 const std::vector<std::vector<int32_t>>& prompts,
                                 float temperature, int32_t max_tokens) {
    std::vector<Request> requests;
    for (size_t i = 0; i < prompts.size(); ++i) {
        Request request = {.prompt = prompts[i],
                           .sampling = {.temperature = temperature, .seed = 300 + i},
                           .max_tokens = max_tokens,
                           .speculation = {.shape = DraftShape::plain}};
        feature.ask(request, i);
        requests.push_back(std::move(request));
    }
    return requests;
}

/// The same requests by trees and chains, told what will follow.
std::vector<Request> speculative(std::vector<Request> requests, const std::vector<Delta>& plain) {
    constexpr Speculation kShapes[] = {{.shape = DraftShape::tree, .nodes = 16},
                                       {.shape = DraftShape::tree, .nodes = 4},
                                       {.shape = DraftShape::chain, .nodes = 6}};
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].speculation = kShapes[i % std::size(kShapes)];
        requests[i].known_continuation = plain[i].ids;
    }
    return requests;
}

struct Tally {
    int64_t tokens = 0, rounds = 0, retracted = 0;
};

void expect_equal(Engine& engine, const std::vector<Request>& requests,
                  const std::vector<Delta>& plain, Tally& tally) {
    const std::vector<Delta> outputs = run_all(engine, speculative(requests, plain));
    for (size_t i = 0; i < outputs.size(); ++i) {
        SCOPED_TRACE(i);
        expect_same_output(outputs[i], plain[i]);
        tally.tokens += outputs[i].stats.tokens;
        tally.rounds += outputs[i].stats.rounds;
        tally.retracted += outputs[i].stats.retracted;
    }
}

Config oracle(Config config) {
    config.speculative_algorithm = SpeculativeAlgorithm::oracle;
    const std::vector<float> row = {0.7f, 0.15f, 0.05f};
    config.speculative_draft_model_path =
        oracle_profile("rules.json", std::vector<std::vector<float>>(31, row));
    return config;
}

Config plain_config(const std::string& model) {
    Config config{.model = model, .context_length = 128, .max_running_requests = 8};
    config.speculative_algorithm = SpeculativeAlgorithm::none;
    return config;
}

TEST(Rules, EachAndAllOnFiftyPromptsOfTheTinyModel) {
    const std::vector<std::vector<int32_t>> prompts = random_prompts(kPrompts, 40, 320, 51);
    Engine alone(plain_config(tiny_model_path()));
    Config config{.model = tiny_model_path(), .context_length = 128, .max_running_requests = 4};
    config.chunked_prefill_size = 24;
    Engine ngram(config);
    Engine told(oracle(config));
    config.max_total_tokens = 150;  // four sessions would want up to 256: retractions
    Engine nonsense(config, std::make_unique<NonsenseDrafter>(10, 6, 320, 13u));
    Tally good, poor;
    for (const Feature& feature : features(alone.tokenizer().stop_ids(), 5.0f)) {
        for (const float temperature : {0.0f, 0.8f}) {
            SCOPED_TRACE(testing::Message() << feature.name << ", temperature " << temperature);
            const std::vector<Request> requests = requests_of(feature, prompts, temperature, 24);
            const std::vector<Delta> plain = run_all(alone, requests);
            expect_equal(told, requests, plain, good);
            expect_equal(nonsense, requests, plain, poor);
            Tally ignored;
            expect_equal(ngram, requests, plain, ignored);
        }
    }
    // Drafts were accepted, so the rules acted inside trees, and sessions came back from waiting.
    EXPECT_GT(good.tokens, 2 * good.rounds);
    EXPECT_GT(poor.retracted, kPrompts);
}

/// The rules do something: a feature that is ignored would pass the test above.
TEST(Rules, EachChangesTheText) {
    const std::vector<std::vector<int32_t>> prompts = random_prompts(12, 40, 320, 52);
    Engine engine(plain_config(tiny_model_path()));
    const std::vector<int32_t>& stop_ids = engine.tokenizer().stop_ids();
    const std::vector<Request> bare = requests_of({"", [](Request&, size_t) {}}, prompts, 0.8f, 24);
    const std::vector<Delta> without = run_all(engine, bare);
    for (const Feature& feature : features(stop_ids, 5.0f)) {
        const std::vector<Delta> with = run_all(engine, requests_of(feature, prompts, 0.8f, 24));
        int changed = 0;
        for (size_t i = 0; i < with.size(); ++i) {
            changed += with[i].ids != without[i].ids ? 1 : 0;
            EXPECT_EQ(with[i].logprobs.size(), bare[i].top_logprobs >= 0 ||
                                                       feature.name == std::string("logprobs") ||
                                                       feature.name == std::string("all together")
                                                   ? with[i].ids.size()
                                                   : 0u);
        }
        if (feature.name == std::string("logprobs")) {
            EXPECT_EQ(changed, 0);
        } else {
            EXPECT_GT(changed, 2) << feature.name;
        }
    }
}

TEST(Rules, MasksHold) {
    Engine engine(oracle({.model = tiny_model_path(), .context_length = 128}));
    for (const float temperature : {0.0f, 1.5f}) {
        Request request = {.prompt = {30, 31, 32},
                           .sampling = {.temperature = temperature, .ignore_eos = true},
                           .max_tokens = 40,
                           .speculation = {.nodes = 12},
                           .logit_mask = alternating(0)};
        const Delta output = run_all(engine, {request})[0];
        ASSERT_EQ(output.ids.size(), 40u);
        for (size_t i = 0; i < output.ids.size(); ++i) {
            EXPECT_EQ(static_cast<size_t>(output.ids[i] / 3 % 2), i % 2) << i;
        }
        request.logit_mask = one_of_seven();
        const Delta seven = run_all(engine, {request})[0];
        for (const int32_t token : seven.ids) {
            EXPECT_TRUE(token >= 100 && token < 107) << token;
        }
    }
}

TEST(Rules, MinTokensHoldsBackTheEndAndIgnoreEosGoesOn) {
    Engine engine({.model = tiny_model_path(), .context_length = 128});
    const std::vector<int32_t>& stop_ids = engine.tokenizer().stop_ids();
    ASSERT_FALSE(stop_ids.empty());
    Request request = {.prompt = {60, 61},
                       .max_tokens = 20,
                       .speculation = {.nodes = 8},
                       .logit_bias = {{.token = stop_ids[0], .bias = 100.0f}}};
    for (const int32_t min_tokens : {0, 1, 2, 7, 20}) {
        request.sampling.min_tokens = min_tokens;
        const Delta output = run_all(engine, {request})[0];
        // The end itself is token number min_tokens + 1, where there is room for it.
        const int32_t expected = std::min(min_tokens + 1, 20);
        EXPECT_EQ(output.stats.tokens, expected);
        EXPECT_EQ(output.finish, min_tokens < 20 ? FinishReason::stop : FinishReason::length);
    }
    request.sampling.min_tokens = 3;
    request.sampling.ignore_eos = true;
    const Delta output = run_all(engine, {request})[0];
    EXPECT_EQ(output.finish, FinishReason::length);
    ASSERT_EQ(output.ids.size(), 20u);
    EXPECT_EQ(std::ranges::count(output.ids, stop_ids[0]), 17);
    EXPECT_EQ(output.text.find("<|"), std::string::npos);
}

TEST(Rules, StopStringsEndAnAnswerThatIgnoresEos) {
    Engine engine({.model = tiny_model_path(), .context_length = 128});
    Request request = {.prompt = {30, 31, 32}, .sampling = {.ignore_eos = true}, .max_tokens = 40};
    const std::string text = run_all(engine, {request})[0].text;
    ASSERT_GT(text.size(), 12u);
    request.stop = {text.substr(6, 4)};
    const Delta output = run_all(engine, {request})[0];
    EXPECT_EQ(output.finish, FinishReason::stop);
    EXPECT_EQ(output.text, text.substr(0, text.find(text.substr(6, 4))));
}

/// Short texts of several kinds.
std::vector<std::vector<int32_t>> short_texts(const Tokenizer& tokenizer, size_t count) {
    const std::vector<std::string> starts = {
        "The river runs", "def add(a, b):", "1, 2, 3, 4,",     "Once upon a time", "La mer est",
        "| name | value", "Q: Why?\nA:",    "the the the the", "import numpy as",  "{\"id\": 1,"};
    const std::vector<std::string> ends = {"", " and", "\n", " of", " 7"};
    std::vector<std::vector<int32_t>> prompts;
    for (size_t i = 0; i < count; ++i) {
        prompts.push_back(tokenizer.encode(
            starts[i % starts.size()] + ends[i / starts.size() % ends.size()], false));
    }
    return prompts;
}

TEST(RulesSmolLm2, EachAndAllOnFiftyPrompts) {
    const std::optional<std::string> model = smollm2_path();
    if (!model) GTEST_SKIP() << "SmolLM2 is not in the cache folder";
    Engine alone(plain_config(*model));
    Config config{.model = *model, .context_length = 128, .max_running_requests = 8};
    Engine told(oracle(config));
    const std::vector<std::vector<int32_t>> prompts = short_texts(alone.tokenizer(), 50);
    const std::vector<Feature> all = features(alone.tokenizer().stop_ids(), 12.0f);
    const Feature by_turns = {"by turns", [&](Request& request, size_t i) {
                                  all[i % all.size()].ask(request, i);
                                  request.sampling.temperature = i % 20 < 10 ? 0.8f : 0.0f;
                              }};
    Tally tally;
    for (const Feature& feature : {by_turns, all.back()}) {
        const std::vector<Request> requests = requests_of(feature, prompts, 0.8f, 8);
        const std::vector<Delta> plain = run_all(alone, requests);
        expect_equal(told, requests, plain, tally);
    }
    EXPECT_GT(tally.tokens, 3 * tally.rounds / 2);
}

}  // namespace
}  // namespace kd
