// The prefix cache under the engine: what is taken from it, what is left there, and that no output
// changes.
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "engine/cost_measure.h"
#include "engine/service.h"
#include "models/ngram_drafter.h"
#include "support/engine_support.h"

namespace kd {
namespace {

constexpr int32_t kVocabulary = 320;

Config tiny_config(int32_t page_size = 1) {
    Config config{.model = tiny_model_path(), .context_length = 256, .threads = 1};
    config.page_size = page_size;
    config.max_draft_tokens = 8;
    return config;
}

Config without_cache(Config config) {
    config.radix_cache = false;
    return config;
}

std::vector<int32_t> random_tokens(int32_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) {
        tokens.push_back(3 + static_cast<int32_t>(random() % (kVocabulary - 3)));
    }
    return tokens;
}

std::vector<int32_t> joined(std::vector<int32_t> tokens, const std::vector<int32_t>& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
}

/// Fixed trees, so that nothing is measured.
Request request_of(std::vector<int32_t> prompt, int32_t max_tokens = 12) {
    return {.prompt = std::move(prompt),
            .sampling = {.ignore_eos = true},
            .max_tokens = max_tokens,
            .speculation = {.nodes = 6},
            .top_logprobs = 2};
}

/// `count` prompts of `tail` tokens each behind one of `shared` tokens.
std::vector<Request> sharing_requests(int32_t count, int32_t shared, int32_t tail) {
    const std::vector<int32_t> prefix = random_tokens(shared, 5);
    std::vector<Request> requests;
    for (int32_t i = 0; i < count; ++i) {
        const auto seed = 100 + static_cast<uint32_t>(i);
        requests.push_back(request_of(joined(prefix, random_tokens(tail, seed))));
    }
    return requests;
}

/// Slots of whole pages of `tokens`.
int32_t in_pages(size_t tokens, int32_t page_size) {
    return static_cast<int32_t>(tokens) / page_size * page_size;
}

class PrefixCache : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(PageSizes, PrefixCache, ::testing::Values(1, 16));

TEST_P(PrefixCache, TheNextTurnOfAConversationStartsBehindTheLast) {
    const int32_t page = GetParam();
    Engine engine(tiny_config(page)), plain(without_cache(tiny_config(page)));
    std::vector<int32_t> prompt = random_tokens(37, 1);
    int32_t known = 0;
    for (int turn = 0; turn < 4; ++turn) {
        const Request request = request_of(prompt);
        const Delta output = run_all(engine, {request})[0];
        const Delta expected = run_all(plain, {request})[0];
        expect_same_output(output, expected);
        EXPECT_EQ(output.stats.reused_tokens, known);
        EXPECT_EQ(output.stats.prefill_rows, static_cast<int32_t>(prompt.size()) - 1 - known);
        EXPECT_EQ(expected.stats.reused_tokens, 0);
        // The last token's row was never computed.
        known = in_pages(prompt.size() + output.ids.size() - 1, page);
        prompt = joined(joined(prompt, output.ids), random_tokens(9, 2));
    }
    EXPECT_GT(known, 0);
    EXPECT_EQ(plain.pool().cached(), 0);
}

TEST_P(PrefixCache, PrefixesEndInTheMiddleOfPages) {
    const int32_t page = GetParam();
    Engine engine(tiny_config(page)), plain(without_cache(tiny_config(page)));
    const std::vector<int32_t> prompt = random_tokens(64, 3);
    run_all(engine, {request_of(prompt)});
    for (const int32_t shared : {63, 50, 48, 47, 16, 15, 1}) {
        std::vector<int32_t> begun(prompt.begin(), prompt.begin() + shared);
        begun.push_back(prompt[static_cast<size_t>(shared)] == 7 ? 8 : 7);
        begun.push_back(9);
        const Request request = request_of(begun);
        const Delta output = run_all(engine, {request})[0];
        EXPECT_EQ(output.stats.reused_tokens, shared) << "page " << page;
        expect_same_output(output, run_all(plain, {request})[0]);
    }
    // The copies left their sources as they were.
    const Delta again = run_all(engine, {request_of(prompt)})[0];
    EXPECT_EQ(again.stats.reused_tokens, 63);
    expect_same_output(again, run_all(plain, {request_of(prompt)})[0]);
}

TEST_P(PrefixCache, WhatIsWholeNeedsNoPrompt) {
    Engine engine(tiny_config(GetParam()));
    const Request request = request_of(random_tokens(65, 4));
    const Delta first = run_all(engine, {request})[0];
    const RequestId id = engine.submit(request);
    const RoundStats* round = engine.step();
    ASSERT_NE(round, nullptr);
    EXPECT_EQ(round->reused_rows, 64);
    EXPECT_EQ(round->prefill_rows, 0);
    EXPECT_EQ(round->decoding, 1);
    while (engine.step() != nullptr) engine.check_books();
    const Delta second = engine.poll(id);
    expect_same_output(second, first);
    EXPECT_EQ(second.stats.prefill_rows, 0);
    EXPECT_EQ(second.stats.prefill_s, 0);
}

TEST_P(PrefixCache, SessionsThatComeTogetherComputeTheirPrefixOnce) {
    constexpr int32_t kShared = 160, kTail = 7, kChunk = 32;
    Config config = tiny_config(GetParam());
    config.max_running_requests = 8;
    config.chunked_prefill_size = kChunk;
    Engine engine(config), plain(without_cache(config));
    const std::vector<Request> requests = sharing_requests(8, kShared, kTail);
    const std::vector<Delta> outputs = run_all(engine, requests);
    const std::vector<Delta> expected = run_all(plain, requests);
    int32_t computed = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
        expect_same_output(outputs[i], expected[i]);
        computed += outputs[i].stats.prefill_rows;
        if (i > 0) {
            // A chunk may have begun before the prefix was there.
            EXPECT_GE(outputs[i].stats.reused_tokens, kShared - kChunk);
            EXPECT_EQ(outputs[i].stats.reused_tokens + outputs[i].stats.prefill_rows,
                      outputs[i].stats.prompt_tokens - 1);
        }
    }
    EXPECT_GE(computed, kShared + 8 * (kTail - 1));
    // While the first one ends, one chunk is shared with those behind it.
    EXPECT_LE(computed, kShared + 8 * kTail + kChunk);
}

