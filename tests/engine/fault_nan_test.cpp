// NaN from the model: what one request's rows hold hurts nobody else, inside its tree, in its batch
// and in the prefix cache. Where it was seen: docs/fault-classes.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/softmax.h"
#include "support/engine_support.h"
#include "support/tiny_model.h"

namespace kd {
namespace {

constexpr int32_t kVocabulary = 320;
constexpr int32_t kPoison = 300;
constexpr size_t kHidden = 64;
constexpr const char* kAllNan = "the model gave NaN: 320 of 320 logits";

std::span<float> floats_of(GgufWriter::Tensor& tensor) {
    return {reinterpret_cast<float*>(tensor.data.data()), tensor.data.size() / sizeof(float)};
}

/// The tiny model in which one token gives a value row beyond f16: infinity in the cache, and NaN
/// in all logits that attend to it. The token alone has the last hidden dimension, and the values
/// of the first layer read it.
const std::string& poisoned_model() {
    static const TempPath file;
    static const bool written = [] {
        GgufWriter model = tiny_model({.weights = DType::f32});
        const std::span<float> embedding = floats_of(model.tensor("token_embd.weight"));
        for (size_t token = 0; token < kVocabulary; ++token) {
            embedding[token * kHidden + kHidden - 1] = token == kPoison ? 30.0f : 0.0f;
        }
        const std::span<float> values = floats_of(model.tensor("blk.0.attn_v.weight"));
        for (size_t at = kHidden - 1; at < values.size(); at += kHidden) values[at] = 1e5f;
        model.write(file.path());
        return true;
    }();
    EXPECT_TRUE(written);
    return file.path();
}

Config config_of(int32_t sessions) {
    Config config{.model = poisoned_model(),
                  .context_length = 128,
                  .threads = 1,
                  .max_running_requests = sessions};
    config.max_draft_tokens = 24;
    return config;
}

/// Never says the token by itself.
Request request_of(std::vector<int32_t> prompt, const Speculation& shape) {
    return {.prompt = std::move(prompt),
            .sampling = {.temperature = 0.8f, .seed = 3, .ignore_eos = true},
            .max_tokens = 24,
            .speculation = shape,
            .logit_bias = {{kPoison, -std::numeric_limits<float>::infinity()}},
            .top_logprobs = 1};
}

constexpr Speculation kPlain = {.shape = DraftShape::plain};
constexpr Speculation kTree = {.shape = DraftShape::tree, .nodes = 20};
constexpr Speculation kChain = {.shape = DraftShape::chain, .nodes = 4};

/// Proposes the poisonous token at every depth, as the most likely one, beside the truth.
class PoisonDrafter final : public Drafter {
  public:
    PoisonDrafter() : Drafter(4, 3) {}
    void ingest(std::span<const IngestSegment>) override {}
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) override {
        for (size_t i = 0; i < contexts.size(); ++i) {
            const std::span<const int32_t> known = contexts[i].known_continuation;
            const LatticeView& lattice = lattices[i];
            *lattice.depths = std::min(depth_capacity, contexts[i].max_depth);
            for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
                const auto at = static_cast<size_t>(depth);
                const int32_t truth = at < known.size() ? known[at] : 5;
                const int32_t tokens[] = {kPoison, truth == kPoison ? 4 : truth,
                                          truth == 6 ? 7 : 6};
                lattice.state_count[depth] = 3;
                for (int32_t state = 0; state < 3; ++state) {
                    lattice.token[lattice.at(depth, state)] = tokens[state];
                    lattice.log_prob[lattice.at(depth, state)] =
                        -0.9f - 0.1f * static_cast<float>(state);
                }
            }
        }
    }
};

std::unique_ptr<Engine> poison_engine(int32_t sessions) {
    return std::make_unique<Engine>(config_of(sessions), std::make_unique<PoisonDrafter>());
}

/// Three requests in one batch, the one in the middle as given.
std::vector<Delta> run_beside(Engine& engine, const Request& middle) {
    std::vector<Request> requests(3, request_of({40, 41, 42}, middle.speculation));
    requests[2].prompt = {50, 51, 52, 53};
    requests[1] = middle;
    return run_all(engine, requests);
}

