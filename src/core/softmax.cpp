#include "core/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace kd {

float largest_logit(std::span<const float> logits) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    // Independent lanes: the compiler may not reorder a single running maximum of floats.
    constexpr size_t kLanes = 16;
    float lane[kLanes];
    std::fill_n(lane, kLanes, -kInfinity);
    size_t i = 0;
    for (; i + kLanes <= logits.size(); i += kLanes) {
        for (size_t j = 0; j < kLanes; ++j) {
            const float logit = logits[i + j];
            lane[j] = logit > lane[j] ? logit : lane[j];
        }
    }
    for (; i < logits.size(); ++i) lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
    const float largest = *std::max_element(lane, lane + kLanes);
    const bool finite = std::isfinite(largest) ||
                        (largest == kInfinity && std::ranges::any_of(logits, [](float logit) {
                             return std::isfinite(logit);
                         }));
    if (!finite) {
        KD_THROW(invalid_argument,
                 "no token is possible: none of {} logits is finite, by the model or by bias, mask "
                 "and minimum length (largest {})",
                 logits.size(), largest);
    }
    return largest;
}

int64_t count_nan(std::span<const float> logits) {
    uint32_t count = 0;  // of integers, as wide as the logits: the loop vectorises
    for (const float logit : logits) count += std::isnan(logit) ? 1u : 0u;
    return count;
}

void expect_numbers(std::span<const float> logits) {
    const int64_t count = count_nan(logits);
    if (count > 0)
        KD_THROW(invalid_argument, "the model gave NaN: {} of {} logits", count, logits.size());
}

double block_mass(std::span<const float> weight, int64_t block) {
    const auto first = static_cast<size_t>(block * kVocabularyBlock);
    const size_t last = std::min(first + kVocabularyBlock, weight.size());
    double mass = 0.0;
    for (size_t i = first; i < last; ++i) mass += double{weight[i]};
    return mass;
}

}  // namespace kd