TEST_P(PrefixCache, ChoicesShareTheirPrompt) {
    Config config = tiny_config(GetParam());
    config.max_running_requests = 3;
    Engine engine(config);
    Request request = request_of(random_tokens(97, 6));
    request.sampling.temperature = 1;
    const std::vector<RequestId> ids = engine.submit_n(request, 5);
    while (engine.step() != nullptr) engine.check_books();
    int32_t reusing = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
        const Delta choice = engine.poll(ids[i]);
        // What a chunk had begun before the prompt was there is not reused.
        EXPECT_EQ(choice.stats.reused_tokens + choice.stats.prefill_rows, 96);
        reusing += choice.stats.reused_tokens > 0 ? 1 : 0;
        Request alone = request;
        alone.sampling.seed += i;
        Engine plain(without_cache(config));
        expect_same_output(choice, run_all(plain, {alone})[0]);
    }
    EXPECT_EQ(reusing, 4);
}

TEST_P(PrefixCache, ACancelledRequestLeavesWhatItComputed) {
    const int32_t page = GetParam();
    Config config = tiny_config(page);
    config.chunked_prefill_size = 24;
    Engine engine(config), plain(without_cache(config));
    const Request request = request_of(random_tokens(100, 7));
    const RequestId cancelled = engine.submit(request);
    for (int i = 0; i < 3; ++i) engine.step();
    engine.cancel(cancelled);
    engine.check_books();
    EXPECT_EQ(engine.pool().used(), 0);
    EXPECT_EQ(engine.pool().cached(), in_pages(72, page));
    const Delta output = run_all(engine, {request})[0];
    EXPECT_EQ(output.stats.reused_tokens, in_pages(72, page));
    expect_same_output(output, run_all(plain, {request})[0]);
}