TEST(FaultClass, NanLogitsEndTheirRequestAlone) {
    const std::unique_ptr<Engine> engine = poison_engine(3);
    const std::vector<Delta> healthy = run_beside(*engine, request_of({60, 61}, kPlain));
    for (const Delta& output : healthy) ASSERT_EQ(output.finish, FinishReason::length);
    for (const Speculation& shape : {kPlain, kTree, kChain}) {
        SCOPED_TRACE(static_cast<int>(shape.shape));
        // In the prompt, as its last token, and said in the middle of the answer.
        for (const auto& [prompt, said] : {std::pair{std::vector<int32_t>{60, kPoison, 61}, 0u},
                                           {std::vector<int32_t>{60, 61, kPoison}, 0u},
                                           {std::vector<int32_t>{60, 61}, 6u}}) {
            Request poisoned = request_of(prompt, shape);
            poisoned.known_continuation = healthy[1].ids;
            if (said > 0) {
                poisoned.logit_bias.clear();
                poisoned.logit_mask = [=](std::span<const int32_t> answer,
                                          std::span<uint32_t> allowed) {
                    const bool now = answer.size() + 1 == said;
                    if (now) std::ranges::fill(allowed, 0u);
                    uint32_t& word = allowed[kPoison / 32];
                    word = now ? 1u << kPoison % 32 : word & ~(1u << kPoison % 32);
                };
            }
            const std::vector<Delta> outputs = run_beside(*engine, poisoned);
            EXPECT_EQ(outputs[1].finish, FinishReason::error);
            EXPECT_EQ(outputs[1].error, kAllNan);
            ASSERT_EQ(outputs[1].ids.size(), said);
            EXPECT_EQ(outputs[1].logprobs.size(), said);
            if (said > 0) {
                EXPECT_EQ(outputs[1].ids.back(), kPoison);
                EXPECT_TRUE(std::equal(outputs[1].ids.begin(), outputs[1].ids.end() - 1,
                                       healthy[1].ids.begin()));
            }
            expect_same_output(outputs[0], healthy[0]);
            expect_same_output(outputs[2], healthy[2]);
        }
    }
    EXPECT_EQ(engine->running(), 0);
    EXPECT_EQ(engine->pool().used(), 0);
}

TEST(FaultClass, NanInTheScoresOfAPromptIsAnError) {
    const std::unique_ptr<Engine> engine = poison_engine(3);
    Request scored = {
        .prompt = {30, 31, kPoison, 32, 33}, .prompt_logprobs = 1, .prompt_only = true};
    const std::vector<Delta> outputs = run_beside(*engine, scored);
    EXPECT_EQ(outputs[1].finish, FinishReason::error);
    EXPECT_EQ(outputs[1].error, kAllNan);
    EXPECT_TRUE(outputs[1].prompt_logprobs.empty());
    EXPECT_EQ(outputs[0].finish, FinishReason::length);
}

/// Rejected nodes hold NaN in every round, their slots are used again by the next tree, and no
/// reduction over the accepted path sees them.
TEST(FaultClass, NanOfARejectedNodeReachesNobody) {
    const std::unique_ptr<Engine> engine = poison_engine(3);
    std::vector<Request> requests;
    for (int32_t i = 0; i < 3; ++i) requests.push_back(request_of({40 + i, 41, 42}, kPlain));
    const std::vector<Delta> plain = run_all(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].speculation = i == 1 ? kChain : kTree;
        requests[i].known_continuation = plain[i].ids;
    }
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine->submit(request));
    int32_t nan_rows = 0;
    while (engine->step() != nullptr) {
        engine->check_books();
        const Batch& batch = engine->last_batch();
        for (size_t row = 0; row < batch.logit_rows.size(); ++row) {
            nan_rows += std::isnan(batch.logits.data()[row * kVocabulary]) ? 1 : 0;
        }
    }
    EXPECT_GT(nan_rows, 100);
    int32_t tokens = 0, rounds = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
        const Delta output = engine->poll(ids[i]);
        expect_same_output(output, plain[i]);
        tokens += output.stats.tokens;
        rounds += output.stats.rounds;
    }
    EXPECT_GT(tokens, rounds);  // beside them nodes were accepted
}

TEST(FaultClass, NanRowsAreNotLeftInThePrefixCache) {
    const std::unique_ptr<Engine> engine = poison_engine(2);
    std::vector<int32_t> shared;
    for (int32_t i = 0; i < 40; ++i) shared.push_back(10 + i * 7 % 200);
    std::vector<int32_t> bad = shared, good = shared;
    bad.insert(bad.end(), {kPoison, 9, 8, 7});
    good.insert(good.end(), {9, 8, 7, 6});
    const Delta expected = run_all(*engine, {request_of(good, kPlain)})[0];
    const int32_t cached = engine->pool().cached();
    for (const Speculation& shape : {kPlain, kTree}) {
        // Alone, and in one batch with a request that shares its beginning.
        EXPECT_EQ(run_all(*engine, {request_of(bad, shape)})[0].error, kAllNan);
        EXPECT_EQ(engine->pool().cached(), cached);
        const std::vector<Delta> both =
            run_all(*engine, {request_of(bad, shape), request_of(good, shape)});
        EXPECT_EQ(both[0].error, kAllNan);
        EXPECT_EQ(both[0].stats.reused_tokens, 40);  // the healthy rows alone
        expect_same_output(both[1], expected);
        EXPECT_EQ(both[1].stats.reused_tokens, 43);
        EXPECT_EQ(engine->pool().cached(), cached);
    }
    const std::unique_ptr<Engine> fresh = poison_engine(1);
    run_all(*fresh, {request_of(bad, kTree)});
    EXPECT_EQ(fresh->pool().cached(), 0);
}

}  // namespace
}  // namespace kd
