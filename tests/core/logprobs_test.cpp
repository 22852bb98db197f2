// Log-probabilities against their definition in long double.
#include "core/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/error.h"

namespace kd {
namespace {

constexpr uint32_t kSeed = 23;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_row(std::mt19937& random, size_t tokens, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> row(tokens);
    for (float& logit : row) logit = normal(random);
    return row;
}

std::vector<long double> reference(const std::vector<float>& logits) {
    long double largest = -std::numeric_limits<long double>::infinity();
    for (const float logit : logits) {
        if (!std::isnan(logit)) largest = std::max(largest, static_cast<long double>(logit));
    }
    long double mass = 0;
    for (const float logit : logits) {
        if (!std::isnan(logit)) mass += std::exp(static_cast<long double>(logit) - largest);
    }
    std::vector<long double> out;
    for (const float logit : logits) {
        out.push_back(std::isnan(logit) ? -std::numeric_limits<long double>::infinity()
                                        : logit - largest - std::log(mass));
    }
    return out;
}

TEST(LogSoftmax, WithinOneMillionthOfTheTruth) {
    std::printf("seed %u\n", kSeed);
    std::mt19937 random(kSeed);
    double worst = 0;
    for (const size_t tokens : {1u, 2u, 15u, 17u, 1024u, 1025u, 49152u}) {
        for (const float scale : {0.01f, 1.0f, 5.0f, 40.0f}) {
            std::vector<float> logits = random_row(random, tokens, scale);
            if (tokens > 15) logits[7] = kNaN;
            if (tokens > 15) logits[11] = -kInfinity;
            std::vector<float> out(tokens);
            log_softmax(logits, out);
            const std::vector<long double> expected = reference(logits);
            for (size_t i = 0; i < tokens; ++i) {
                if (std::isinf(expected[i])) {
                    ASSERT_EQ(out[i], -kInfinity) << i;
                    continue;
                }
                // 2e-7 of the mass, and the result's own rounding.
                const double tolerance =
                    5e-7 + 0x1p-23 * std::abs(static_cast<double>(expected[i]));
                const double error = std::abs(static_cast<double>(out[i] - expected[i]));
                worst = std::max(worst, error / tolerance);
                ASSERT_LE(error, tolerance) << tokens << " tokens, scale " << scale << ", " << i;
            }
        }
    }
    std::printf("worst error: %.2f of the tolerance\n", worst);
}

TEST(LogSoftmax, AnInfiniteLogitTakesAllTheMass) {
    std::vector<float> out(4);
    log_softmax(std::vector<float>{1.0f, kInfinity, kNaN, -kInfinity}, out);
    EXPECT_EQ(out, (std::vector<float>{-kInfinity, 0.0f, -kInfinity, -kInfinity}));
    log_softmax(std::vector<float>{kInfinity, 5.0f, kInfinity, 0.0f}, out);
    EXPECT_FLOAT_EQ(out[0], -std::log(2.0f));
    EXPECT_EQ(out[2], out[0]);
    EXPECT_EQ(out[1], -kInfinity);
}

TEST(LogSoftmax, ARowWithoutAFiniteLogitIsRefused) {
    std::vector<float> out(2);
    EXPECT_THROW(log_softmax(std::vector<float>{-kInfinity, kNaN}, out), Error);
    EXPECT_THROW(log_softmax(std::vector<float>{kInfinity, kInfinity}, out), Error);
}

TEST(TopLogprobs, EqualASortByLogprobAndId) {
    std::mt19937 random(kSeed);
    for (int round = 0; round < 300; ++round) {
        const size_t tokens = random() % 400 + 1;
        std::vector<float> logprobs = random_row(random, tokens, 3.0f);
        for (float& value : logprobs) {
            if (round % 2 == 0) value = std::round(value);  // ties
            if (random() % 10 == 0) value = -kInfinity;
        }
        if (round % 3 == 0) std::ranges::sort(logprobs);  // the worst order for the insertion
        std::vector<int32_t> ids(tokens);
        std::iota(ids.begin(), ids.end(), 0);
        std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) {
            return logprobs[static_cast<size_t>(a)] > logprobs[static_cast<size_t>(b)];
        });
        std::vector<TokenLogprob> top(std::min<size_t>(tokens, random() % 130));
        top_logprobs(logprobs, top);
        for (size_t i = 0; i < top.size(); ++i) {
            EXPECT_EQ(top[i].token, ids[i]) << "round " << round << ", place " << i;
            EXPECT_EQ(top[i].logprob, logprobs[static_cast<size_t>(ids[i])]);
        }
    }
}

TEST(WriteLogprobs, FillsItsPositionAndNoOther) {
    const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f};
    std::vector<float> logprob(3, 9.0f);
    std::vector<TokenLogprob> most_likely(15, TokenLogprob{.token = -7, .logprob = 9.0f});
    std::vector<float> scratch;
    write_logprobs(
        logits, 2,
        {.top = 2, .logprob = logprob.data(), .most_likely = most_likely.data(), .stride = 5}, 1,
        scratch);
    std::vector<float> expected(4);
    log_softmax(logits, expected);
    EXPECT_EQ(logprob, (std::vector<float>{9.0f, expected[2], 9.0f}));
    EXPECT_EQ(most_likely[5], (TokenLogprob{.token = 1, .logprob = expected[1]}));
    EXPECT_EQ(most_likely[6], (TokenLogprob{.token = 3, .logprob = expected[3]}));
    EXPECT_EQ(most_likely[4].token, -7);
    EXPECT_EQ(most_likely[7].token, -7);
}

}  // namespace
}  // namespace kd
