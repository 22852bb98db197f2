// kdt_attn_*: checks, then the plan, or attention and combine.
#include <algorithm>

#include "kernels/api/api_checks.h"
#include "kernels/attn_combine/attn_combine.h"
#include "kernels/attn_plan/attn_plan_cuda.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda.h"
#include "kernels/attn_verify_mla/attn_verify_mla.h"

namespace kd::api {

namespace {

/// What the plan and the layers of a step have in common.
struct Step {
    Device device;
    Engines engines;
    AttnWorkspace workspace;
    AttnBatchView batch;
};

kdt_status prepare(const kdt_attn_shape& shape, const kdt_attn_batch& batch, void* workspace,
                   size_t workspace_bytes, Step& step) {
    Checks checks;
    checks.pointer("workspace", workspace, 256);
    checks.add(current_device(step.device));
    if (!checks.ok()) return checks.status();
    step.workspace = attn_workspace(shape, batch.requests, batch.max_nodes, batch.max_context,
                                    step.device.multiprocessors, workspace);
    checks.require(workspace_bytes >= step.workspace.bytes,
                   "workspace_bytes is %zu, this step needs %zu", workspace_bytes,
                   step.workspace.bytes);
    if (!checks.ok()) return checks.status();
    step.batch = batch_view(shape, batch);
    return engines_of(shape, step.device, step.engines);
}

/// Attention by the first engine that serves the shape, `attend(engine)`, then the combine, whose
/// blocks leave at once if the plan split nothing; where none could, attn_combine launches nothing.
template <class Attend>
kdt_status verify(const kdt_attn_shape& shape, const Step& step, void* out, float* lse,
                  cudaStream_t stream, Attend&& attend) {
    cudaError_t error = cudaErrorNotSupported;
    PartialLayout layout = PartialLayout::rows;
    for (int32_t i = 0; i < step.engines.count && error == cudaErrorNotSupported; ++i) {
        error = attend(step.engines.engine[i]);
        const bool quads = is_mla_wgmma_bf16(shape, step.engines.engine[i]);
        layout = quads ? PartialLayout::quads : PartialLayout::rows;
    }
    if (error != cudaSuccess) return status_of(error, "launching the attention kernel");
    error = attn_combine({.workspace = step.workspace,
                          .heads = shape.heads,
                          .kv_heads = shape.kv_heads,
                          .value_dim = attn_value_dim(shape),
                          .layout = layout,
                          .multiprocessors = step.device.multiprocessors,
                          .out = out,
                          .lse = lse},
                         stream);
    return status_of(error, "launching the combine kernel");
}

/// AttnVerifyMlaParams::most_rows. With few rows P of an FP8 cache is multiplied in e4m3, where
/// keys below 2^-19 of a row's largest vanish while the sum that it is divided by counts them: all
/// errors have one sign, so that they grow with a unit's keys, to 0.4 % of a row at most at 2,048.
/// Steps whose units may be longer take the kernel for all rows instead.
int32_t most_rows(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                  int32_t multiprocessors) {
    constexpr int64_t kMostKeys = 2048;
    const int64_t contexts = std::min(batch.requests, batch.max_nodes);
    const int64_t keys = shape.splits > 0 ? int64_t{batch.max_context} / shape.splits
                                          : contexts * batch.max_context / multiprocessors;
    if (shape.mode == KDT_ATTN_DETERMINISTIC || keys > kMostKeys) return kTileRows;
    return std::min(kTileRows, batch.max_nodes * shape.heads);
}

}  // namespace

}  // namespace kd::api

using namespace kd;
using namespace kd::api;

kdt_status kdt_attn_workspace_bytes(const kdt_attn_shape* shape, int32_t requests,
                                    int32_t max_nodes, int32_t max_context, size_t* bytes) {
    Checks checks;
    check_shape(checks, shape);
    check_capacity(checks, requests, max_nodes, max_context);
    checks.pointer("bytes", bytes, alignof(size_t));
    Device device;
    if (checks.ok()) checks.add(current_device(device));
    if (!checks.ok()) return checks.status();
    *bytes =
        attn_workspace(*shape, requests, max_nodes, max_context, device.multiprocessors, nullptr)
            .bytes;
    return KDT_OK;
}

