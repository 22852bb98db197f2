// Fault classes of tree speculation that users of other engines met, one test a class; where each
// was seen, and the tests of those that live elsewhere: docs/fault-classes.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/tree.h"
#include "formats/model_file.h"
#include "support/engine_support.h"

namespace kd {
namespace {

constexpr int32_t kVocabulary = 320;

Config config_of(int32_t sessions) {
    Config config{.model = tiny_model_path(),
                  .context_length = 256,
                  .threads = 1,
                  .max_running_requests = sessions};
    return config;
}

/// A drafter that is told what will follow: `hit` are the rates of its candidates by rank.
Config told(Config config, const std::vector<float>& hit) {
    config.speculative_algorithm = SpeculativeAlgorithm::oracle;
    config.speculative_draft_model_path =
        oracle_profile("faults.json", std::vector<std::vector<float>>(31, hit));
    return config;
}
const std::vector<float> kPerfect = {1.0f};
const std::vector<float> kMiddling = {0.5f, 0.2f, 0.1f};

constexpr Speculation kPlain = {.shape = DraftShape::plain};

Request request_of(std::vector<int32_t> prompt, int32_t max_tokens) {
    return {.prompt = std::move(prompt),
            .sampling = {.ignore_eos = true},
            .max_tokens = max_tokens,
            .speculation = kPlain,
            .top_logprobs = 1};
}

Request speculative(Request request, const Speculation& shape, const Delta& plain) {
    request.speculation = shape;
    request.known_continuation = plain.ids;
    return request;
}

/// Plain decoding alone, without a cache.
std::vector<Delta> plain_outputs(std::vector<Request> requests) {
    Config config = config_of(1);
    config.speculative_algorithm = SpeculativeAlgorithm::none;
    config.radix_cache = false;
    Engine engine(config);
    for (Request& request : requests) request.speculation = kPlain;
    return run_all(engine, requests);
}

std::vector<Request> random_requests(int32_t count, int32_t max_tokens, uint32_t seed) {
    std::vector<Request> requests;
    for (std::vector<int32_t>& prompt : random_prompts(count, 40, kVocabulary, seed)) {
        requests.push_back(request_of(std::move(prompt), max_tokens));
    }
    return requests;
}

TEST(FaultClass, FullAcceptCountsTheLeafAndItsBonusToken) {
    Engine engine(told(config_of(1), kPerfect));
    const Request request = request_of({7, 8, 9}, 40);
    const Delta plain = plain_outputs({request})[0];
    ASSERT_EQ(plain.ids.size(), 40u);
    for (const int32_t nodes : {1, 2, 3, 8, 32}) {
        SCOPED_TRACE(nodes);
        for (const DraftShape shape : {DraftShape::chain, DraftShape::tree}) {
            const Delta output =
                run_all(engine, {speculative(request, {.shape = shape, .nodes = nodes}, plain)})[0];
            expect_same_output(output, plain);
            EXPECT_EQ(output.stats.rounds, (40 + nodes - 1) / nodes);
            EXPECT_EQ(output.stats.nodes, 40);
        }
    }
}

TEST(FaultClass, VerifiedPositionsAreTheCommittedOnes) {
    Engine engine(told(config_of(4), kMiddling));
    std::vector<Request> requests = random_requests(4, 30, 3);
    const std::vector<Delta> plain = plain_outputs(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        engine.submit(speculative(requests[i], {.nodes = 12}, plain[i]));
    }
    int32_t committed = 0, beside_the_chain = 0;
    while (engine.step() != nullptr) {
        Batch& batch = engine.last_batch();
        size_t move = 0;
        for (size_t i = 0; i < batch.entries.size(); ++i) {
            const BatchEntry& entry = batch.entries[i];
            if (entry.prefill_rows > 0) continue;
            const AcceptedView accepted = batch.accepted[i].view();
            const auto row = static_cast<size_t>(batch.segments[i].first_row);
            for (int32_t k = 0; k < *accepted.count; ++k, ++move) {
                const auto node = static_cast<size_t>(accepted.path[k]);
                // Where the row was rotated to, and where its keys and values came from.
                ASSERT_EQ(batch.positions[row + node], entry.context + k);
                ASSERT_EQ(batch.move_from[move], batch.slots[row + node]);
                ASSERT_EQ(batch.tokens[row + node],
                          k == 0 ? batch.tokens[row] : accepted.emitted[k - 1]);
                committed += 1;
                beside_the_chain += accepted.path[k] != k ? 1 : 0;
            }
        }
        ASSERT_EQ(move, batch.move_to.size());
    }
    EXPECT_GE(committed, 4 * 30);
    EXPECT_GT(beside_the_chain, 10);
}

/// Pages of the index hold what was said and nothing else, and their rows are those that a fresh
/// engine computes.
TEST(FaultClass, RowsOfRejectedNodesNeverReachTheRadixCache) {
    Config config = told(config_of(2), kMiddling);
    config.max_draft_tokens = 16;
    Engine engine(config);
    std::vector<Request> requests = random_requests(6, 40, 4);
    const std::vector<Delta> plain = plain_outputs(requests);
    std::set<std::vector<int32_t>> said;
    for (size_t i = 0; i < requests.size(); ++i) {
        // Some end at a stop string in the middle of an accepted path.
        Request request = speculative(requests[i], {.nodes = 16}, plain[i]);
        if (i % 2 == 1) request.stop = {plain[i].text.substr(plain[i].text.size() / 2, 4)};
        const Delta output = run_all(engine, {request})[0];
        EXPECT_EQ(output.finish, i % 2 == 1 ? FinishReason::stop : FinishReason::length);
        std::vector<int32_t> text = request.prompt;
        text.insert(text.end(), output.ids.begin(), output.ids.end());
        said.insert(text);
        Request next = request_of(text, 8);
        next.prompt.push_back(11);
        const Delta follow = run_all(engine, {next})[0];
        EXPECT_GE(follow.stats.reused_tokens, static_cast<int32_t>(text.size()) - 1);
        expect_same_output(follow, plain_outputs({next})[0]);
        next.prompt.insert(next.prompt.end(), follow.ids.begin(), follow.ids.end());
        said.insert(next.prompt);
    }
    const PrefixIndex& index = engine.pool().index();
    for (PrefixIndex::NodeId id = 1; id < index.node_count(); ++id) {
        std::vector<int32_t> path;
        for (PrefixIndex::NodeId at = id; at > PrefixIndex::kRoot; at = index.node(at).parent) {
            path.insert(path.begin(), index.node(at).tokens.begin(), index.node(at).tokens.end());
        }
        EXPECT_TRUE(std::ranges::any_of(said,
                                        [&](const std::vector<int32_t>& text) {
                                            return text.size() > path.size() &&
                                                   std::equal(path.begin(), path.end(),
                                                              text.begin());
                                        }))
            << "node " << id;
    }
    EXPECT_GT(engine.pool().cached(), 100);
}

TEST(FaultClass, StaleRowsOfLargerRoundsDoNotShow) {
    Engine engine(config_of(8), std::make_unique<NonsenseDrafter>(20, 8, kVocabulary, 7u));
    std::vector<Request> large = random_requests(8, 30, 5), small = random_requests(3, 30, 6);
    for (Request& request : large) {
        request.speculation = {.nodes = 32};
        request.top_logprobs = 5;
    }
    const std::vector<Delta> plain = plain_outputs(small);
    constexpr Speculation kShapes[] = {
        kPlain, {.shape = DraftShape::chain, .nodes = 3}, {.nodes = 5}};
    for (int turn = 0; turn < 3; ++turn) {
        run_all(engine, large);
        const auto t = static_cast<size_t>(turn);
        small[t].speculation = kShapes[turn];
        expect_same_output(run_all(engine, {small[t]})[0], plain[t]);
    }
}

/// Token 0, the padding token and the end token, wanted everywhere: in prompts, drafts and answers.
TEST(FaultClass, TokenZeroAndPaddingAreTokensInAnswersAndDrafts) {
    Engine ngram(config_of(2));
    Engine oracle(told(config_of(2), kPerfect));
    for (const int32_t token : {0, 2}) {
        SCOPED_TRACE(token);
        Request request = request_of({token, token, 5, token, token}, 30);
        request.logit_bias = {{token, 1000.0f}};
        const Delta plain = plain_outputs({request})[0];
        EXPECT_EQ(plain.ids, std::vector<int32_t>(30, token));
        for (Engine* engine : {&ngram, &oracle}) {
            const Delta output = run_all(*engine, {speculative(request, {.nodes = 8}, plain)})[0];
            expect_same_output(output, plain);
            EXPECT_LT(output.stats.rounds, 12);  // drafts of the token are accepted
        }
    }
}

TEST(FaultClass, MasksNeverSeeARejectedToken) {
    Engine engine(told(config_of(1), kMiddling));
    Request request = request_of({20, 21, 22}, 40);
    const Delta plain = plain_outputs({request})[0];
    std::vector<std::vector<int32_t>> seen;
    request.logit_mask = [&](std::span<const int32_t> answer, std::span<uint32_t>) {
        seen.emplace_back(answer.begin(), answer.end());
    };
    const Delta output = run_all(engine, {speculative(request, {.nodes = 16}, plain)})[0];
    expect_same_output(output, plain);
    EXPECT_LT(output.stats.rounds, 30);
    EXPECT_GT(output.stats.nodes, 150);  // most of them rejected
    ASSERT_EQ(seen.size(), 40u);
    for (size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i], std::vector<int32_t>(plain.ids.begin(),
                                                plain.ids.begin() + static_cast<ptrdiff_t>(i)));
    }
}

