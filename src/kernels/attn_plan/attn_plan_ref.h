// The plan of one step on the host, one entry after the other: what attn_plan.cu has to write.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attn_plan/attn_plan_split.h"

namespace kd {

struct AttnPlanBatch {
    std::span<const int32_t> context;      // [requests]
    std::span<const int32_t> node_start;   // [requests + 1]
    std::span<const int32_t> depth;        // [nodes]; deterministic mode
    std::span<const int64_t> pages_start;  // [requests]
};

struct AttnPlanResult {
    PlanHeader header = {};
    int32_t choice = 1;  // chunk length in tiles, or forced splits
    std::vector<WorkUnit> units;
    std::vector<MergeItem> merge_items;
};

AttnPlanResult attn_plan_ref(const PlanShape& shape, const AttnPlanBatch& batch);

}  // namespace kd
