// Requests, their ends and their errors.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/engine_support.h"

namespace kd {
namespace {

Config tiny_config() {
    return {.model = tiny_model_path(), .context_length = 64, .threads = 1};
}

TEST(Engine, RefusesWhatItCannotServe) {
    Engine engine(tiny_config());
    const auto submit_error = [&](Request request) {
        return error_of([&] { engine.submit(std::move(request)); });
    };
    EXPECT_EQ(submit_error({}), "the prompt is empty");
    EXPECT_EQ(submit_error({.prompt = std::vector<int32_t>(64, 5)}),
              "the prompt has 64 tokens, the context holds 64");
    EXPECT_EQ(submit_error({.prompt = {5, 320}}), "token 320 is outside the vocabulary of 320");
    EXPECT_EQ(submit_error({.prompt = {-1}}), "token -1 is outside the vocabulary of 320");
    EXPECT_EQ(submit_error({.prompt = {5}, .max_tokens = -2}), "max tokens -2 is negative");
    EXPECT_EQ(submit_error({.prompt = {5}, .stop = {""}}), "a stop string is empty");
    EXPECT_EQ(submit_error({.prompt = {5}, .speculation = {.nodes = 129}}),
              "speculative num draft tokens 129 is outside 1..128");
    EXPECT_EQ(submit_error({.prompt = {5}, .speculation = {.nodes = 64}}),
              "speculative num draft tokens 64 is beyond the 32 this engine was loaded for");
    EXPECT_NE(submit_error({.prompt = {5}, .sampling = {.temperature = -1}}), "no error");
    EXPECT_EQ(engine.step(), nullptr);
    engine.check_books();
    EXPECT_EQ(error_of([&] { engine.poll(1); }), "no request 1");
}

TEST(Engine, RefusesBadSettings) {
    const auto load_error = [](Config config) { return error_of([&] { Engine engine(config); }); };
    Config config = tiny_config();
    config.context_length = 4096;
    EXPECT_EQ(load_error(config), "context length 4096 is beyond the model's 512");
    config = tiny_config();
    config.max_draft_tokens = 0;
    EXPECT_EQ(load_error(config), "speculative num draft tokens 0 is outside 1..128");
    config = tiny_config();
    config.model = "no-such-model";
    EXPECT_EQ(load_error(config),
              "model \"no-such-model\" is neither a known name (smollm2) nor a file or folder");
    config = tiny_config();
    config.speculative_algorithm = SpeculativeAlgorithm::oracle;
    EXPECT_NE(load_error(config).find("needs a profile"), std::string::npos);
    config.speculative_draft_model_path = write_temporary("bad.json", R"({"hit": [[0.7, 0.6]]})");
    EXPECT_NE(load_error(config).find("above 1"), std::string::npos);
    config.speculative_algorithm = SpeculativeAlgorithm::ngram;
    EXPECT_NE(load_error(config).find("ngram drafter takes no"), std::string::npos);
}

TEST(Engine, EndsAtMaxTokensAndAtTheContext) {
    Engine engine(tiny_config());
    const std::vector<Delta> outputs =
        run_all(engine, {{.prompt = {7, 8, 9}, .max_tokens = 5, .speculation = {.nodes = 8}},
                         {.prompt = {7, 8, 9}, .speculation = {.nodes = 8}},
                         {.prompt = std::vector<int32_t>(63, 7), .speculation = {.nodes = 8}},
                         {.prompt = {9}, .max_tokens = 1, .speculation = {.nodes = 8}}});
    EXPECT_EQ(outputs[0].ids.size(), 5u);
    EXPECT_EQ(outputs[0].finish, FinishReason::length);
    if (outputs[1].finish == FinishReason::length) {
        EXPECT_EQ(outputs[1].ids.size(), 61u);
    }
    EXPECT_EQ(outputs[2].ids.size(), 1u);
    EXPECT_EQ(outputs[3].ids.size(), 1u);
    EXPECT_EQ(outputs[3].stats.nodes, 1);  // no row for a draft that could not be emitted
}

TEST(Engine, StopStringsEndTheTextBeforeThem) {
    Engine engine(tiny_config());
    const Request request = {.prompt = {30, 31, 32}, .max_tokens = 40};
    const std::string text = run_all(engine, {request})[0].text;
    ASSERT_GT(text.size(), 12u);
    Request stopped = request;
    stopped.stop = {"never in the text", text.substr(6, 4)};
    const Delta output = run_all(engine, {stopped})[0];
    EXPECT_EQ(output.text, text.substr(0, text.find(text.substr(6, 4))));
    EXPECT_EQ(output.finish, FinishReason::stop);
}

TEST(Engine, StreamedTextIsTheWholeText) {
    Engine engine(tiny_config());
    const Request request = {.prompt = {50, 51}, .max_tokens = 40, .speculation = {.nodes = 4}};
    const Delta whole = run_all(engine, {request})[0];
    const RequestId id = engine.submit(request);
    std::string text;
    std::vector<int32_t> ids;
    for (FinishReason finish = FinishReason::none; finish == FinishReason::none;) {
        engine.step();
        const Delta delta = engine.poll(id);
        text += delta.text;
        ids.insert(ids.end(), delta.ids.begin(), delta.ids.end());
        finish = delta.finish;
    }
    EXPECT_EQ(text, whole.text);
    EXPECT_EQ(ids, whole.ids);
}

TEST(Engine, CancelGivesEverythingBack) {
    Config config = tiny_config();
    config.max_running_requests = 2;
    Engine engine(config);
    const RequestId running = engine.submit({.prompt = {5, 6, 7}, .speculation = {.nodes = 4}});
    const RequestId waiting = engine.submit({.prompt = {5, 6}, .speculation = {.nodes = 4}});
    const RequestId third = engine.submit({.prompt = {5}, .max_tokens = 3});
    engine.step();
    engine.step();
    engine.cancel(running);
    engine.cancel(third);
    engine.cancel(12345);  // unknown: nothing happens
    engine.check_books();
    EXPECT_EQ(engine.poll(running).finish, FinishReason::abort);
    EXPECT_EQ(engine.poll(third).finish, FinishReason::abort);
    while (engine.step() != nullptr) engine.check_books();
    EXPECT_NE(engine.poll(waiting).finish, FinishReason::abort);
    EXPECT_EQ(engine.running(), 0);
}

TEST(Engine, RoundStatsAddUp) {
    Engine engine(tiny_config());
    const RequestId id =
        engine.submit({.prompt = {5, 6, 7, 5, 6}, .max_tokens = 20, .speculation = {.nodes = 6}});
    int32_t emitted = 0, nodes = 0, rounds = 0;
    while (const RoundStats* stats = engine.step()) {
        emitted += stats->emitted;
        nodes += stats->nodes;
        rounds += stats->decoding;
        EXPECT_GE(stats->total_s, stats->verify_s);
    }
    const Delta output = engine.poll(id);
    EXPECT_EQ(output.stats.rounds, rounds);
    EXPECT_EQ(output.stats.nodes, nodes);
    EXPECT_GE(emitted, output.stats.tokens);  // the last round may accept beyond the end
    EXPECT_EQ(output.stats.tokens, static_cast<int32_t>(output.ids.size()));
}

}  // namespace
}  // namespace kd
