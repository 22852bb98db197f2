// From a row of logits to a token: greedy, or an inverse-CDF draw in token order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling_params.h"

namespace kd {

/// Tokens per block of the inverse CDF: the mass of a block is summed in token order, the blocks in
/// block order, so that every device draws alike.
inline constexpr int32_t kVocabularyBlock = 1024;

/// Scratch of sample_token, reusable.
struct SamplerScratch {
    std::vector<float> weight;  // [vocabulary]
    std::vector<float> sorted;
    std::vector<double> block_mass;
};

/// The token that `draw` in [0, 1) selects. temperature 0: the argmax, ties to the lowest id.
/// Otherwise softmax(logits / temperature) restricted to the top_k most likely (ties to the lowest
/// ids), then to the smallest set with mass >= top_p of what remains, and to tokens with at least
/// min_p of the largest probability; renormalised. A NaN logit counts as -inf; a row without a
/// finite logit throws kd::Error.
int32_t sample_token(std::span<const float> logits, const SamplingParams& params, double draw,
                     SamplerScratch& scratch);

/// The distribution that sample_token draws from, [vocabulary], summing to 1 (greedy: one 1).
void sampling_distribution(std::span<const float> logits, const SamplingParams& params,
                           std::span<double> out, SamplerScratch& scratch);

/// Throws kd::Error naming the first value out of range (temperature < 0 or not finite, top_p
/// outside (0, 1], min_p outside [0, 1], top_k < 0).
void validate(const SamplingParams& params);

}  // namespace kd
