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
};

}  // namespace kd
