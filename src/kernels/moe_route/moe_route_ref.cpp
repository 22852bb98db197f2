#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/moe_route/moe_route.h"

namespace kd {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

std::vector<float> scores_of(const MoeRouteParams& params, int64_t row) {
    const std::span logits(params.logits + row * params.experts,
                           static_cast<size_t>(params.experts));
    std::vector<float> scores;
    if (params.scoring == MoeScoring::sigmoid) {
        for (const float logit : logits) {
            scores.push_back(static_cast<float>(1.0 / (1.0 + std::exp(-double{logit}))));
        }
        return scores;
    }
    double largest = -std::numeric_limits<double>::infinity();
    for (const float logit : logits) largest = std::max(largest, double{logit});
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    for (const float logit : logits) {
        scores.push_back(static_cast<float>(std::exp(logit - largest) / sum));
    }
    return scores;
}

/// The first `count` of [0, values) by falling value, then rising id.
std::vector<int32_t> best(std::span<const float> values, int32_t count) {
    std::vector<int32_t> ids(values.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
        return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    });
    ids.resize(static_cast<size_t>(count));
    return ids;
}

/// Sets the scores of all but the best groups to -infinity.
void exclude_groups(const MoeRouteParams& params, std::vector<float>& choice) {
    const auto size = static_cast<size_t>(params.experts / params.groups);
    const size_t counted = params.scoring == MoeScoring::sigmoid ? std::min<size_t>(2, size) : 1;
    std::vector<float> group_scores;
    for (size_t g = 0; g < static_cast<size_t>(params.groups); ++g) {
        std::vector<float> group(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
                                 choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
        std::sort(group.begin(), group.end(), std::greater<>());
        group_scores.push_back(std::accumulate(
            group.begin() + 1, group.begin() + static_cast<std::ptrdiff_t>(counted), group[0]));
    }
    std::vector<float> kept(choice.size(), kLowest);
    for (const int32_t g : best(group_scores, params.groups_used)) {
        for (size_t e = static_cast<size_t>(g) * size; e < (static_cast<size_t>(g) + 1) * size;
             ++e) {
            kept[e] = choice[e];
        }
    }
    choice = std::move(kept);
}

void route_row(const MoeRouteParams& params, int64_t row) {
    const std::vector<float> scores = scores_of(params, row);
    std::vector<float> choice = scores;
    for (size_t e = 0; e < choice.size(); ++e) {
        if (params.bias != nullptr) choice[e] += params.bias[e];
        if (std::isnan(choice[e])) choice[e] = kLowest;
    }
    if (params.groups_used < params.groups) exclude_groups(params, choice);
    const std::vector<int32_t> ids = best(choice, params.used);
    double sum = 0;
    for (const int32_t id : ids) sum += scores[static_cast<size_t>(id)];
    for (size_t k = 0; k < ids.size(); ++k) {
        double weight = scores[static_cast<size_t>(ids[k])];
        if (params.normalise) weight /= sum + 1e-20;
        const int64_t at = row * params.used + static_cast<int64_t>(k);
        params.ids[at] = ids[k];
        params.weights[at] = static_cast<float>(weight * params.scale);
    }
}

}  // namespace

void moe_route_ref(const MoeRouteParams& params) {
    KD_CHECK(params.experts > 0 && params.groups > 0 && params.experts % params.groups == 0 &&
                 params.groups_used > 0 && params.groups_used <= params.groups && params.used > 0 &&
                 params.used <= params.groups_used * (params.experts / params.groups),
             "{} of {} experts in {} of {} groups", params.used, params.experts, params.groups_used,
             params.groups);
    for (int64_t row = 0; row < params.rows; ++row) route_row(params, row);
}

}  // namespace kd