TEST_P(PrefixCache, AFailingMaskLeavesWhatCameBefore) {
    Engine engine(tiny_config(GetParam())), plain(without_cache(tiny_config(GetParam())));
    Request failing = request_of(random_tokens(40, 8), 30);
    failing.logit_mask = [](std::span<const int32_t> answer, std::span<uint32_t>) {
        if (answer.size() == 9) throw std::runtime_error("the mask\nfails");
    };
    for (int i = 0; i < 2; ++i) {
        const Delta output = run_all(engine, {failing})[0];
        EXPECT_EQ(output.finish, FinishReason::error);
        expect_same_output(output, run_all(plain, {failing})[0]);
    }
    Request whole = failing;
    whole.logit_mask = {};
    const Delta output = run_all(engine, {whole})[0];
    EXPECT_EQ(output.stats.reused_tokens, 39);
    expect_same_output(output, run_all(plain, {whole})[0]);
}

TEST_P(PrefixCache, ScoresComputeEveryRow) {
    Engine engine(tiny_config(GetParam())), plain(without_cache(tiny_config(GetParam())));
    Request request = request_of(random_tokens(50, 9));
    request.prompt_logprobs = 3;
    for (const bool prompt_only : {false, true, true}) {
        request.prompt_only = prompt_only;
        const Delta output = run_all(engine, {request})[0];
        EXPECT_EQ(output.prompt_logprobs.size(), 49u);
        EXPECT_EQ(output.stats.reused_tokens, 0);
        EXPECT_EQ(output.stats.prefill_rows, 49);
        expect_same_output(output, run_all(plain, {request})[0]);
    }
    // But they leave them to others.
    EXPECT_EQ(run_all(engine, {request_of(request.prompt)})[0].stats.reused_tokens,
              in_pages(49, GetParam()));
}

TEST(CachedPrompts, APromptThatIsOnlyReadEndsThoughItIsKnown) {
    Engine engine(tiny_config());
    Request request = {.prompt = random_tokens(30, 10), .prompt_only = true};
    EXPECT_EQ(run_all(engine, {request})[0].stats.prefill_rows, 29);
    const std::vector<Delta> outputs = run_all(engine, {request, request});
    for (const Delta& output : outputs) {
        EXPECT_EQ(output.finish, FinishReason::length);
        EXPECT_EQ(output.stats.prefill_rows, 1);
        EXPECT_EQ(output.stats.reused_tokens, 28);
    }
}

TEST_P(PrefixCache, RetractedSessionsStartFromTheCacheAgain) {
    Config config = tiny_config(GetParam());
    config.max_running_requests = 2;
    config.max_total_tokens = 256;
    Engine engine(config), plain(without_cache(tiny_config(GetParam())));
    std::vector<Request> requests = sharing_requests(2, 64, 26);
    requests[0].max_tokens = 120;
    requests[1].max_tokens = 110;
    const std::vector<Delta> outputs = run_all(engine, requests);
    for (size_t i = 0; i < outputs.size(); ++i) {
        expect_same_output(outputs[i], run_all(plain, {requests[i]})[0]);
    }
    EXPECT_GT(outputs[1].stats.retracted, 0);
    EXPECT_GT(outputs[1].stats.reused_tokens, 0);  // at its first reading
    EXPECT_LE(outputs[1].stats.reused_tokens, 64);
    EXPECT_GE(engine.pool().totals().reused, 64 * (1 + outputs[1].stats.retracted));
}

