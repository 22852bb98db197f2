// Acceptance under rules: whatever the trees, the text is the one that plain decoding writes when
// it applies the same rules to the same text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <stdexcept>

#include "base/error.h"
#include "base/rng.h"
#include "base/storage.h"
#include "core/accept.h"
#include "core/tree.h"
#include "random_lattice.h"

namespace kd {
namespace {

constexpr uint64_t kSeed = 61;
constexpr int32_t kVocabulary = 9;
constexpr int32_t kStop = 4;
constexpr float kForbidden = -std::numeric_limits<float>::infinity();

using Tokens = std::vector<int32_t>;

/// Logits that are a function of the whole text.
std::vector<float> target_row(const Tokens& text) {
    uint64_t hash = 7;
    for (const int32_t token : text) hash = hash * 1000003 + static_cast<uint64_t>(token) + 1;
    std::vector<float> row;
    for (uint32_t token = 0; token < kVocabulary; ++token) {
        row.push_back(static_cast<float>(6.0 * uniform(kSeed, RngStream::test, hash, token) - 3.0));
    }
    return row;
}

/// After a token, those of its own class are forbidden. (At first, everything is allowed.)
void alternate(std::span<const int32_t> answer, std::span<uint32_t> allowed) {
    if (answer.empty()) return;
    for (uint32_t token = 0; token < kVocabulary; ++token) {
        if (static_cast<int32_t>(token % 3) == answer.back() % 3) allowed[0] &= ~(1u << token);
    }
}

struct Scenario {
    const char* name = "";
    SamplingParams params;
    std::vector<LogitBias> bias;
    LogitMask mask;
};

std::vector<Scenario> scenarios() {
    const std::vector<LogitBias> bias = {{1, 2.5f}, {kStop, 4.0f}, {7, kForbidden}};
    return {
        {.name = "none", .params = {.temperature = 1.0f}},
        {.name = "repetition", .params = {.temperature = 0.8f, .repetition_penalty = 1.7f}},
        {.name = "presence", .params = {.presence_penalty = 1.5f}},
        {.name = "frequency", .params = {.temperature = 1.2f, .frequency_penalty = -0.7f}},
        {.name = "bias", .params = {.temperature = 1.0f}, .bias = bias},
        {.name = "min tokens", .params = {.min_tokens = 6}, .bias = bias},
        {.name = "mask", .params = {.temperature = 0.9f}, .mask = alternate},
        {.name = "all",
         .params = {.temperature = 0.8f,
                    .top_k = 6,
                    .top_p = 0.9f,
                    .repetition_penalty = 1.3f,
                    .presence_penalty = 0.4f,
                    .frequency_penalty = 0.3f,
                    .min_tokens = 9},
         .bias = bias,
         .mask = alternate},
    };
}

/// What a row becomes, from the whole history and with nothing shared with the code under test.
std::vector<float> ruled_row(const Scenario& scenario, const Tokens& prompt, const Tokens& answer) {
    Tokens text = prompt;
    text.insert(text.end(), answer.begin(), answer.end());
    std::vector<float> row = target_row(text);
    const SamplingParams& params = scenario.params;
    std::vector<uint32_t> allowed(1, ~0u);
    if (scenario.mask) scenario.mask(answer, allowed);
    for (int32_t token = 0; token < kVocabulary; ++token) {
        float& logit = row[static_cast<size_t>(token)];
        if (std::ranges::count(text, token) > 0) {
            logit =
                logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
        }
        const auto times = std::ranges::count(answer, token);
        if (times > 0) {
            logit = logit - params.frequency_penalty * static_cast<float>(times) -
                    params.presence_penalty;
        }
        for (const LogitBias& each : scenario.bias) {
            if (each.token == token) logit += each.bias;
        }
        const bool early = static_cast<int32_t>(answer.size()) < params.min_tokens;
        if ((token == kStop && early) || (allowed[0] >> token & 1u) == 0) logit = kForbidden;
    }
    return row;
}

double draw(size_t position) {
    return uniform(kSeed, RngStream::sample, position);
}

/// A round on random trees, as a session would see it.
class Session {
  public:
    Session(const Scenario& scenario, Tokens prompt) : scenario_(scenario), prompt_(prompt) {
        if (has_penalties(scenario.params)) counts_ = TokenCounts(kVocabulary, prompt);
    }

    /// Verifies one random tree and emits what it accepted. Returns how many tokens.
    int32_t round() {
        draft();
        const TreeView tree = tree_.view();
        build_tree(lattice_.view(), text().back(), kNodes, tree, tree_scratch_);
        verify(tree);
        std::vector<double> draws;
        for (size_t d = 0; d < kNodes; ++d) draws.push_back(draw(text().size() + d));
        const AcceptedView accepted = accepted_.view();
        const auto before = counts_;
        const auto check_counts = [&] {
            EXPECT_TRUE(std::ranges::equal(before.distinct(), counts_.distinct()));
            for (const int32_t token : before.distinct()) {
                EXPECT_EQ(before.in_answer(token), counts_.in_answer(token));
            }
        };
        try {
            accept_tree(
                tree,
                {.data = logits_.data(),
                 .rows = *tree.count,
                 .columns = kVocabulary,
                 .stride = kVocabulary},
                scenario_.params, draws, scratch_, accepted,
                {.counts = &counts_,
                 .answer = answer_,
                 .bias = scenario_.bias,
                 .stop_ids = std::span(&kStop, 1),
                 .mask = &scenario_.mask,
                 .logprobs = {
                     .top = 2, .logprob = logprob_, .most_likely = most_likely_, .stride = 2}});
        } catch (const std::exception&) {
            failed_ = true;
        }
        check_counts();
        check_logprobs(accepted);
        for (int32_t i = 0; i < *accepted.count; ++i) {
            answer_.push_back(accepted.emitted[i]);
            if (!counts_.empty()) counts_.push(answer_.back());
        }
        return *accepted.count;
    }

