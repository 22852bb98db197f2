// Drafts that do not pay are not made, and nothing that is emitted depends on it.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/engine_support.h"

namespace kd {
namespace {

/// Takes longer for each session than any forward of the tiny model.
class SlowNonsense final : public Drafter {
  public:
    explicit SlowNonsense(int32_t& drafts)
        : Drafter(7, 4), nonsense_(7, 4, 320, 3), drafts_(&drafts) {}

    void ingest(std::span<const IngestSegment>) override {}
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) override {
        *drafts_ += static_cast<int32_t>(contexts.size());
        std::this_thread::sleep_for(std::chrono::milliseconds(20) * contexts.size());
        nonsense_.draft(contexts, lattices);
    }

  private:
    NonsenseDrafter nonsense_;
    int32_t* drafts_;  // of single sessions
};

Config config_of_three() {
    Config config;
    config.model = tiny_model_path();
    config.context_length = 256;
    config.threads = 1;
    config.max_running_requests = 3;
    return config;
}

std::vector<Request> three_requests() {
    std::vector<Request> requests;
    for (const auto& prompt : random_prompts(3, 20, 320, 9)) {
        requests.push_back({.prompt = prompt, .sampling = {.ignore_eos = true}, .max_tokens = 200});
    }
    return requests;
}

TEST(DraftGateEngine, StopsDraftsThatDoNotPay) {
    int32_t drafts = 0;
    Engine engine(config_of_three(), std::make_unique<SlowNonsense>(drafts));
    std::vector<Request> requests = three_requests();
    for (Request& request : requests) request.speculation.shape = DraftShape::plain;
    const std::vector<Delta> plain = run_all(engine, requests);
    EXPECT_EQ(drafts, 0);

    for (Request& request : requests) request.speculation = {};
    const std::vector<Delta> budgeted = run_all(engine, requests);
    // A few to learn it, then a probe after 8, 16, 32, 64 rounds.
    EXPECT_GE(drafts, 3 * 2);
    EXPECT_LE(drafts, 3 * 16);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(budgeted[i].ids, plain[i].ids);

    // Who asks for a number of nodes gets them.
    drafts = 0;
    requests.resize(1);
    requests[0].max_tokens = 40;
    requests[0].speculation.nodes = 4;
    const Delta fixed = run_all(engine, requests)[0];
    EXPECT_EQ(fixed.ids, std::vector(plain[0].ids.begin(), plain[0].ids.begin() + 40));
    EXPECT_GE(drafts, fixed.stats.rounds - 1);  // the last token wants no draft
}

TEST(DraftGateEngine, LearnsBesideSessionsWithoutABudget) {
    int32_t drafts = 0;
    Engine engine(config_of_three(), std::make_unique<SlowNonsense>(drafts));
    std::vector<Request> requests = three_requests();
    requests[0].speculation.nodes = 4;
    requests[1].speculation.shape = DraftShape::plain;
    const std::vector<Delta> outputs = run_all(engine, requests);
    const int32_t gated = drafts - outputs[0].stats.rounds;
    EXPECT_LE(gated, 16);
}

}  // namespace
}  // namespace kd
