// Losslessness under sampling: trees draw from the target's own distribution, and one seed gives
// one text whatever the speculation.
#include "core/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "support/engine_support.h"
#include "support/model_runner.h"

namespace kd {
namespace {

constexpr SamplingParams kParams = {.temperature = 1.1f, .top_k = 12, .top_p = 0.97f};

/// Proposes the same candidates for the two next tokens every time.
class FixedDrafter final : public Drafter {
  public:
    FixedDrafter(std::vector<int32_t> first, std::vector<int32_t> second)
        : Drafter(2, 8), candidates_{std::move(first), std::move(second)} {}

    void ingest(std::span<const IngestSegment>) override {}
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) override {
        for (size_t i = 0; i < contexts.size(); ++i) {
            const LatticeView& lattice = lattices[i];
            *lattice.depths = 2;
            for (int32_t depth = 0; depth < 2; ++depth) {
                const std::vector<int32_t>& tokens = candidates_[static_cast<size_t>(depth)];
                lattice.state_count[depth] = static_cast<int32_t>(tokens.size());
                for (size_t s = 0; s < tokens.size(); ++s) {
                    lattice.token[lattice.at(depth, static_cast<int32_t>(s))] = tokens[s];
                    lattice.log_prob[lattice.at(depth, static_cast<int32_t>(s))] =
                        -1.0f - static_cast<float>(s) * 0.1f;
                }
            }
        }
    }

  private:
    std::vector<int32_t> candidates_[2];
};

std::vector<double> distribution(ModelRunner& model, const std::vector<int32_t>& tokens) {
    const std::vector<float> logits = model.logits_of(tokens);
    const auto vocabulary = static_cast<size_t>(model.vocabulary());
    std::vector<double> out(vocabulary);
    SamplerScratch scratch;
    sampling_distribution(std::span(logits).last(vocabulary), kParams, out, scratch);
    return out;
}

std::vector<int32_t> most_likely(const std::vector<double>& probability, size_t count) {
    std::vector<int32_t> ids(probability.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                      [&](int32_t a, int32_t b) {
                          return probability[static_cast<size_t>(a)] >
                                 probability[static_cast<size_t>(b)];
                      });
    ids.resize(count);
    return ids;
}

/// The chi-square value that is exceeded with probability 1e-4 (Wilson and Hilferty 1931).
double critical_value(double degrees) {
    constexpr double kNormalQuantile = 3.719;
    const double a = 2.0 / (9.0 * degrees);
    return degrees * std::pow(1 - a + kNormalQuantile * std::sqrt(a), 3);
}

using Pair = std::pair<int32_t, int32_t>;

/// Chi-square of observed pairs against exact probabilities; cells that expect fewer than five are
/// merged into one. Returns the statistic and its degrees of freedom.
std::pair<double, double> chi_square(const std::map<Pair, double>& exact,
                                     const std::map<Pair, int>& seen, int draws) {
    double statistic = 0, rest_expected = 0, rest_seen = draws;
    int cells = 0;
    for (const auto& [pair, probability] : exact) {
        const double expected = probability * draws;
        if (expected < 5) {
            rest_expected += expected;
            continue;
        }
        const auto found = seen.find(pair);
        const double count = found == seen.end() ? 0 : found->second;
        statistic += (count - expected) * (count - expected) / expected;
        rest_seen -= count;
        ++cells;
    }
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    return {statistic, cells};
}

/// Exact probabilities of the two tokens after `prompt`.
std::map<Pair, double> exact_pairs(ModelRunner& model, const std::vector<int32_t>& prompt) {
    std::map<Pair, double> exact;
    const std::vector<double> first = distribution(model, prompt);
    for (size_t a = 0; a < first.size(); ++a) {
        if (first[a] == 0) continue;
        std::vector<int32_t> longer = prompt;
        longer.push_back(static_cast<int32_t>(a));
        const std::vector<double> second = distribution(model, longer);
        for (size_t b = 0; b < second.size(); ++b) {
            if (second[b] > 0) {
                exact[{static_cast<int32_t>(a), static_cast<int32_t>(b)}] = first[a] * second[b];
            }
        }
    }
    return exact;
}

TEST(SamplingSmolLm2, PairsFromTreesPassAChiSquareTest) {
    const std::optional<std::string> path = smollm2_path();
    if (!path) GTEST_SKIP() << "SmolLM2 is not in the cache folder";
    const std::vector<int32_t> prompt = {504, 4626, 7313};  // "The river runs"
    ModelRunner model(*path, Kernels::fast, 16);
    const std::map<Pair, double> exact = exact_pairs(model, prompt);
    const std::vector<int32_t> first = most_likely(distribution(model, prompt), 3);
    std::vector<int32_t> longer = prompt;
    longer.push_back(first[0]);
    const std::vector<int32_t> second = most_likely(distribution(model, longer), 3);

    Config config{.model = *path, .context_length = 16, .max_running_requests = 8};
    config.max_draft_tokens = 13;
    Engine engine(config, std::make_unique<FixedDrafter>(first, second));
    constexpr int kDraws = 2000;
    std::vector<Request> requests;
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
        SamplingParams params = kParams;
        params.seed = seed;
        requests.push_back(
            {.prompt = prompt, .sampling = params, .max_tokens = 2, .speculation = {.nodes = 13}});
    }
    std::map<Pair, int> seen;
    int in_one_round = 0;
    for (const Delta& output : run_all(engine, requests)) {
        // A stop token ends a text early; it cannot stand first in this one's.
        ASSERT_EQ(output.ids.size(), 2u);
        seen[{output.ids[0], output.ids[1]}] += 1;
        in_one_round += output.stats.rounds == 1 ? 1 : 0;
    }
    EXPECT_GT(in_one_round, kDraws / 5) << "the tree took no part in this";
    const auto [statistic, degrees] = chi_square(exact, seen, kDraws);
    EXPECT_GT(degrees, 15);
    EXPECT_LT(statistic, critical_value(degrees));
    for (const auto& [pair, count] : seen) {
        EXPECT_TRUE(exact.contains(pair)) << pair.first << ", " << pair.second;
    }
}

