// The rules against a plain Python computation of the same formulas, bit for bit
// (tools/make_logit_rules_fixtures.py), and the books of the counts.
#include "core/logit_rules.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

namespace kd {
namespace {

using Json = nlohmann::json;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float number(const Json& value) {
    if (value.is_number()) return static_cast<float>(value.get<double>());
    if (value == "inf") return kInfinity;
    if (value == "-inf") return -kInfinity;
    EXPECT_EQ(value, "nan");
    return std::numeric_limits<float>::quiet_NaN();
}

std::vector<float> numbers(const Json& values) {
    std::vector<float> out;
    for (const Json& value : values) out.push_back(number(value));
    return out;
}

std::vector<uint32_t> mask_of(const std::vector<int32_t>& allowed, size_t vocabulary) {
    // Unused bits are set: they must not matter.
    std::vector<uint32_t> words((vocabulary + 31) / 32, 0);
    if (vocabulary % 32 != 0) words.back() = ~0u << (vocabulary % 32);
    for (const int32_t token : allowed)
        words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    return words;
}

/// Equal bits, or both NaN.
void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
        if (std::isnan(expected[i])) {
            EXPECT_TRUE(std::isnan(actual[i])) << "token " << i;
        } else {
            EXPECT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
                << "token " << i << ": " << actual[i] << " for " << expected[i];
        }
    }
}

TEST(LogitRules, EqualAPlainPythonComputationBitForBit) {
    std::ifstream file(KD_TEST_DATA "/core/logit_rules.json");
    const Json fixture = Json::parse(file);
    ASSERT_GE(fixture["cases"].size(), 50u);
    for (size_t i = 0; i < fixture["cases"].size(); ++i) {
        SCOPED_TRACE(i);
        const Json& each = fixture["cases"][i];
        std::vector<float> logits = numbers(each["logits"]);
        const auto answer = each["answer"].get<std::vector<int32_t>>();
        const auto stop_ids = each["stop_ids"].get<std::vector<int32_t>>();
        const SamplingParams params = {.repetition_penalty = number(each["repetition"]),
                                       .presence_penalty = number(each["presence"]),
                                       .frequency_penalty = number(each["frequency"])};
        TokenCounts counts;
        if (has_penalties(params)) {
            counts = TokenCounts(static_cast<int32_t>(logits.size()),
                                 each["prompt"].get<std::vector<int32_t>>());
            for (const int32_t token : answer) counts.push(token);
        }
        std::vector<LogitBias> bias;
        for (const Json& pair : each["bias"]) {
            bias.push_back({.token = pair[0].get<int32_t>(), .bias = number(pair[1])});
        }
        std::vector<uint32_t> allowed;
        if (!each["allowed"].is_null()) {
            allowed = mask_of(each["allowed"].get<std::vector<int32_t>>(), logits.size());
        }
        LogitRules rules = {.bias = bias, .allowed = allowed};
        if (answer.size() < each["min_tokens"].get<size_t>()) rules.forbidden = stop_ids;
        apply_logit_rules(logits, params, counts, rules);
        expect_same_bits(logits, numbers(each["expected"]));
    }
}

TEST(LogitRules, WithoutRulesNothingChanges) {
    const std::vector<float> logits = {1.0f, -2.0f, kInfinity, 0.0f};
    std::vector<float> row = logits;
    apply_logit_rules(row, {}, {}, {});
    expect_same_bits(row, logits);
}

TEST(LogitRules, AMaskOfTheWrongLengthIsCaught) {
    std::vector<float> row(33);
    const std::vector<uint32_t> allowed(1, ~0u);
    EXPECT_DEATH(apply_logit_rules(row, {}, {}, {.allowed = allowed}), "1 words for 33 logits");
}

/// What the counts should say, from the whole history.
void expect_counts(const TokenCounts& counts, const std::vector<int32_t>& prompt,
                   const std::vector<int32_t>& answer) {
    std::set<int32_t> expected(prompt.begin(), prompt.end());
    std::map<int32_t, int32_t> times;
    for (const int32_t token : answer) times[token] += 1;
    for (const auto& [token, count] : times) expected.insert(token);
    const std::set<int32_t> distinct(counts.distinct().begin(), counts.distinct().end());
    EXPECT_EQ(distinct, expected);
    EXPECT_EQ(counts.distinct().size(), distinct.size()) << "a token is listed twice";
    for (const int32_t token : expected) EXPECT_EQ(counts.in_answer(token), times[token]);
}

TEST(TokenCounts, PushAndPopKeepTheBooks) {
    constexpr uint32_t kSeed = 40;
    std::printf("seed %u\n", kSeed);
    std::mt19937 random(kSeed);
    const std::vector<int32_t> prompt = {3, 3, 7, 1};
    TokenCounts counts(12, prompt);
    std::vector<int32_t> answer;
    for (int step = 0; step < 2000; ++step) {
        if (answer.empty() || random() % 2 == 0) {
            answer.push_back(static_cast<int32_t>(random() % 12));
            counts.push(answer.back());
        } else {
            counts.pop(answer.back());
            answer.pop_back();
        }
        expect_counts(counts, prompt, answer);
    }
    EXPECT_FALSE(counts.empty());
    EXPECT_TRUE(TokenCounts().empty());
}

TEST(TokenCounts, TakingBackWhatWasNeverCountedIsCaught) {
    TokenCounts counts(4, std::vector<int32_t>{1});
    EXPECT_DEATH(counts.pop(1), "token 1 is taken back");
}

}  // namespace
}  // namespace kd
