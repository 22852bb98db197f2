// Log-probabilities of the target's own distribution: natural, of the raw logits, before
// temperature, penalties, bias and masks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling_params.h"

namespace kd {

/// Log-softmax of one row, [vocabulary] both: out[i] = (logits[i] - largest) - log(mass), where
/// mass sums exp(logits - largest) by vocabulary blocks (softmax.h); the same bits on every machine
/// up to its double logarithm. Within about 1e-6 of the truth, relative above 8. NaN counts as
/// -inf. If the largest logit is +inf, all such tokens share the mass. Throws kd::Error for a row
/// without a finite logit.
void log_softmax(std::span<const float> logits, std::span<float> out);

/// The first tokens by (logprob descending, id ascending). top: as many as are wanted, at most as
/// many as there are logprobs; filled from the front.
void top_logprobs(std::span<const float> logprobs, std::span<TokenLogprob> top);

/// Where the logprobs of several positions go. Views of the caller's storage.
struct LogprobsView {
    int32_t top = -1;                     // tokens listed a position; -1: no logprobs are wanted
    float* logprob = nullptr;             // [positions] of the token that stands there
    TokenLogprob* most_likely = nullptr;  // [positions, stride]
    int32_t stride = 0;                   // >= top

    std::span<TokenLogprob> top_of(int64_t position) const {
        return {most_likely + position * stride, static_cast<size_t>(top)};
    }
};

/// Fills `position` of `out` for `token` after a row of logits. scratch: a row, resized. Throws as
/// log_softmax and expect_numbers (softmax.h) do.
void write_logprobs(std::span<const float> logits, int32_t token, const LogprobsView& out,
                    int64_t position, std::vector<float>& scratch);

}  // namespace kd