/// Texts of several seeds by plain decoding, chains and trees.
void expect_one_text_a_seed(const std::string& model, int32_t max_tokens,
                            const std::vector<std::vector<int32_t>>& prompts) {
    Config config{.model = model, .context_length = 256, .max_running_requests = 4};
    Engine engine(config);
    const auto texts = [&](const Speculation& speculation) {
        std::vector<Request> requests;
        for (size_t i = 0; i < prompts.size(); ++i) {
            requests.push_back({.prompt = prompts[i],
                                .sampling = {.temperature = 0.9f,
                                             .top_k = i % 2 == 0 ? 0 : 40,
                                             .top_p = 0.95f,
                                             .min_p = i % 3 == 0 ? 0.02f : 0.0f,
                                             .seed = 1000 + i},
                                .max_tokens = max_tokens,
                                .speculation = speculation});
        }
        std::vector<std::vector<int32_t>> ids;
        for (const Delta& output : run_all(engine, requests)) ids.push_back(output.ids);
        return ids;
    };
    const std::vector<std::vector<int32_t>> plain = texts({.shape = DraftShape::plain});
    EXPECT_EQ(texts({.shape = DraftShape::chain, .nodes = 6}), plain);
    EXPECT_EQ(texts({.shape = DraftShape::tree, .nodes = 4}), plain);
    EXPECT_EQ(texts({.shape = DraftShape::tree, .nodes = 16}), plain);
    EXPECT_NE(plain.front(), plain.back());
}

TEST(Sampling, OneSeedOneTextOnTheTinyModel) {
    expect_one_text_a_seed(tiny_model_path(), 60, random_prompts(24, 30, 320, 77));
}

TEST(SamplingSmolLm2, OneSeedOneText) {
    const std::optional<std::string> path = smollm2_path();
    if (!path) GTEST_SKIP() << "SmolLM2 is not in the cache folder";
    expect_one_text_a_seed(*path, 32,
                           {{504, 4626, 7313}, {1, 9690, 198}, {28, 284, 260}, {36, 20257, 216}});
}

}  // namespace
}  // namespace kd
