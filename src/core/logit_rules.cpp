#include "core/logit_rules.h"

#include <bit>
#include <limits>

#include "base/check.h"

namespace kd {

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void apply_penalties(std::span<float> logits, const SamplingParams& params,
                     const TokenCounts& counts) {
    const float repetition = params.repetition_penalty;
    for (const int32_t token : counts.distinct()) {
        float& logit = logits[static_cast<size_t>(token)];
        logit = logit > 0.0f ? logit / repetition : logit * repetition;
        const int32_t times = counts.in_answer(token);
        if (times == 0) continue;
        logit -= params.frequency_penalty * static_cast<float>(times);
        logit -= params.presence_penalty;
    }
}

void apply_mask(std::span<float> logits, std::span<const uint32_t> allowed) {
    for (size_t word = 0; word < allowed.size(); ++word) {
        // Bits beyond the vocabulary, in the last word, mean nothing.
        for (uint32_t missing = ~allowed[word]; missing != 0; missing &= missing - 1) {
            const size_t token = word * 32 + static_cast<size_t>(std::countr_zero(missing));
            if (token < logits.size()) logits[token] = kForbidden;
        }
    }
}

}  // namespace

TokenCounts::TokenCounts(int32_t vocabulary, std::span<const int32_t> prompt)
    : in_answer_(static_cast<size_t>(vocabulary)), in_prompt_(static_cast<size_t>(vocabulary)) {
    for (const int32_t token : prompt) {
        const auto index = static_cast<size_t>(token);
        if (!in_prompt_[index]) distinct_.push_back(token);
        in_prompt_[index] = true;
    }
}

void TokenCounts::push(int32_t token) {
    const auto index = static_cast<size_t>(token);
    if (in_answer_[index]++ == 0 && !in_prompt_[index]) distinct_.push_back(token);
}

void TokenCounts::pop(int32_t token) {
    const auto index = static_cast<size_t>(token);
    KD_CHECK(in_answer_[index] > 0, "token {} is taken back and was never counted", token);
    // What came last went to the end of the list, if it was new.
    if (--in_answer_[index] == 0 && !in_prompt_[index]) distinct_.pop_back();
}

bool has_penalties(const SamplingParams& params) {
    return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
           params.frequency_penalty != 0.0f;
}

void apply_logit_rules(std::span<float> logits, const SamplingParams& params,
                       const TokenCounts& counts, const LogitRules& rules) {
    apply_penalties(logits, params, counts);
    for (const LogitBias& each : rules.bias) logits[static_cast<size_t>(each.token)] += each.bias;
    for (const int32_t token : rules.forbidden) logits[static_cast<size_t>(token)] = kForbidden;
    KD_CHECK(rules.allowed.empty() || rules.allowed.size() == (logits.size() + 31) / 32,
             "a mask of {} words for {} logits", rules.allowed.size(), logits.size());
    apply_mask(logits, rules.allowed);
}

}  // namespace kd