kdt_status kdt_attn_plan(const kdt_attn_shape* shape, const kdt_attn_batch* batch, void* workspace,
                         size_t workspace_bytes, kdt_stream stream) {
    Checks checks;
    check_batch(checks, shape, batch);
    Step step;
    if (checks.ok()) checks.add(prepare(*shape, *batch, workspace, workspace_bytes, step));
    if (!checks.ok()) return checks.status();
    const AttnPlanParams params = {
        .batch = step.batch,
        .workspace = step.workspace,
        .shape = plan_shape(*shape, step.workspace, batch->max_nodes, step.device.multiprocessors,
                            step.engines.engine[0]),
        .max_nodes = batch->max_nodes,
        .max_context = batch->max_context};
    return status_of(attn_plan(params, stream), "launching the plan kernel");
}

kdt_status kdt_attn_verify_mla(const kdt_attn_shape* shape, const kdt_attn_batch* batch,
                               const kdt_attn_mla_tensors* tensors, void* workspace,
                               size_t workspace_bytes, kdt_stream stream) {
    Checks checks;
    check_batch(checks, shape, batch);
    if (checks.ok() && batch->max_nodes == 0) return KDT_OK;
    if (checks.ok()) check_mla_tensors(checks, shape, tensors);
    Step step;
    if (checks.ok()) checks.add(prepare(*shape, *batch, workspace, workspace_bytes, step));
    if (!checks.ok()) return checks.status();
    const kdt_attn_mla_tensors& t = *tensors;
    const int64_t value_bytes = shape->kv_format == KDT_KV_BF16 ? 2 : 1;
    const int32_t rows = batch->max_nodes * shape->heads;
    const bool shared =
        attn_shares_units(*shape, step.engines.engine[0], rows, step.device.multiprocessors);
    const AttnVerifyMlaParams params = {
        .batch = step.batch,
        .workspace = step.workspace,
        .kv_format = static_cast<kdt_kv_format>(shape->kv_format),
        .heads = shape->heads,
        .most_rows = most_rows(*shape, *batch, step.device.multiprocessors),
        .most_shared_rows = shared ? rows : 0,
        .scale = t.scale,
        .logit_cap = t.logit_cap,
        .kv_scale = t.kv_scale,
        .q_latent = t.q_latent,
        .q_rope = t.q_rope,
        .q_latent_node_stride = t.q_latent_node_stride,
        .q_latent_head_stride = t.q_latent_head_stride,
        .q_rope_node_stride = t.q_rope_node_stride,
        .q_rope_head_stride = t.q_rope_head_stride,
        .kv = t.kv,
        .kv_slot_bytes = t.kv_slot_stride * value_bytes,
        .out = t.out,
        .lse = t.lse,
    };
    return verify(*shape, step, t.out, t.lse, stream, [&](AttnEngine engine) {
        return engine == AttnEngine::wgmma_sm90
                   ? attn_verify_mla_wgmma(params, step.device.multiprocessors, stream)
                   : attn_verify_mla_mma_sync(params, step.device.multiprocessors, stream);
    });
}

kdt_status kdt_attn_verify_gqa(const kdt_attn_shape* shape, const kdt_attn_batch* batch,
                               const kdt_attn_gqa_tensors* tensors, void* workspace,
                               size_t workspace_bytes, kdt_stream stream) {
    Checks checks;
    check_batch(checks, shape, batch);
    if (checks.ok() && batch->max_nodes == 0) return KDT_OK;
    if (checks.ok()) check_gqa_tensors(checks, shape, tensors);
    Step step;
    if (checks.ok()) checks.add(prepare(*shape, *batch, workspace, workspace_bytes, step));
    if (!checks.ok()) return checks.status();
    const kdt_attn_gqa_tensors& t = *tensors;
    const int64_t value_bytes = shape->kv_format == KDT_KV_BF16 ? 2 : 1;
    const AttnVerifyGqaCudaParams params = {
        .batch = step.batch,
        .workspace = step.workspace,
        .kv_format = static_cast<kdt_kv_format>(shape->kv_format),
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .sliding_window = shape->sliding_window,
        .scale = t.scale,
        .logit_cap = t.logit_cap,
        .k_scale = t.k_scale,
        .v_scale = t.v_scale,
        .q = t.q,
        .q_node_stride = t.q_node_stride,
        .q_head_stride = t.q_head_stride,
        .k = t.k,
        .v = t.v,
        .kv_slot_bytes = t.kv_slot_stride * value_bytes,
        .kv_head_bytes = t.kv_head_stride * value_bytes,
        .out = t.out,
        .lse = t.lse,
    };
    return verify(*shape, step, t.out, t.lse, stream, [&](AttnEngine engine) {
        return engine == AttnEngine::wgmma_sm90
                   ? attn_verify_gqa_wgmma(params, step.device.multiprocessors, stream)
                   : attn_verify_gqa_mma_sync(params, step.device.multiprocessors, stream);
    });
}