/// A tool call written under a grammar, the end token in the middle of an accepted path, and drafts
/// that go on behind it.
TEST(FaultClass, ToolCallsAndStopTokensSurviveTrees) {
    Engine engine(told(config_of(1), kPerfect));
    const std::string call =
        R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}</tool_call>)";
    std::vector<int32_t> script = engine.tokenizer().encode(call, false);
    const int32_t end = engine.tokenizer().stop_ids().front();
    script.push_back(end);
    const std::vector<int32_t> answer = script;
    script.insert(script.end(), {70, 71, 72, 73, 74, 75, 76, 77});  // what nobody may see
    Request request = {.prompt = {30, 31}, .max_tokens = 200, .speculation = kPlain};
    request.known_continuation = script;
    request.logit_mask = [script](std::span<const int32_t> so_far, std::span<uint32_t> allowed) {
        std::ranges::fill(allowed, 0u);
        const auto token = static_cast<size_t>(script[std::min(so_far.size(), script.size() - 1)]);
        allowed[token / 32] = 1u << token % 32;
    };
    int32_t beyond = 0;
    for (const Speculation& shape : {kPlain, Speculation{.shape = DraftShape::chain, .nodes = 7},
                                     Speculation{.nodes = 5}, Speculation{.nodes = 32}}) {
        SCOPED_TRACE(shape.nodes);
        request.speculation = shape;
        int32_t accepted = 0;
        const RequestId id = engine.submit(request);
        while (const RoundStats* round = engine.step()) accepted += round->emitted;
        const Delta output = engine.poll(id);
        EXPECT_EQ(output.text, call);
        EXPECT_EQ(output.ids, answer);
        EXPECT_EQ(output.finish, FinishReason::stop);
        beyond += accepted - static_cast<int32_t>(answer.size());
    }
    EXPECT_GT(beyond, 0);  // the end did stand in the middle
}

