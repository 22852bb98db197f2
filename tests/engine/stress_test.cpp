// Thousands of rounds of random sessions: arrivals, cancellations, full contexts, a pool that is
// too small. The books balance after each round and every text equals plain decoding's.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/engine_support.h"

namespace kd {
namespace {

constexpr int32_t kVocabulary = 320;

struct Expected {
    Request request;
    std::vector<int32_t> ids;  // by plain decoding alone in a roomy engine
    FinishReason finish = FinishReason::none;
};

/// A fixed set of requests with their plain outputs.
std::vector<Expected> plain_outputs(int32_t context_length) {
    Config config{.model = tiny_model_path(), .context_length = context_length};
    config.speculative_algorithm = SpeculativeAlgorithm::none;
    Engine engine(config);
    std::mt19937 random(17);
    std::vector<Expected> all;
    for (std::vector<int32_t>& prompt : random_prompts(40, 60, kVocabulary, 21)) {
        Request request = {.prompt = std::move(prompt)};
        // Some run until the context is full.
        request.max_tokens = random() % 4 == 0 ? 0 : static_cast<int32_t>(random() % 50) + 1;
        if (random() % 2 == 0) {
            request.sampling = {.temperature = 1.0f, .top_p = 0.95f, .seed = random()};
        }
        Delta output = run_all(engine, {request})[0];
        all.push_back({.request = request, .ids = std::move(output.ids), .finish = output.finish});
    }
    return all;
}

struct Live {
    size_t expected = 0;
    std::vector<int32_t> ids;
};

class Storm {
  public:
    Storm(Engine& engine, const std::vector<Expected>& expected)
        : engine_(engine), expected_(expected) {}

    void round() {
        if (random_() % 3 == 0 && live_.size() < 14) arrive();
        if (random_() % 40 == 0 && !live_.empty()) cancel_one();
        if (engine_.step() == nullptr) arrive();
        engine_.check_books();
        collect();
    }
    void drain() {
        while (engine_.step() != nullptr) engine_.check_books();
        collect();
        EXPECT_TRUE(live_.empty());
    }
    int finished = 0, cancelled = 0, retracted = 0;

  private:
    void arrive() {
        const size_t index = random_() % expected_.size();
        Request request = expected_[index].request;
        constexpr DraftShape kShapes[] = {DraftShape::plain, DraftShape::chain, DraftShape::tree};
        request.speculation = {.shape = kShapes[random_() % 3],
                               .nodes = static_cast<int32_t>(random_() % 16) + 1};
        live_[engine_.submit(std::move(request))] = {.expected = index};
    }
    void cancel_one() {
        auto victim = live_.begin();
        std::advance(victim, random_() % live_.size());
        engine_.cancel(victim->first);
        engine_.check_books();
    }
    void collect() {
        for (auto each = live_.begin(); each != live_.end();) {
            const Delta delta = engine_.poll(each->first);
            Live& live = each->second;
            live.ids.insert(live.ids.end(), delta.ids.begin(), delta.ids.end());
            if (delta.finish == FinishReason::none) {
                ++each;
                continue;
            }
            check_end(live, delta);
            each = live_.erase(each);
        }
    }
    void check_end(const Live& live, const Delta& delta) {
        retracted += delta.stats.retracted;
        const Expected& expected = expected_[live.expected];
        if (delta.finish == FinishReason::abort) {
            ++cancelled;
            // What came before the cancellation is a beginning of the text.
            ASSERT_LE(live.ids.size(), expected.ids.size());
            EXPECT_TRUE(std::equal(live.ids.begin(), live.ids.end(), expected.ids.begin()));
        } else {
            ++finished;
            EXPECT_EQ(live.ids, expected.ids);
            EXPECT_EQ(delta.finish, expected.finish);
        }
    }

    Engine& engine_;
    const std::vector<Expected>& expected_;
    std::map<RequestId, Live> live_;
    std::mt19937 random_{99};
};

TEST(Stress, TenThousandRoundsOfRandomSessions) {
    constexpr int32_t kContext = 112;
    const std::vector<Expected> expected = plain_outputs(kContext);
    Config config{.model = tiny_model_path(),
                  .context_length = kContext,
                  .threads = 1,
                  .max_running_requests = 6,
                  .max_total_tokens = 260,  // six sessions would want up to 672
                  .chunked_prefill_size = 24};
    config.max_draft_tokens = 16;
    Engine engine(config, std::make_unique<NonsenseDrafter>(10, 4, kVocabulary, 31u));
    Storm storm(engine, expected);
    for (int round = 0; round < 10000; ++round) {
        storm.round();
        if (::testing::Test::HasFailure()) break;
    }
    storm.drain();
    EXPECT_GT(storm.finished, 300);
    EXPECT_GT(storm.cancelled, 50);
    EXPECT_GT(storm.retracted, 50);
}

}  // namespace
}  // namespace kd
