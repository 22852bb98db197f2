#include "core/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"
#include "base/error.h"
#include "core/softmax.h"

namespace kd {

namespace {

// A token's mass before any restriction, relative to the most likely token. An infinite largest
// logit takes all the mass.
float weight_of(float logit, float largest, float temperature) {
    return select(logit == largest, 1.0f, exp_of_negative((logit - largest) / temperature));
}

int32_t greedy_token(std::span<const float> logits) {
    const float largest = largest_logit(logits);
    return static_cast<int32_t>(std::ranges::find(logits, largest) - logits.begin());
}

// Fills block_mass from the weights; returns the total, summed in block order.
double sum_blocks(SamplerScratch& scratch) {
    double total = 0.0;
    for (size_t block = 0; block < scratch.block_mass.size(); ++block) {
        scratch.block_mass[block] = block_mass(scratch.weight, static_cast<int64_t>(block));
        total += scratch.block_mass[block];
    }
    return total;
}

// Gathers the logits of the tokens with weight > 0 and >= floor in scratch.sorted, in token order;
// returns how many.
size_t gather_candidates(std::span<const float> logits, float floor, SamplerScratch& scratch) {
    scratch.sorted.resize(logits.size());
    const float least = std::max(floor, std::numeric_limits<float>::denorm_min());
    size_t count = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        scratch.sorted[count] = logits[i];  // overwritten unless it counts
        count += scratch.weight[i] >= least ? 1 : 0;
    }
    return count;
}

// Zeroes the weights of all but the first tokens in the order (logit descending, id ascending).
// first: the logits of the tokens to keep, in any order.
void keep_first(std::span<const float> logits, std::span<const float> first,
                SamplerScratch& scratch) {
    const float least = *std::ranges::min_element(first);
    auto ties = std::ranges::count(first, least);
    for (size_t i = 0; i < logits.size(); ++i) {
        const bool keep = logits[i] > least || (logits[i] == least && ties-- > 0);
        if (!keep) scratch.weight[i] = 0.0f;
    }
}

// Tokens without weight are not gathered: whether they are among the k changes nothing.
void keep_top_k(std::span<const float> logits, size_t top_k, SamplerScratch& scratch) {
    const size_t count = gather_candidates(logits, 0.0f, scratch);
    const std::span<float> candidates(scratch.sorted.data(), count);
    if (count <= top_k) return;
    std::ranges::nth_element(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(top_k),
                             std::greater<>());
    keep_first(logits, candidates.first(top_k), scratch);
}

void keep_top_p(std::span<const float> logits, float largest, const SamplingParams& params,
                SamplerScratch& scratch) {
    const double mass = sum_blocks(scratch);
    const double wanted = double{params.top_p} * mass;
    // All tokens lighter than this together hold less than half of what may be left out, so the
    // prefix that is looked for ends before the first of them.
    const double floor = 0.5 * (mass - wanted) / static_cast<double>(logits.size());
    const size_t count = gather_candidates(logits, static_cast<float>(floor), scratch);
    const std::span<float> candidates(scratch.sorted.data(), count);

    double reached = 0.0;
    size_t first = 0;
    for (size_t chunk = 64; first < count; first += chunk, chunk *= 4) {
        const size_t last = std::min(first + chunk, count);
        const auto rest = candidates.subspan(first);
        const auto end_of_chunk = rest.begin() + static_cast<std::ptrdiff_t>(last - first);
        if (last < count) std::ranges::nth_element(rest, end_of_chunk, std::greater<>());
        std::sort(rest.begin(), end_of_chunk, std::greater<>());
        for (size_t i = first; i < last; ++i) {
            reached += double{weight_of(candidates[i], largest, params.temperature)};
            if (reached >= wanted) return keep_first(logits, candidates.first(i + 1), scratch);
        }
    }
    // Only the rounding of the sums can lead here: everything is wanted.
}

// The unnormalised distribution after all restrictions in scratch.weight and its blocks; returns
// the total mass (> 0: the most likely token always stays). temperature > 0.
double fill_weights(std::span<const float> logits, const SamplingParams& params,
                    SamplerScratch& scratch) {
    const size_t tokens = logits.size();
    const float largest = largest_logit(logits);
    scratch.weight.resize(tokens);
    scratch.block_mass.resize(static_cast<size_t>(vocabulary_blocks(static_cast<int64_t>(tokens))));
    float* const weight = scratch.weight.data();
    const float temperature = params.temperature;
    for (size_t i = 0; i < tokens; ++i) weight[i] = weight_of(logits[i], largest, temperature);

    const size_t top_k = static_cast<size_t>(params.top_k);
    if (top_k > 0 && top_k < tokens) keep_top_k(logits, top_k, scratch);
    if (params.top_p < 1.0f) keep_top_p(logits, largest, params, scratch);
    if (params.min_p > 0.0f) {
        for (float& value : scratch.weight) value = select(value >= params.min_p, value, 0.0f);
    }
    return sum_blocks(scratch);
}

}  // namespace