TEST_P(PrefixCache, APrefixThatOthersReadAnywayTakesNoRoom) {
    Config config = tiny_config(GetParam());
    config.max_running_requests = 2;
    config.max_total_tokens = 288;
    Engine engine(config);
    const std::vector<Request> requests = sharing_requests(2, 160, 7);
    engine.submit(requests[0]);
    engine.step();
    engine.step();
    engine.step();
    // Not another 167 tokens are free.
    EXPECT_LT(engine.pool().available(), 160);
    const RequestId second = engine.submit(requests[1]);
    engine.step();
    EXPECT_EQ(engine.running(), 2);
    while (engine.step() != nullptr) engine.check_books();
    EXPECT_EQ(engine.poll(second).stats.retracted, 0);
}

/// Proposes nothing, and holds the engine to the seam's contract: a session's rows come in order
/// and whole before its first draft.
class WatchingDrafter final : public Drafter {
  public:
    explicit WatchingDrafter(int32_t sessions)
        : Drafter(4, 2), seen_(static_cast<size_t>(sessions)) {}

    void ingest(std::span<const IngestSegment> segments) override {
        for (const IngestSegment& segment : segments) {
            std::vector<int32_t>& seen = seen_[static_cast<size_t>(segment.session)];
            if (segment.first_position == 0) seen.clear();
            EXPECT_EQ(segment.first_position, static_cast<int32_t>(seen.size()));
            EXPECT_EQ(segment.tokens.size(), segment.slots.size());
            seen.insert(seen.end(), segment.tokens.begin(), segment.tokens.end());
            if (segment.reused) {
                EXPECT_EQ(segment.first_position, 0);
                reused += static_cast<int32_t>(segment.tokens.size());
            }
        }
    }
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView>) override {
        for (const DraftContext& context : contexts) {
            const std::vector<int32_t>& seen = seen_[static_cast<size_t>(context.session)];
            EXPECT_TRUE(std::ranges::equal(seen, context.tokens.first(context.tokens.size() - 1)));
            drafts += 1;
        }
    }

    int32_t reused = 0, drafts = 0;

  private:
    std::vector<std::vector<int32_t>> seen_;
};

TEST_P(PrefixCache, TheDrafterIsToldOfReusedRows) {
    Config config = tiny_config(GetParam());
    config.max_running_requests = 3;
    config.max_total_tokens = 320;
    config.chunked_prefill_size = 40;
    auto owned = std::make_unique<WatchingDrafter>(3);
    const WatchingDrafter& drafter = *owned;
    Engine engine(config, std::move(owned));
    for (int round = 0; round < 3; ++round) run_all(engine, sharing_requests(6, 90, 5 + round));
    EXPECT_GT(drafter.reused, 1000);
    EXPECT_GT(drafter.drafts, 50);
}

TEST_P(PrefixCache, PromptLookupDraftsTheSame) {
    const Config config = tiny_config(GetParam());
    Engine engine(config), plain(without_cache(config));
    std::vector<Request> requests = sharing_requests(4, 60, 6);
    for (Request& each : requests) {
        each.max_tokens = 60;
        each.prompt = joined(each.prompt, each.prompt);  // something to look up
    }
    requests.push_back(requests[0]);
    int32_t accepted = 0;
    for (const Request& request : requests) {
        const auto rounds_of = [&](Engine& which) {
            std::vector<std::pair<int32_t, int32_t>> rounds;
            const RequestId id = which.submit(request);
            while (const RoundStats* round = which.step()) {
                if (round->decoding > 0) rounds.emplace_back(round->nodes, round->emitted);
            }
            accepted += which.poll(id).stats.tokens;
            return rounds;
        };
        const auto expected = rounds_of(plain);
        EXPECT_EQ(rounds_of(engine), expected);
        accepted -= 2 * static_cast<int32_t>(expected.size());
    }
    EXPECT_GT(engine.pool().totals().reused, 200);
    EXPECT_GT(accepted, 0);  // drafts were right now and then
}

