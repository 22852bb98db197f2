#include "core/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "core/softmax.h"

namespace kd {

void log_softmax(std::span<const float> logits, std::span<float> out) {
    KD_CHECK(out.size() == logits.size(), "{} logprobs for {} logits", out.size(), logits.size());
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const size_t tokens = logits.size();
    const float largest = largest_logit(logits);
    const float* const in = logits.data();
    float* const result = out.data();
    // `largest` itself by comparison: infinity less infinity is no number.
    for (size_t i = 0; i < tokens; ++i) {
        result[i] = select(in[i] == largest, 1.0f, exp_of_negative(in[i] - largest));
    }
    double mass = 0.0;
    for (int64_t block = 0; block < vocabulary_blocks(static_cast<int64_t>(tokens)); ++block) {
        mass += block_mass(out, block);
    }
    const double log_mass = std::log(mass);
    const auto of_largest = static_cast<float>(-log_mass);
    for (size_t i = 0; i < tokens; ++i) {
        const auto value = static_cast<float>(double{in[i]} - double{largest} - log_mass);
        const float less = select(in[i] < largest, value, -kInfinity);  // NaN compares false
        result[i] = select(in[i] == largest, of_largest, less);
    }
}

void top_logprobs(std::span<const float> logprobs, std::span<TokenLogprob> top) {
    KD_CHECK(top.size() <= logprobs.size(), "{} of {} tokens", top.size(), logprobs.size());
    if (top.empty()) return;
    size_t filled = 0;
    float least = -std::numeric_limits<float>::infinity();  // the last one's, once all are filled
    for (size_t i = 0; i < logprobs.size(); ++i) {
        const float logprob = logprobs[i];
        if (filled == top.size() && !(logprob > least)) continue;
        if (filled < top.size()) ++filled;
        // Ids come in ascending order: an equal one stays in front.
        size_t place = filled - 1;
        for (; place > 0 && top[place - 1].logprob < logprob; --place) top[place] = top[place - 1];
        top[place] = {.token = static_cast<int32_t>(i), .logprob = logprob};
        least = top[filled - 1].logprob;
    }
}

void write_logprobs(std::span<const float> logits, int32_t token, const LogprobsView& out,
                    int64_t position, std::vector<float>& scratch) {
    expect_numbers(logits);
    scratch.resize(logits.size());
    log_softmax(logits, scratch);
    out.logprob[position] = scratch[static_cast<size_t>(token)];
    top_logprobs(scratch, out.top_of(position));
}

}  // namespace kd
