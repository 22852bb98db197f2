#include "kernels/attn_plan/attn_plan_ref.h"

#include <algorithm>

#include "kernels/attn_plan/attn_plan_time.h"
#include "kernels/attn_plan/attn_plan_units.h"

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

PlanTotals totals_of(const PlanShape& shape, const std::vector<PlanRequest>& requests) {
    PlanTotals totals;
    for (const PlanRequest& request : requests) {
        if (request.tiles == 0) continue;
        totals.most_tiles = std::max(totals.most_tiles, request.tiles);
        totals.least_segment_tiles = std::min(totals.least_segment_tiles, request.segment_tiles);
        totals.prefix_units += prefix_units(shape, request);
        totals.most_nodes = std::max(totals.most_nodes, request.nodes);
        for (int32_t log2 = 0; log2 <= shape.most_path_nodes_log2; ++log2)
            totals.path_entries[log2] += path_entries(shape, request.nodes, log2);
    }
    return totals;
}

struct Choice {
    int32_t choice;
    PathChoice paths;
};

Choice best_choice(const PlanShape& shape, const std::vector<PlanRequest>& requests,
                   const PlanTotals& totals) {
    const auto candidate = [&](int32_t parts) {
        return plan_candidate(shape, requests.data(), static_cast<int32_t>(requests.size()), totals,
                              parts);
    };
    Prediction best = candidate(1);
    int32_t best_parts = 1;
    for (int32_t parts = 2; parts <= kMostSplits; ++parts) {
        const Prediction next = candidate(parts);
        if (next.ns < best.ns) {
            best = next;
            best_parts = parts;
        }
    }
    return {plan_choice(shape, totals.most_tiles, best_parts), best.paths};
}

}  // namespace

AttnPlanResult attn_plan_ref(const PlanShape& shape, const AttnPlanBatch& batch) {
    std::vector<PlanRequest> requests = requests_of(shape, batch);
    const PlanTotals totals = totals_of(shape, requests);
    for (PlanRequest& request : requests)
        request.adjacent = takes_adjacent(shape, totals.prefix_units);
    AttnPlanResult plan;
    const auto [choice, paths] = best_choice(shape, requests, totals);
    plan.choice = choice;

    std::vector<PlanCounts> first{PlanCounts{}};
    for (const PlanRequest& request : requests) {
        first.push_back(
            counts_sum(first.back(), plan_counts(shape, request, plan.choice, paths.nodes_log2)));
    }
    const PlanCounts total = first.back();
    const int32_t runs = total.runs + paths.runs;
    plan.header.units = plan_units(shape, total);
    plan.header.runs = run_blocks(shape) * runs;
    plan.header.partials = total.partials + total.path_units;
    plan.header.merge_items = total.merge_items;
    plan.units.resize(static_cast<size_t>(plan.header.units));
    const auto store = [&plan](int32_t i, const WorkUnit& unit) {
        plan.units[static_cast<size_t>(i)] = unit;
    };
    const auto position_of = [&](const PlanRequest& request, int32_t node) {
        return request.context + batch.depth[static_cast<size_t>(request.first_node + node)];
    };
    std::vector<WorkUnit> path_units;
    for (size_t i = 0; i < requests.size(); ++i) {
        const PlanRequest& request = requests[i];
        const auto r = static_cast<int32_t>(i);
        for (int32_t run = 0; run < first[i + 1].runs - first[i].runs; ++run) {
            if (shape.deterministic) {
                plan_prefix_run(shape, request, r, first[i], runs, plan.choice, run, store);
            } else {
                store(first[i].runs + run,
                      plan_unit(shape, request, r, first[i], plan.choice, run));
            }
        }
        const int32_t path = total.partials + first[i].path_units;
        const int32_t path_entries = first[i + 1].path_entries - first[i].path_entries;
        for (int32_t u = 0; u < path_entries << entry_paths_log2(shape); ++u) {
            const PathNodes nodes = path_nodes(shape, request, paths.nodes_log2, u);
            const int32_t position = position_of(request, nodes.first + nodes.count - 1);
            path_units.push_back(plan_path_unit(shape, request, r, path, u, nodes, position));
        }
        for (int32_t m = 0; m < first[i + 1].merge_items - first[i].merge_items; ++m) {
            const int32_t row = merge_item_row(shape, request, plan.choice, m);
            const int32_t position =
                shape.deterministic ? position_of(request, row / shape.group) : 0;
            plan.merge_items.push_back(plan_merge_item(shape, request, r, first[i], plan.choice,
                                                       shape.deterministic ? path : -1,
                                                       paths.nodes_log2, position, m));
        }
    }
    for (int32_t run = 0; run < paths.runs; ++run) {
        plan_path_run(
            shape, total, paths.runs, run,
            [&](int32_t i, int32_t side) {
                return path_units[static_cast<size_t>((i << entry_paths_log2(shape)) + side)];
            },
            store);
    }
    return plan;
}

}  // namespace kd