int32_t sample_token(std::span<const float> logits, const SamplingParams& params, double draw,
                     SamplerScratch& scratch) {
    if (params.temperature == 0.0f) return greedy_token(logits);
    KD_CHECK(draw >= 0.0 && draw < 1.0, "draw {}", draw);
    const double target = draw * fill_weights(logits, params, scratch);

    double before = 0.0;
    for (size_t block = 0; block < scratch.block_mass.size(); ++block) {
        const double through = before + scratch.block_mass[block];
        if (through > target) {
            // The same additions in the same order as the block's mass: one of them must exceed
            // the target, and a token without mass cannot be the first that does.
            double mass = 0.0;
            for (size_t i = block * kVocabularyBlock; i < logits.size(); ++i) {
                mass += double{scratch.weight[i]};
                if (before + mass > target) return static_cast<int32_t>(i);
            }
        }
        before = through;
    }
    // draw <= 1 - 2^-53, so draw * total < total after rounding, and `through` ends at the total.
    KD_CHECK(false, "draw {} reached the whole mass {}", draw, before);
    return -1;
}

void sampling_distribution(std::span<const float> logits, const SamplingParams& params,
                           std::span<double> out, SamplerScratch& scratch) {
    KD_CHECK(out.size() == logits.size(), "{} probabilities for {} logits", out.size(),
             logits.size());
    if (params.temperature == 0.0f) {
        std::ranges::fill(out, 0.0);
        out[static_cast<size_t>(greedy_token(logits))] = 1.0;
        return;
    }
    const double total = fill_weights(logits, params, scratch);
    for (size_t i = 0; i < out.size(); ++i) out[i] = double{scratch.weight[i]} / total;
}

void validate(const SamplingParams& params) {
    if (!(params.temperature >= 0.0f && std::isfinite(params.temperature))) {
        KD_THROW(invalid_argument, "temperature {} is not a finite number >= 0",
                 params.temperature);
    }
    if (params.top_k < 0) KD_THROW(invalid_argument, "top_k {} is negative", params.top_k);
    if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
        KD_THROW(invalid_argument, "top_p {} is not in (0, 1]", params.top_p);
    }
    if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) {
        KD_THROW(invalid_argument, "min_p {} is not in [0, 1]", params.min_p);
    }
    if (!(params.repetition_penalty > 0.0f && std::isfinite(params.repetition_penalty))) {
        KD_THROW(invalid_argument, "repetition penalty {} is not a finite number > 0",
                 params.repetition_penalty);
    }
    if (!(std::abs(params.presence_penalty) <= 2.0f)) {
        KD_THROW(invalid_argument, "presence penalty {} is not in [-2, 2]",
                 params.presence_penalty);
    }
    if (!(std::abs(params.frequency_penalty) <= 2.0f)) {
        KD_THROW(invalid_argument, "frequency penalty {} is not in [-2, 2]",
                 params.frequency_penalty);
    }
    if (params.min_tokens < 0) {
        KD_THROW(invalid_argument, "min tokens {} is negative", params.min_tokens);
    }
}

}  // namespace kd
