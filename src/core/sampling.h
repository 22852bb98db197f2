// From a row of logits to a token: greedy, or an inverse-CDF draw in token order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling_params.h"
#include "core/softmax.h"

namespace kd {

/// Scratch of sample_token and accept_tree, reusable.
struct SamplerScratch {
    std::vector<float> weight;       // [vocabulary] unnormalised, 0 where restricted
    std::vector<float> sorted;       // [vocabulary] logits, the largest first as far as needed
    std::vector<double> block_mass;  // [blocks of the vocabulary]
    // Where a request has rules or wants logprobs:
    std::vector<float> adjusted;    // [vocabulary] a row as the rules leave it
    std::vector<float> logprob;     // [vocabulary]
    std::vector<int32_t> answer;    // emitted tokens on the path of a node
    std::vector<uint32_t> allowed;  // [vocabulary / 32] bit words
};

/// The token that `draw` in [0, 1) selects. temperature 0: the argmax, ties to the lowest id.
/// Otherwise, in this order:
///  1. softmax(logits / temperature), float weights relative to the most likely token;
///  2. top_k: the first k tokens by (logit descending, id ascending);
///  3. top_p: of those, in the same order, the shortest prefix whose share of the mass that step 2
///     left is >= top_p;
///  4. min_p: of those, the tokens with weight >= min_p times the largest weight;
///  5. renormalise; the first token in id order whose cumulative mass exceeds draw * total. Masses
///     are summed in double by vocabulary blocks; a token without mass is never selected.
/// A weight below exp(-87) is 0. A NaN logit counts as -inf; a +inf logit takes all the mass; a row
/// without a finite logit throws kd::Error. `params` must have passed validate().
int32_t sample_token(std::span<const float> logits, const SamplingParams& params, double draw,
                     SamplerScratch& scratch);

/// The distribution that sample_token draws from, [vocabulary], summing to 1 (greedy: one 1).
void sampling_distribution(std::span<const float> logits, const SamplingParams& params,
                           std::span<double> out, SamplerScratch& scratch);

/// Throws kd::Error naming the first value out of range (temperature < 0 or not finite, top_p
/// outside (0, 1], min_p outside [0, 1], top_k < 0, repetition penalty <= 0 or not finite, presence
/// or frequency penalty outside [-2, 2], min tokens < 0).
void validate(const SamplingParams& params);

}  // namespace kd
