// attn_plan on CUDA: writes the plan of one step into the workspace.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attn_plan/attn_batch.cuh"
#include "kernels/attn_plan/attn_plan_split.h"

namespace kd {

/// Passed to the kernels by value.
struct AttnPlanParams {
    AttnBatchView batch;
    AttnWorkspace workspace;
    PlanShape shape;
    int32_t max_nodes;
    int32_t max_context;
};

/// A kernel launched next with programmatic stream serialization may read the plan, and whatever
/// the plan was made from, before its own griddepcontrol.wait.
cudaError_t attn_plan(const AttnPlanParams& params, cudaStream_t stream);

}  // namespace kd
