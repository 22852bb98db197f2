// The preconditions of the attention calls, each with the offending value; and the device they run
// on.
#pragma once

#include "kernels/api/api_error.h"
#include "kernels/attn_plan/attn_batch.cuh"
#include "kernels/attn_plan/attn_workspace.h"

namespace kd::api {

/// The current device. The runtime answers from a table, so it is asked at every call.
struct Device {
    int32_t multiprocessors = 0;
    bool sm90 = false;   // runs sm_90a code
    bool sm120 = false;  // runs sm_120a code
};
kdt_status current_device(Device& device);

/// Main loops to try for a shape, in order. KDT_UNSUPPORTED if the device runs none.
struct Engines {
    AttnEngine engine[2];
    int32_t count = 0;
};
kdt_status engines_of(const kdt_attn_shape& shape, const Device& device, Engines& engines);

void check_shape(Checks& checks, const kdt_attn_shape* shape);
void check_capacity(Checks& checks, int32_t requests, int32_t max_nodes, int32_t max_context);
void check_batch(Checks& checks, const kdt_attn_shape* shape, const kdt_attn_batch* batch);
void check_mla_tensors(Checks& checks, const kdt_attn_shape* shape,
                       const kdt_attn_mla_tensors* tensors);
void check_gqa_tensors(Checks& checks, const kdt_attn_shape* shape,
                       const kdt_attn_gqa_tensors* tensors);

/// The batch as the kernels take it; both were checked.
AttnBatchView batch_view(const kdt_attn_shape& shape, const kdt_attn_batch& batch);

}  // namespace kd::api
