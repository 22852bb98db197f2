// How a request wants its tokens drawn, and what it wants to know about them. Defaults are greedy.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace kd {

struct SamplingParams {
    float temperature = 0.0f;  // 0: greedy
    int32_t top_k = 0;         // keep the k most likely tokens; 0: all
    float top_p = 1.0f;        // keep the smallest set of most likely tokens with mass >= top_p
    float min_p = 0.0f;        // keep tokens with probability >= min_p * the largest one
    uint64_t seed = 0;
    float repetition_penalty = 1.0f;  // tokens of prompt and answer: logit / it if > 0, else * it
    float presence_penalty = 0.0f;    // subtracted from the logits of tokens in the answer
    float frequency_penalty = 0.0f;   // the same, for every time the token stands in the answer
    int32_t min_tokens = 0;           // no stop token before so many tokens of the answer
    bool ignore_eos = false;          // a stop token does not end the answer
};

/// Added to the logit of one token; -inf forbids it.
struct LogitBias {
    int32_t token = 0;
    float bias = 0.0f;
};

/// Which tokens may follow `answer`, the emitted tokens on the path of one tree node. allowed
/// [ceil(vocabulary / 32)]: bit t % 32 of word t / 32 stands for token t; all are set at first.
/// Must be a function of its argument alone. Called by the thread that steps. What it throws ends
/// the request with FinishReason::error.
using LogitMask = std::function<void(std::span<const int32_t> answer, std::span<uint32_t> allowed)>;

/// Most tokens listed for one position.
inline constexpr int32_t kMaxTopLogprobs = 128;

/// Log-probabilities are natural and those of the target's own distribution: before temperature,
/// penalties, bias and masks.
struct TokenLogprob {
    int32_t token = 0;
    float logprob = 0.0f;

    bool operator==(const TokenLogprob&) const = default;
};

}  // namespace kd
