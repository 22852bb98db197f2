// How a request wants its tokens drawn. Defaults are greedy.
#pragma once

#include <cstdint>

namespace kd {

struct SamplingParams {
    float temperature = 0.0f;  // 0: greedy
    int32_t top_k = 0;         // keep the k most likely tokens; 0: all
    float top_p = 1.0f;        // keep the smallest set of most likely tokens with mass >= top_p
    float min_p = 0.0f;        // keep tokens with probability >= min_p * the largest one
    uint64_t seed = 0;
    float repetition_penalty =
        1.0f;                        // logits of tokens in prompt or answer: / it if > 0, else * it
    float presence_penalty = 0.0f;   // subtracted from the logits of tokens in the answer
    float frequency_penalty = 0.0f;  // the same, for every time the token stands in the answer
    int32_t min_tokens = 0;          // no stop token before so many tokens of the answer
    bool ignore_eos = false;         // stop tokens are tokens like any other
};

/// Added to the logit of one token; -inf forbids it.
struct LogitBias {
    int32_t token = 0;
    float bias = 0.0f;
};

}  // namespace kd