    const Tokens& answer() const { return answer_; }
    bool failed() const { return failed_; }

  private:
    static constexpr int32_t kNodes = 48;

    /// Every token at every depth, with random weights: large trees of nonsense are often right.
    void draft() {
        const LatticeView lattice = lattice_.view();
        *lattice.depths = 3;
        *lattice.has_edges = false;
        for (int32_t depth = 0; depth < 3; ++depth) {
            lattice.state_count[depth] = kVocabulary;
            for (int32_t token = 0; token < kVocabulary; ++token) {
                lattice.token[lattice.at(depth, token)] = token;
                lattice.log_prob[lattice.at(depth, token)] =
                    static_cast<float>(std::log(random_.unit() + 0.01));
            }
        }
    }
    Tokens text() const {
        Tokens all = prompt_;
        all.insert(all.end(), answer_.begin(), answer_.end());
        return all;
    }
    void verify(const TreeView& tree) {
        std::vector<Tokens> path;
        logits_.clear();
        for (int32_t node = 0; node < *tree.count; ++node) {
            path.push_back(node == 0 ? text() : path[static_cast<size_t>(tree.parent[node])]);
            if (node > 0) path.back().push_back(tree.token[node]);
            const std::vector<float> row = target_row(path.back());
            logits_.insert(logits_.end(), row.begin(), row.end());
        }
    }
    /// They are those of the raw rows, whatever the rules made of them.
    void check_logprobs(const AcceptedView& accepted) {
        Tokens so_far = text();
        for (int32_t i = 0; i < *accepted.count; ++i) {
            std::vector<float> expected(kVocabulary);
            log_softmax(target_row(so_far), expected);
            EXPECT_EQ(logprob_[i], expected[static_cast<size_t>(accepted.emitted[i])]);
            std::vector<TokenLogprob> top(2);
            top_logprobs(expected, top);
            EXPECT_EQ(most_likely_[2 * i], top[0]);
            EXPECT_EQ(most_likely_[2 * i + 1], top[1]);
            so_far.push_back(accepted.emitted[i]);
        }
    }

    const Scenario& scenario_;
    Tokens prompt_, answer_;
    TokenCounts counts_;
    bool failed_ = false;
    RandomLattice random_{kSeed};
    LatticeStorage lattice_{3, kVocabulary};
    TreeStorage tree_{kNodes};
    AcceptedStorage accepted_{kNodes};
    TreeScratch tree_scratch_;
    SamplerScratch scratch_;
    std::vector<float> logits_;
    float logprob_[kNodes];
    TokenLogprob most_likely_[2 * kNodes];
};

TEST(AcceptTreeUnderRules, WritesWhatPlainDecodingWrites) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    for (const Scenario& scenario : scenarios()) {
        SCOPED_TRACE(scenario.name);
        int tokens = 0, rounds = 0;
        for (int32_t prompt = 0; prompt < 30; ++prompt) {
            Session session(scenario, {prompt % kVocabulary, prompt % 4, prompt % 7});
            while (session.answer().size() < 16) {
                tokens += session.round();
                ++rounds;
            }
            SamplerScratch scratch;
            Tokens plain;
            while (plain.size() < session.answer().size()) {
                const Tokens start = {prompt % kVocabulary, prompt % 4, prompt % 7};
                plain.push_back(sample_token(ruled_row(scenario, start, plain), scenario.params,
                                             draw(start.size() + plain.size()), scratch));
            }
            ASSERT_EQ(session.answer(), plain) << "prompt " << prompt;
        }
        // Trees of wrong guesses would show nothing.
        EXPECT_GT(tokens, rounds * 3 / 2);
    }
}

TEST(AcceptTreeUnderRules, WhatAMaskThrowsLeavesThePathBeforeIt) {
    Scenario scenario = scenarios().back();
    scenario.mask = [](std::span<const int32_t> answer, std::span<uint32_t> allowed) {
        if (answer.size() == 11) throw std::runtime_error("no more");
        alternate(answer, allowed);
    };
    Session session(scenario, {1, 2, 3});
    while (!session.failed()) session.round();
    EXPECT_EQ(session.answer().size(), 11u);
    EXPECT_EQ(session.round(), 0);
    // The tokens before it are those of the mask that does not throw.
    const Scenario whole = scenarios().back();
    Session other(whole, {1, 2, 3});
    while (other.answer().size() < 11) other.round();
    EXPECT_TRUE(std::ranges::equal(session.answer(), std::span(other.answer()).first(11)));
}

TEST(AcceptTreeUnderRules, AMaskThatAllowsNothingIsAnError) {
    Scenario scenario = scenarios().front();
    scenario.mask = [](std::span<const int32_t> answer, std::span<uint32_t> allowed) {
        if (answer.size() >= 3) std::ranges::fill(allowed, 0u);
    };
    Session session(scenario, {1});
    while (!session.failed()) session.round();
    EXPECT_EQ(session.answer().size(), 3u);
}

}  // namespace
}  // namespace kd