TEST(FaultClass, SamplingParametersActOnTrees) {
    Engine engine(told(config_of(4), kMiddling));
    const auto outputs_of = [&](const SamplingParams& params) {
        std::vector<Request> requests = random_requests(8, 24, 8);
        for (Request& request : requests) {
            request.sampling = params;
            request.sampling.ignore_eos = true;
        }
        const std::vector<Delta> plain = plain_outputs(requests);
        for (size_t i = 0; i < requests.size(); ++i) {
            requests[i] = speculative(requests[i], {.nodes = 12}, plain[i]);
        }
        const std::vector<Delta> trees = run_all(engine, requests);
        std::vector<std::vector<int32_t>> ids;
        int32_t rounds = 0;
        for (size_t i = 0; i < trees.size(); ++i) {
            expect_same_output(trees[i], plain[i]);
            ids.push_back(trees[i].ids);
            rounds += trees[i].stats.rounds;
        }
        EXPECT_LT(rounds, 8 * 20);  // drafts were accepted
        return ids;
    };
    const SamplingParams base = {.temperature = 1.0f, .seed = 5};
    std::set<std::vector<std::vector<int32_t>>> different = {outputs_of(base)};
    const auto changed = [&](const auto& change) {
        SamplingParams params = base;
        change(params);
        return different.insert(outputs_of(params)).second;
    };
    EXPECT_TRUE(changed([](SamplingParams& p) { p.temperature = 0.0f; }));
    EXPECT_TRUE(changed([](SamplingParams& p) { p.temperature = 1.7f; }));
    EXPECT_TRUE(changed([](SamplingParams& p) { p.top_k = 3; }));
    EXPECT_TRUE(changed([](SamplingParams& p) { p.top_p = 0.4f; }));
    EXPECT_TRUE(changed([](SamplingParams& p) { p.min_p = 0.3f; }));
    EXPECT_TRUE(changed([](SamplingParams& p) { p.seed = 6; }));
    EXPECT_TRUE(changed([](SamplingParams& p) { p.repetition_penalty = 1.8f; }));
    EXPECT_TRUE(changed([](SamplingParams& p) { p.presence_penalty = 2.0f; }));
    EXPECT_TRUE(changed([](SamplingParams& p) { p.frequency_penalty = -1.5f; }));
}

