#include "core/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "reference_sampling.h"

namespace kd {
namespace {

constexpr uint64_t kSeed = 7;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kLastDraw = 1.0 - 0x1p-53;
#ifdef __SANITIZE_ADDRESS__
constexpr int kScale = 5;
#else
constexpr int kScale = 1;
#endif

class Sampling : public testing::Test {
  protected:
    int32_t sample(const std::vector<float>& logits, const SamplingParams& params, double draw) {
        return sample_token(logits, params, draw, scratch_);
    }
    std::vector<double> distribution(const std::vector<float>& logits,
                                     const SamplingParams& params) {
        std::vector<double> out(logits.size());
        sampling_distribution(logits, params, out, scratch_);
        return out;
    }

    SamplerScratch scratch_;
};

TEST_F(Sampling, GreedyTakesTheLowestOfTheLargest) {
    EXPECT_EQ(sample({1, 3, 2, 3}, {}, 0.9), 1);
    EXPECT_EQ(sample({kNaN, -5, kNaN, -4, kNaN}, {}, 0.0), 3);
    EXPECT_EQ(sample({-kInfinity, -1, kInfinity, kInfinity}, {}, 0.0), 2);
    EXPECT_EQ(sample({-0.0f, 0.0f}, {}, 0.0), 0);
    // Every position of a row that is no multiple of the lanes, ties behind it.
    for (size_t best = 0; best < 75; ++best) {
        std::vector<float> logits(75, -2.0f);
        for (size_t i = best; i < logits.size(); i += 3) logits[i] = 1.5f;
        EXPECT_EQ(sample(logits, {}, 0.0), static_cast<int32_t>(best));
    }
    EXPECT_EQ(distribution({1, 3, 2, 3}, {}), (std::vector<double>{0, 1, 0, 0}));
}

TEST_F(Sampling, RowsWithoutAFiniteLogitAreRefused) {
    for (const float temperature : {0.0f, 1.0f}) {
        const SamplingParams params = {.temperature = temperature};
        EXPECT_THROW(sample({}, params, 0.5), Error);
        EXPECT_THROW(sample({kNaN, kNaN}, params, 0.5), Error);
        EXPECT_THROW(sample({-kInfinity, kNaN, -kInfinity}, params, 0.5), Error);
        EXPECT_THROW(sample({-kInfinity, kInfinity}, params, 0.5), Error);
        EXPECT_EQ(sample({kNaN, -kInfinity, -1e30f}, params, 0.5), 2);
    }
    EXPECT_EQ(distribution({0, kInfinity, kNaN, kInfinity}, {.temperature = 2.0f}),
              (std::vector<double>{0, 0.5, 0, 0.5}));
}

TEST_F(Sampling, WeightsAreExponentials) {
    // Two tokens: the ratio of their probabilities is the weight of the second.
    double worst = 0.0;
    for (int i = 0; i < 87000; ++i) {
        const float logit = -static_cast<float>(i) * 0.001f;
        const auto p = distribution({0.0f, logit}, {.temperature = 1.0f});
        worst = std::max(worst, std::abs(p[1] / p[0] / std::exp(double{logit}) - 1.0));
    }
    RecordProperty("worst_relative_error", std::to_string(worst));
    EXPECT_LT(worst, 2e-7);
    EXPECT_GT(distribution({0.0f, -87.0f}, {.temperature = 1.0f})[1], 0.0);
    EXPECT_EQ(distribution({0.0f, -87.5f}, {.temperature = 1.0f})[1], 0.0);
    EXPECT_EQ(distribution({0.0f, -1e-3f}, {.temperature = 1e-45f})[1], 0.0);
}

TEST_F(Sampling, AgreesWithTheDefinition) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    std::mt19937_64 random(kSeed);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::uniform_real_distribution<double> unit(0.0, 1.0);
    const size_t vocabularies[] = {1, 3, 17, 200, 1023, 1024, 1025, 3000};
    for (int i = 0; i < 3000 / kScale; ++i) {
        SCOPED_TRACE(testing::Message() << "row " << i << " of seed " << kSeed);
        const size_t vocabulary = vocabularies[random() % 8];
        std::vector<float> logits(vocabulary);
        for (float& logit : logits) {
            logit = normal(random);
            if (i % 3 == 0) logit = std::round(logit);  // ties
            if (i % 7 == 0 && random() % 5 == 0) logit = random() % 2 == 0 ? kNaN : -kInfinity;
        }
        logits[random() % vocabulary] = 1.0f;
        SamplingParams params = {.temperature = static_cast<float>(0.2 + 2.0 * unit(random))};
        if (random() % 2 == 0) params.top_k = 1 + static_cast<int32_t>(random() % vocabulary);
        if (random() % 2 == 0) params.top_p = static_cast<float>(0.05 + 0.95 * unit(random));
        if (random() % 2 == 0) params.min_p = static_cast<float>(0.3 * unit(random));

        const auto expected = reference_distribution(logits, params);
        const auto actual = distribution(logits, params);
        const double largest = std::ranges::max(expected);
        double total = 0.0;
        for (size_t t = 0; t < vocabulary; ++t) {
            // The exponent x takes two roundings of at most 2^-24 |x|, the exponential 2e-7.
            const double exponent = std::log(std::max(expected[t], 1e-300) / largest);
            const double tolerance = (4e-7 - exponent * 0x1p-23) * expected[t] + 1e-37;
            ASSERT_NEAR(actual[t], expected[t], tolerance) << "token " << t;
            total += actual[t];
        }
        ASSERT_NEAR(total, 1.0, 1e-12);

        for (int d = 0; d < 8; ++d) {
            const double draw = d == 0 ? 0.0 : d == 1 ? kLastDraw : unit(random);
            const int32_t token = sample(logits, params, draw);
            double below = 0.0;
            for (int32_t t = 0; t < token; ++t) below += expected[static_cast<size_t>(t)];
            const double mass = expected[static_cast<size_t>(token)];
            ASSERT_GT(mass, 0.0);
            ASSERT_LE(below, draw + 1e-6);
            ASSERT_GT(below + mass, draw - 1e-6);
        }
    }
}

TEST_F(Sampling, TiesGoToTheLowestIds) {
    const std::vector<float> equal(6, 0.5f);
    const double third = 1.0 / 3.0;
    EXPECT_EQ(distribution(equal, {.temperature = 0.7f, .top_k = 3}),
              (std::vector<double>{third, third, third, 0, 0, 0}));
    EXPECT_EQ(distribution(equal, {.temperature = 0.7f, .top_p = 0.5f}),
              (std::vector<double>{third, third, third, 0, 0, 0}));
    EXPECT_EQ(distribution({0, 2, 1, 2, 1, 1}, {.temperature = 0.001f, .top_k = 1}),
              (std::vector<double>{0, 1, 0, 0, 0, 0}));
    EXPECT_EQ(distribution(equal, {.temperature = 1.0f, .top_p = 1e-30f}),
              (std::vector<double>{1, 0, 0, 0, 0, 0}));
}

TEST_F(Sampling, RestrictionsApplyInTheirOrder) {
    // Weights 8, 4, 2, 1, 1.
    std::vector<float> logits;
    for (const double weight : {1.0, 8.0, 2.0, 4.0, 1.0}) {
        logits.push_back(static_cast<float>(std::log(weight)));
    }
    // top_k leaves 8, 4, 2: 8 is 0.571 and 12 is 0.857 of that mass, but 0.5 and 0.75 of the whole.
    const auto sequential = distribution(logits, {.temperature = 1.0f, .top_k = 3, .top_p = 0.8f});
    EXPECT_EQ(sequential[2], 0.0);
    EXPECT_NEAR(sequential[1], 2.0 / 3.0, 1e-7);
    const auto top_p = distribution(logits, {.temperature = 1.0f, .top_p = 0.8f});
    EXPECT_NEAR(top_p[2], 1.0 / 7.0, 1e-7);
    // min_p looks at the largest probability, whatever was cut.
    const auto min_p = distribution(logits, {.temperature = 1.0f, .top_k = 4, .min_p = 0.2f});
    EXPECT_EQ(min_p[0], 0.0);
    EXPECT_NEAR(min_p[2], 1.0 / 7.0, 1e-7);
    EXPECT_EQ(distribution(logits, {.temperature = 1.0f, .min_p = 1.0f})[1], 1.0);
}

TEST_F(Sampling, DrawsSelectInTokenOrderAcrossBlocks) {
    const std::vector<float> uniform(3 * kVocabularyBlock + 100, -3.0f);
    const double tokens = static_cast<double>(uniform.size());
    for (int32_t t = 0; t < static_cast<int32_t>(uniform.size()); t += t % 1024 < 1022 ? 73 : 1) {
        EXPECT_EQ(sample(uniform, {.temperature = 1.0f}, (t + 0.5) / tokens), t);
    }
    EXPECT_EQ(sample(uniform, {.temperature = 1.0f}, kLastDraw), uniform.size() - 1);
}

TEST_F(Sampling, TokensWithoutMassAreNeverDrawn) {
    // Mass only around block borders; weights that are no binary fractions, so the sums round.
    std::vector<float> logits(4 * kVocabularyBlock, -kInfinity);
    const std::vector<size_t> alive = {1, 1023, 1024, 2047, 2050, 3071};
    for (size_t i = 0; i < alive.size(); ++i) logits[alive[i]] = -0.1f * static_cast<float>(i);
    for (const float temperature : {0.3f, 1.0f, 7.0f}) {
        const SamplingParams params = {.temperature = temperature};
        EXPECT_EQ(sample(logits, params, 0.0), 1);
        EXPECT_EQ(sample(logits, params, kLastDraw), 3071);
        const auto p = distribution(logits, params);
        double through = 0.0;
        for (const size_t token : alive) {
            through += p[token];
            for (int step = -3; step <= 3; ++step) {
                const double draw = std::min(through + step * 0x1p-53, kLastDraw);
                const int32_t drawn = sample(logits, params, draw);
                EXPECT_GT(p[static_cast<size_t>(drawn)], 0.0) << drawn;
            }
        }
    }
}

TEST_F(Sampling, DrawsOutsideTheUnitIntervalAreCaught) {
    EXPECT_DEATH(sample({0, 1}, {.temperature = 1.0f}, 1.0), "draw 1");
    EXPECT_DEATH(sample({0, 1}, {.temperature = 1.0f}, -0.1), "draw -0.1");
}

TEST(ValidateSamplingParams, NamesTheValueOutOfRange) {
    EXPECT_NO_THROW(validate({}));
    EXPECT_NO_THROW(
        validate({.temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f, .seed = 1}));
    const std::vector<std::pair<SamplingParams, std::string>> bad = {
        {{.temperature = -1.0f}, "temperature -1"},
        {{.temperature = kNaN}, "temperature nan"},
        {{.temperature = kInfinity}, "temperature inf"},
        {{.top_k = -2}, "top_k -2"},
        {{.top_p = 0.0f}, "top_p 0"},
        {{.top_p = 1.5f}, "top_p 1.5"},
        {{.top_p = kNaN}, "top_p nan"},
        {{.min_p = -0.5f}, "min_p -0.5"},
        {{.min_p = 2.0f}, "min_p 2"}};
    for (const auto& [params, words] : bad) {
        try {
            validate(params);
            ADD_FAILURE() << words << " was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.code, ErrorCode::invalid_argument);
            EXPECT_EQ(std::string(error.what()).substr(0, words.size()), words);
        }
    }
}

}  // namespace
}  // namespace kd
