// Thousands of rounds of random sessions: arrivals, cancellations, full contexts, a pool that is
// too small, shared prefixes, rows that move. The books balance after each round and every text
// equals plain decoding's, every logprob to the bit.
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <random>

#include "support/engine_support.h"

namespace kd {
namespace {

constexpr int32_t kVocabulary = 320;

struct Expected {
    Request request;
    Delta output;  // by plain decoding alone in a roomy engine without a cache
};

/// A fixed set of requests with their plain outputs.
std::vector<Expected> plain_outputs(int32_t context_length) {
    Config config{.model = tiny_model_path(), .context_length = context_length};
    config.speculative_algorithm = SpeculativeAlgorithm::none;
    config.radix_cache = false;
    Engine engine(config);
    std::mt19937 random(17);
    std::vector<Expected> all;
    for (std::vector<int32_t>& prompt : sharing_prompts(40, 40, kVocabulary, 21)) {
        Request request = {.prompt = std::move(prompt)};
        // Some run until the context is full.
        request.max_tokens = random() % 4 == 0 ? 0 : static_cast<int32_t>(random() % 50) + 1;
        if (random() % 2 == 0) {
            request.sampling = {.temperature = 1.0f, .top_p = 0.95f, .seed = random()};
        }
        request.top_logprobs = static_cast<int32_t>(random() % 3) - 1;
        if (random() % 8 == 0) request.prompt_logprobs = 1;
        if (all.size() % 3 == 2) {  // a conversation goes on
            const Expected& before = all[random() % all.size()];
            std::vector<int32_t> longer = before.request.prompt;
            longer.insert(longer.end(), before.output.ids.begin(), before.output.ids.end());
            longer.push_back(request.prompt[0]);
            if (std::ssize(longer) < context_length - 10) request.prompt = std::move(longer);
        }
        all.push_back({.request = request, .output = run_all(engine, {request})[0]});
    }
    return all;
}

struct Live {
    size_t expected = 0;
    Delta output;
};

class Storm {
  public:
    Storm(Engine& engine, const std::vector<Expected>& expected, bool relocates)
        : engine_(engine), expected_(expected), relocates_(relocates) {}

    void round() {
        if (random_() % 3 == 0 && live_.size() < 14) arrive();
        if (random_() % 40 == 0 && !live_.empty()) cancel_one();
        if (relocates_ && random_() % 4 == 0) {
            engine_.relocate(static_cast<int32_t>(random_() % 64) + 16);
            engine_.check_books();
        }
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
    int reused_inside_pages = 0;  // sessions whose cached prefix was no number of whole pages

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
            Live& live = each->second;
            append(live.output, engine_.poll(each->first));
            if (live.output.finish == FinishReason::none) {
                ++each;
                continue;
            }
            check_end(live);
            each = live_.erase(each);
        }
    }
    void check_end(const Live& live) {
        const SessionStats& stats = live.output.stats;
        retracted += stats.retracted;
        reused_inside_pages += stats.reused_tokens % engine_.pool().page_size() != 0 ? 1 : 0;
        const Delta& expected = expected_[live.expected].output;
        if (live.output.finish == FinishReason::abort) {
            ++cancelled;
            // What came before the cancellation is a beginning of the text.
            const std::vector<int32_t>& ids = live.output.ids;
            ASSERT_LE(ids.size(), expected.ids.size());
            EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.ids.begin()));
        } else {
            ++finished;
            expect_same_output(live.output, expected);
        }
    }

    Engine& engine_;
    const std::vector<Expected>& expected_;
    bool relocates_;
    std::map<RequestId, Live> live_;
    std::mt19937 random_{99};
};

struct StormCase {
    const char* name;
    int32_t page_size;
    bool radix_cache;
    bool relocates;
    int32_t kv_extent;
    double kv_evict_batch;
    int32_t max_total_tokens;  // six sessions would want up to 672
};

void PrintTo(const StormCase& test, std::ostream* out) {
    *out << test.name;
}

class Stress : public ::testing::TestWithParam<StormCase> {};

TEST_P(Stress, TenThousandRoundsOfRandomSessions) {
    constexpr int32_t kContext = 112;
    const std::vector<Expected> expected = plain_outputs(kContext);
    const StormCase& test = GetParam();
    Config config{.model = tiny_model_path(),
                  .context_length = kContext,
                  .threads = 1,
                  .max_running_requests = 6,
                  .max_total_tokens = test.max_total_tokens,
                  .chunked_prefill_size = 24,
                  .page_size = test.page_size,
                  .radix_cache = test.radix_cache,
                  .kv_extent = test.kv_extent,
                  .kv_evict_batch = test.kv_evict_batch};
    config.max_draft_tokens = 16;
    Engine engine(config, std::make_unique<NonsenseDrafter>(10, 4, kVocabulary, 31u));
    Storm storm(engine, expected, test.relocates);
    for (int round = 0; round < 10000; ++round) {
        storm.round();
        if (::testing::Test::HasFailure()) break;
    }
    storm.drain();
    EXPECT_GT(storm.finished, 300);
    EXPECT_GT(storm.cancelled, 50);
    EXPECT_GT(storm.retracted, 50);
    EXPECT_EQ(engine.pool().used(), 0);
    // All of it happened: what did not cannot have gone well.
    const KvPoolTotals& totals = engine.pool().totals();
    if (test.radix_cache) {
        EXPECT_GT(totals.reused, 10000);
        EXPECT_GT(totals.evicted, 10000);
    } else {
        EXPECT_EQ(totals.reused + engine.pool().cached(), 0);
    }
    if (test.radix_cache && test.page_size > 1) {
        EXPECT_GT(storm.reused_inside_pages, 10);
    }
    if (test.kv_extent > 1) {
        EXPECT_GT(totals.trimmed, 500);
    }
    if (test.relocates) {
        EXPECT_GT(totals.moved, 100);
    }
}

INSTANTIATE_TEST_SUITE_P(Pools, Stress,
                         ::testing::Values(StormCase{"plain", 1, false, false, 0, 0.1, 260},
                                           StormCase{"cached", 1, true, false, 64, 0.1, 260},
                                           StormCase{"cached_moving", 1, true, true, 16, 0.3, 260},
                                           StormCase{"pages_moving", 16, true, true, 64, 0, 304},
                                           StormCase{"tight", 16, true, true, 64, 0.1, 112}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kd