/// What forwards of one row and of `rows` take, so that no clock decides.
CostTable table_of(int32_t rows, double first, double last) {
    return {.rows = {1, rows},
            .contexts = {0, 256},
            .seconds = {first, last, first, last},
            .correction = {1, 1}};
}

TEST(FaultClass, SpeculationThatDoesNotPaySwitchesItselfOff) {
    const Config config = told(config_of(1), kMiddling);
    const Request request = request_of({7, 8, 9}, 40);
    const Delta plain = plain_outputs({request})[0];
    for (const bool dear : {true, false}) {
        Engine engine(config);
        engine.set_cost(table_of(32, 1.0, dear ? 32.0 : 1.0));
        const Delta output = run_all(engine, {speculative(request, {}, plain)})[0];
        expect_same_output(output, plain);
        if (dear) {
            EXPECT_EQ(output.stats.nodes, output.stats.rounds);
        } else {
            EXPECT_GT(output.stats.nodes, 8 * output.stats.rounds);
        }
    }
}

/// Proposes the same eight tokens at three depths.
class EightTokens final : public Drafter {
  public:
    EightTokens() : Drafter(3, 8) {}
    void ingest(std::span<const IngestSegment>) override {}
    void draft(std::span<const DraftContext>, std::span<LatticeView> lattices) override {
        for (const LatticeView& lattice : lattices) {
            *lattice.depths = 3;
            for (int32_t depth = 0; depth < 3; ++depth) {
                lattice.state_count[depth] = 8;
                for (int32_t state = 0; state < 8; ++state) {
                    lattice.token[lattice.at(depth, state)] = 40 * state + depth;
                    lattice.log_prob[lattice.at(depth, state)] =
                        -1.2f - 0.2f * static_cast<float>(state);
                }
            }
        }
    }
};

/// The tree that is verified first, and the token that follows it, for a seed.
struct FirstRound {
    std::vector<int32_t> tokens, parents;
    int32_t emitted = 0;
};

FirstRound first_round(const Config& config, uint64_t seed) {
    Engine engine(config, std::make_unique<EightTokens>());
    engine.set_cost(table_of(32, 1.0, 3.0));
    // A prompt of one token: the first round has a tree, and no clock has run yet.
    engine.submit({.prompt = {33},
                   .sampling = {.temperature = 1.5f, .seed = seed, .ignore_eos = true},
                   .max_tokens = 20});
    engine.step();
    Batch& batch = engine.last_batch();
    const TreeView tree = batch.trees[0].view();
    return {.tokens = {tree.token, tree.token + *tree.count},
            .parents = {tree.parent, tree.parent + *tree.count},
            .emitted = batch.accepted[0].view().emitted[0]};
}