TEST(CachedPrompts, MeasuringTheCostLeavesTheCacheAlone) {
    Engine engine(tiny_config()), plain(without_cache(tiny_config()));
    const Request request = request_of(random_tokens(80, 13));
    run_all(engine, {request});
    // In the middle of an answer too.
    const RequestId id = engine.submit(request);
    engine.step();
    engine.step();
    EXPECT_FALSE(engine.cost().empty());
    while (engine.step() != nullptr) engine.check_books();
    const Delta expected = run_all(plain, {request})[0];
    expect_same_output(engine.poll(id), expected);
    const Delta again = run_all(engine, {request})[0];
    EXPECT_EQ(again.stats.reused_tokens, 79);
    expect_same_output(again, expected);
}

TEST(CachedPrompts, PagesAndExtentsAreWhole) {
    Config config = tiny_config(16);
    config.max_total_tokens = 100;
    Engine engine(config);
    EXPECT_EQ(engine.config().max_total_tokens, 112);
    EXPECT_EQ(engine.pool().total(), 112);

    config = tiny_config();
    config.kv_extent = 64;
    config.kv_headroom = 0;
    Engine extents(config);
    Request request = request_of(random_tokens(20, 14), 100);
    const RequestId id = extents.submit(request);
    extents.step();
    const RoundStats* round = extents.step();
    const std::span<PageTable* const> tables = extents.pool().tables();
    EXPECT_EQ(tables.front()->tokens(), 64);
    // Counted is what this round could write.
    EXPECT_EQ(round->fragmentation.sessions, 1);
    EXPECT_GT(round->fragmentation.tokens, 19);
    EXPECT_LT(round->fragmentation.tokens, 64);
    EXPECT_EQ(round->fragmentation.runs, 1);
    EXPECT_EQ(round->fragmentation.tiles, 0);
    EXPECT_EQ(round->free_runs, 1);
    extents.cancel(id);
    EXPECT_EQ(extents.pool().used(), 0);
}

TEST(CachedPrompts, APromptTakesHeadRoomForItsAnswer) {
    Config config = tiny_config();
    config.max_total_tokens = 6400;  // a 32nd is 200
    config.kv_extent = 0;
    config.kv_headroom = 150;
    Engine engine(config);
    const auto slots_after_prompt = [&](int32_t max_tokens) {
        const RequestId id = engine.submit(request_of(random_tokens(20, 14), max_tokens));
        engine.step();
        const int32_t slots = engine.pool().tables().front()->tokens();
        engine.cancel(id);
        engine.poll(id);
        return slots;
    };
    EXPECT_EQ(slots_after_prompt(0), 20 + 150);
    EXPECT_EQ(slots_after_prompt(5), 25);  // no more than the answer may have
    config.kv_headroom = 1000;
    Engine other(config);
    other.submit(request_of(random_tokens(20, 14), 0));
    other.step();
    EXPECT_EQ(other.pool().tables().front()->tokens(), 20 + 200 / config.max_running_requests);
}

TEST(CachedPrompts, ServiceCountsCachedSlots) {
    Service service(std::make_unique<Engine>(tiny_config()));
    service.submit({request_of(random_tokens(40, 15), 4)});
    while (service.step() == StepResult::ran) {
        const ServiceStats stats = service.stats();
        EXPECT_EQ(stats.slots_free + stats.slots_used + stats.slots_cached, stats.slots_total);
    }
    EXPECT_EQ(service.stats().slots_used, 0);
    EXPECT_EQ(service.stats().slots_cached, 43);
}

TEST(CachedPrompts, RefusesBadSettings) {
    const auto error = [](auto&& change) {
        Config config = tiny_config();
        change(config);
        return error_of([&] { validate(config); });
    };
    EXPECT_EQ(error([](Config& c) { c.page_size = 8; }), "page size 8 is none of 1, 16, 32, 64");
    EXPECT_EQ(error([](Config& c) { c.kv_extent = -1; }), "kv extent -1 is outside 0..16777216");
    EXPECT_EQ(error([](Config& c) { c.kv_evict_batch = 1.5; }),
              "kv evict batch 1.5 is outside 0..1");
    EXPECT_EQ(error([](Config& c) { c.kv_relocate = -2; }),
              "kv relocate -2 is outside 0..1073741824");
}

}  // namespace
}  // namespace kd
