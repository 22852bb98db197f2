#include "kernels/attn_plan/attn_plan_ref.h"

#include <algorithm>

namespace kd {

namespace {

std::vector<PlanRequest> requests_of(const PlanShape& shape, const AttnPlanBatch& batch) {
    std::vector<PlanRequest> requests;
    for (size_t r = 0; r < batch.context.size(); ++r) {
        const int32_t begin = batch.node_start[r];
        const int32_t nodes = batch.node_start[r + 1] - begin;
        int32_t least = 0;
        int32_t most = 0;
        if (shape.deterministic && nodes > 0) {
            const auto depths =
                batch.depth.subspan(static_cast<size_t>(begin), static_cast<size_t>(nodes));
            least = *std::ranges::min_element(depths);
            most = *std::ranges::max_element(depths);
        }
        requests.push_back(plan_request(
            shape, {batch.context[r], nodes, begin, batch.pages_start[r]}, least, most));
    }
    return requests;
}

int32_t best_choice(const PlanShape& shape, const std::vector<PlanRequest>& requests) {
    int32_t most_tiles = 0;
    for (const PlanRequest& request : requests) most_tiles = std::max(most_tiles, request.tiles);
    int64_t best_score = kNeverNs;
    int32_t best_parts = 1;
    for (int32_t parts = 1; parts <= kMostSplits; ++parts) {
        const int64_t score = plan_score(shape, requests.data(),
                                         static_cast<int32_t>(requests.size()), most_tiles, parts);
        if (score < best_score) {
            best_score = score;
            best_parts = parts;
        }
    }
    return plan_choice(shape, most_tiles, best_parts);
}

}  // namespace

AttnPlanResult attn_plan_ref(const PlanShape& shape, const AttnPlanBatch& batch) {
    const std::vector<PlanRequest> requests = requests_of(shape, batch);
    AttnPlanResult plan;
    plan.choice = shape.deterministic ? 1 : best_choice(shape, requests);

    std::vector<PlanCounts> first{PlanCounts{}};
    for (const PlanRequest& request : requests) {
        first.push_back(counts_sum(first.back(), plan_counts(shape, request, plan.choice)));
    }
    const PlanCounts total = first.back();
    for (size_t i = 0; i < requests.size(); ++i) {
        const auto r = static_cast<int32_t>(i);
        const int32_t path = shape.deterministic ? total.partials + first[i].path_units : -1;
        for (int32_t u = 0; u < first[i + 1].units - first[i].units; ++u) {
            plan.units.push_back(plan_unit(shape, requests[i], r, first[i], plan.choice, u));
        }
        for (int32_t m = 0; m < first[i + 1].merge_items - first[i].merge_items; ++m) {
            plan.merge_items.push_back(
                plan_merge_item(shape, requests[i], r, first[i], plan.choice, path, m));
        }
    }
    for (size_t i = 0; i < requests.size(); ++i) {
        const int32_t path = total.partials + first[i].path_units;
        for (int32_t u = 0; u < first[i + 1].path_units - first[i].path_units; ++u) {
            const int32_t node = batch.node_start[i] + u / path_units_of_node(shape);
            plan.units.push_back(
                plan_path_unit(shape, requests[i], static_cast<int32_t>(i), path, u,
                               batch.context[i] + batch.depth[static_cast<size_t>(node)]));
        }
    }
    plan.header.units = total.units + total.path_units;
    plan.header.partials = total.partials + total.path_units;
    plan.header.merge_items = total.merge_items;
    return plan;
}

}  // namespace kd