TEST(FaultClass, TreesAndBudgetsDoNotLookAtTheDraws) {
    const Config config = config_of(1);
    const FirstRound first = first_round(config, 0);
    EXPECT_GT(first.tokens.size(), 2u);
    EXPECT_LT(first.tokens.size(), 32u);  // the budget decided
    std::set<int32_t> emitted;
    for (uint64_t seed = 1; seed < 16; ++seed) {
        const FirstRound other = first_round(config, seed);
        EXPECT_EQ(other.tokens, first.tokens) << "seed " << seed;
        EXPECT_EQ(other.parents, first.parents) << "seed " << seed;
        emitted.insert(other.emitted);
    }
    EXPECT_GT(emitted.size(), 5u);
}

TEST(FaultClass, AcceptedPathsCrossPageBoundaries) {
    for (const int32_t page_size : {1, 16, 32, 64}) {
        SCOPED_TRACE(page_size);
        Config config = told(config_of(4), kPerfect);
        config.page_size = page_size;
        Engine engine(config);
        std::vector<Request> requests;
        for (int32_t i = 0; i < 16; ++i) {
            std::vector<int32_t> prompt(static_cast<size_t>(48 + i));
            for (size_t t = 0; t < prompt.size(); ++t) {
                prompt[t] = 20 + static_cast<int32_t>(t * 37 + static_cast<size_t>(i)) % 250;
            }
            requests.push_back(request_of(prompt, 30));
        }
        const std::vector<Delta> plain = plain_outputs(requests);
        for (size_t i = 0; i < requests.size(); ++i) {
            requests[i] =
                speculative(requests[i], {.nodes = static_cast<int32_t>(i % 11) + 2}, plain[i]);
        }
        const std::vector<Delta> outputs = run_all(engine, requests);
        for (size_t i = 0; i < outputs.size(); ++i) {
            expect_same_output(outputs[i], plain[i]);
            EXPECT_LE(outputs[i].stats.rounds, 15);
        }
    }
}

TEST(FaultClass, EmptyBatchesAreNoRounds) {
    Engine engine(config_of(2), std::make_unique<NonsenseDrafter>(4, 4, kVocabulary, 3u));
    EXPECT_EQ(engine.step(), nullptr);
    EXPECT_EQ(engine.step(), nullptr);
    const RequestId first = engine.submit(request_of({5, 6, 7}, 10));
    const RoundStats* round = engine.step();  // the prompt alone: no tree at all
    ASSERT_NE(round, nullptr);
    EXPECT_EQ(round->decoding, 0);
    EXPECT_EQ(round->nodes, 0);
    EXPECT_EQ(round->emitted, 0);
    EXPECT_EQ(round->prefill_rows, 2);
    const RequestId second = engine.submit(request_of({8, 9}, 10));
    engine.step();
    engine.cancel(first);
    engine.cancel(second);
    EXPECT_EQ(engine.step(), nullptr);
    engine.check_books();
    EXPECT_EQ(engine.poll(first).finish, FinishReason::abort);
    EXPECT_EQ(engine.poll(second).finish, FinishReason::abort);
    const Request again = request_of({5, 6, 7}, 10);
    expect_same_output(run_all(engine, {again})[0], plain_outputs({again})[0]);
    EXPECT_EQ(engine.step(), nullptr);
}

/// Drafts as deep as the session's number and the round say, none included; now and then wrong.
class RaggedDrafter final : public Drafter {
  public:
    RaggedDrafter() : Drafter(9, 2) {}
    void ingest(std::span<const IngestSegment>) override {}
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) override {
        ++round_;
        for (size_t i = 0; i < contexts.size(); ++i) {
            const DraftContext& context = contexts[i];
            const LatticeView& lattice = lattices[i];
            const int32_t wanted = (3 * context.session + round_) % (depth_capacity + 1);
            *lattice.depths = std::min({wanted, context.max_depth,
                                        static_cast<int32_t>(context.known_continuation.size())});
            depth_of[context.session] = *lattice.depths;
            depths.insert(*lattice.depths);
            for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
                const int32_t truth = context.known_continuation[static_cast<size_t>(depth)];
                const bool right = (context.session + round_ + depth) % 5 != 0;
                lattice.state_count[depth] = 2;
                lattice.token[lattice.at(depth, 0)] = (truth + 1) % kVocabulary;
                lattice.token[lattice.at(depth, 1)] = right ? truth : (truth + 2) % kVocabulary;
                lattice.log_prob[lattice.at(depth, 0)] = -0.7f;
                lattice.log_prob[lattice.at(depth, 1)] = -0.8f;
            }
        }
    }
    std::map<int32_t, int32_t> depth_of;  // by session, drafted last
    std::set<int32_t> depths;

  private:
    int32_t round_ = 0;
};

TEST(FaultClass, IrregularDepthsInOneBatch) {
    auto owned = std::make_unique<RaggedDrafter>();
    RaggedDrafter& drafter = *owned;
    Config config = config_of(6);
    config.chunked_prefill_size = 16;
    Engine engine(config, std::move(owned));
    std::vector<Request> requests = random_requests(18, 30, 9);
    const std::vector<Delta> plain = plain_outputs(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].max_tokens = 10 + static_cast<int32_t>(i);
        requests[i] =
            speculative(requests[i], {.nodes = static_cast<int32_t>(i % 4) * 9 + 3}, plain[i]);
    }
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine.submit(request));
    while (engine.step() != nullptr) {
        engine.check_books();
        Batch& batch = engine.last_batch();
        for (size_t i = 0; i < batch.entries.size(); ++i) {
            const BatchEntry& entry = batch.entries[i];
            if (entry.prefill_rows > 0) continue;
            // A full binary tree of the depth that its own drafter said, as far as it has room.
            const auto drafted = drafter.depth_of.find(entry.session);
            const int32_t depth = drafted == drafter.depth_of.end() ? 0 : drafted->second;
            ASSERT_EQ(*batch.trees[i].view().count,
                      std::min(entry.speculation.nodes, (2 << depth) - 1));
        }
        drafter.depth_of.clear();
    }
    std::vector<Delta> outputs;
    for (const RequestId id : ids) outputs.push_back(engine.poll(id));
    int32_t tokens = 0, rounds = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
        ASSERT_EQ(outputs[i].ids.size(), static_cast<size_t>(requests[i].max_tokens));
        for (size_t t = 0; t < outputs[i].ids.size(); ++t) {
            ASSERT_EQ(outputs[i].ids[t], plain[i].ids[t]) << i;
            ASSERT_EQ(outputs[i].logprobs[t].logprob, plain[i].logprobs[t].logprob) << i;
        }
        tokens += outputs[i].stats.tokens;
        rounds += outputs[i].stats.rounds;
    }
    EXPECT_GT(tokens, rounds * 5 / 4);
    EXPECT_EQ(drafter.depths.size(), 10u);  // 0 to 9
}

TEST(FaultClass, BatchCompositionChangesNothing) {
    Config config = config_of(8);
    config.chunked_prefill_size = 20;
    Engine engine(config, std::make_unique<NonsenseDrafter>(6, 4, kVocabulary, 12u));
    Request probe = request_of({60, 61, 62, 63, 64}, 30);
    probe.sampling.temperature = 0.8f;
    const Delta plain = plain_outputs({probe})[0];
    const std::vector<Request> others = random_requests(24, 20, 10);
    constexpr DraftShape kShapes[] = {DraftShape::plain, DraftShape::chain, DraftShape::tree};
    size_t next = 0;
    for (int32_t company = 0; company < 8; ++company) {
        for (const DraftShape shape : kShapes) {
            // Some are there before it, the others come while it runs.
            const auto submit = [&](int32_t count) {
                for (int32_t i = 0; i < count; ++i, ++next) {
                    Request other = others[next % others.size()];
                    other.speculation = {.shape = kShapes[next % 3],
                                         .nodes = static_cast<int32_t>(next % 13) + 2};
                    engine.submit(other);
                }
            };
            submit(company / 2);
            engine.step();
            probe.speculation = {.shape = shape, .nodes = 10};
            const RequestId id = engine.submit(probe);
            engine.step();
            engine.step();
            submit(company - company / 2);
            while (engine.step() != nullptr) engine.check_books();
            expect_same_output(engine.poll(id), plain);
        }
    }
}

}  // namespace
}  // namespace kd
