#include <bit>

#include "kernels/api/api_checks.h"

namespace kd::api {

namespace {

constexpr int32_t kMostContext = 262144;
constexpr int32_t kMlaRowBytes656 = 656;
constexpr int64_t kQueryUnit = 8;   // values: 16-byte loads
constexpr int64_t kCacheUnit = 16;  // bytes

bool is_gqa_head_dim(int32_t head_dim) {
    return head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}

int64_t value_bytes(int32_t kv_format) {
    return kv_format == KDT_KV_BF16 ? 2 : 1;
}

}  // namespace

kdt_status current_device(Device& device) {
    int index = 0;
    int major = 0;
    int minor = 0;
    int multiprocessors = 0;
    cudaError_t error = cudaGetDevice(&index);
    auto read = [&](int& value, cudaDeviceAttr attribute) {
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, index);
    };
    read(major, cudaDevAttrComputeCapabilityMajor);
    read(minor, cudaDevAttrComputeCapabilityMinor);
    read(multiprocessors, cudaDevAttrMultiProcessorCount);
    device = {.multiprocessors = multiprocessors,
              .sm90 = major == 9 && minor == 0,
              .sm120 = major == 12 && minor == 0};
    if (error == cudaSuccess && !device.sm90 && !device.sm120) {
        return fail(KDT_UNSUPPORTED,
                    "device %d has compute capability %d.%d; this build has kernels for 9.0 and "
                    "12.0",
                    index, major, minor);
    }
    return status_of(error, "reading the device's properties");
}

kdt_status engines_of(const kdt_attn_shape& shape, const Device& device, Engines& engines) {
    engines = {};
    // The plan is made for the first of them. No other reads one of pairs.
    bool of_pairs = false;
    if (device.sm90 && shape.path != KDT_PATH_MMA_SYNC) {
        engines.engine[engines.count++] = AttnEngine::wgmma_sm90;
        of_pairs =
            shape.mode == KDT_ATTN_DETERMINISTIC && attn_takes_pairs(shape, AttnEngine::wgmma_sm90);
    }
    if (shape.path != KDT_PATH_WGMMA && !of_pairs) {
        engines.engine[engines.count++] =
            device.sm90 ? AttnEngine::mma_sync_sm90 : AttnEngine::mma_sync_sm120;
    }
    if (engines.count > 0) return KDT_OK;
    return fail(KDT_UNSUPPORTED, "path is KDT_PATH_WGMMA, which needs a device of capability 9.0");
}

void check_shape(Checks& checks, const kdt_attn_shape* shape) {
    checks.pointer("shape", shape, alignof(kdt_attn_shape));
    if (!checks.ok()) return;
    const kdt_attn_shape& s = *shape;
    checks.struct_bytes("kdt_attn_shape", s.struct_bytes, sizeof s);
    checks.range("kind", s.kind, KDT_ATTN_MLA, KDT_ATTN_GQA);
    checks.range("heads", s.heads, 1, 128);
    checks.range("kv_format", s.kv_format, KDT_KV_BF16, KDT_KV_FP8_MLA656);
    checks.range("mode", s.mode, KDT_ATTN_FAST, KDT_ATTN_DETERMINISTIC);
    checks.range("path", s.path, KDT_PATH_AUTO, KDT_PATH_MMA_SYNC);
    checks.range("sliding_window", s.sliding_window, 0, INT32_MAX);
    checks.range("splits", s.splits, 0, INT32_MAX);
    if (s.kind == KDT_ATTN_MLA) {
        checks.range("kv_heads (MLA)", s.kv_heads, 1, 1);
        checks.range("head_dim (MLA)", s.head_dim, 576, 576);
        checks.range("sliding_window (MLA)", s.sliding_window, 0, 0);
    } else {
        checks.range("kv_heads", s.kv_heads, 1, 128);
        if (!checks.ok()) return;
        checks.require(s.heads % s.kv_heads == 0, "heads is %d, must be a multiple of kv_heads %d",
                       s.heads, s.kv_heads);
        checks.range("heads / kv_heads", s.heads / s.kv_heads, 1, 16);
        checks.require(is_gqa_head_dim(s.head_dim),
                       "head_dim is %d, must be 64, 96, 128 or 256 (GQA)", s.head_dim);
        checks.require(s.kv_format != KDT_KV_FP8_MLA656,
                       "kv_format is %d (KDT_KV_FP8_MLA656), which is for MLA only", s.kv_format);
    }
    if (s.mode == KDT_ATTN_DETERMINISTIC) checks.range("max_depth", s.max_depth, 0, 64);
}

void check_capacity(Checks& checks, int32_t requests, int32_t max_nodes, int32_t max_context) {
    checks.range("requests", requests, 1, kMostRequests);
    checks.range("max_nodes", max_nodes, 0, kMostRequests * kMostNodes);
    checks.range("max_context", max_context, 0, kMostContext);
}

void check_batch(Checks& checks, const kdt_attn_shape* shape, const kdt_attn_batch* batch) {
    check_shape(checks, shape);
    checks.pointer("batch", batch, alignof(kdt_attn_batch));
    if (!checks.ok()) return;
    const kdt_attn_batch& b = *batch;
    checks.struct_bytes("kdt_attn_batch", b.struct_bytes, sizeof b);
    check_capacity(checks, b.requests, b.max_nodes, b.max_context);
    checks.require(b.page_size == 1 || b.page_size == 16 || b.page_size == 32 || b.page_size == 64,
                   "page_size is %d, must be 1, 16, 32 or 64", b.page_size);
    checks.pointer("context", b.context, 4);
    checks.pointer("node_start", b.node_start, 4);
    if (b.max_context > 0) {
        checks.pointer("pages", b.pages, 4);
        if (b.pages_start == nullptr) {
            checks.range("pages_stride", b.pages_stride, 0, INT64_MAX / kMostRequests);
        } else {
            checks.pointer("pages_start", b.pages_start, 8);
        }
    }
    if (b.max_nodes > 0) {
        checks.pointer("tail_slots", b.tail_slots, 4);
        checks.pointer("ancestors", b.ancestors, 8);
        if (shape->mode == KDT_ATTN_DETERMINISTIC)
            checks.pointer("depth (deterministic)", b.depth, 4);
        if (shape->sliding_window > 0) checks.pointer("depth (sliding window)", b.depth, 4);
    }
}

void check_mla_tensors(Checks& checks, const kdt_attn_shape* shape,
                       const kdt_attn_mla_tensors* tensors) {
    checks.pointer("tensors", tensors, alignof(kdt_attn_mla_tensors));
    if (!checks.ok()) return;
    const kdt_attn_mla_tensors& t = *tensors;
    checks.struct_bytes("kdt_attn_mla_tensors", t.struct_bytes, sizeof t);
    checks.require(shape->kind == KDT_ATTN_MLA, "kind is %d, kdt_attn_verify_mla takes %d",
                   shape->kind, KDT_ATTN_MLA);
    checks.scale("scale", t.scale);
    checks.finite("logit_cap", t.logit_cap);
    checks.require(t.logit_cap >= 0, "logit_cap is %g, must not be negative",
                   static_cast<double>(t.logit_cap));
    if (shape->kv_format == KDT_KV_FP8) checks.scale("kv_scale", t.kv_scale);
    checks.pointer("q_latent", t.q_latent, 16);
    checks.pointer("q_rope", t.q_rope, 16);
    checks.multiple("q_latent_node_stride", t.q_latent_node_stride, kQueryUnit);
    checks.multiple("q_latent_head_stride", t.q_latent_head_stride, kQueryUnit);
    checks.multiple("q_rope_node_stride", t.q_rope_node_stride, kQueryUnit);
    checks.multiple("q_rope_head_stride", t.q_rope_head_stride, kQueryUnit);
    checks.pointer("kv", t.kv, 16);
    const bool packed = shape->kv_format == KDT_KV_FP8_MLA656;
    checks.range("kv_slot_stride", t.kv_slot_stride, packed ? kMlaRowBytes656 : 576, INT32_MAX);
    checks.multiple("kv_slot_stride", t.kv_slot_stride, kCacheUnit / value_bytes(shape->kv_format));
    checks.pointer("out", t.out, 16);
    if (t.lse != nullptr) checks.pointer("lse", t.lse, 4);
}

void check_gqa_tensors(Checks& checks, const kdt_attn_shape* shape,
                       const kdt_attn_gqa_tensors* tensors) {
    checks.pointer("tensors", tensors, alignof(kdt_attn_gqa_tensors));
    if (!checks.ok()) return;
    const kdt_attn_gqa_tensors& t = *tensors;
    checks.struct_bytes("kdt_attn_gqa_tensors", t.struct_bytes, sizeof t);
    checks.require(shape->kind == KDT_ATTN_GQA, "kind is %d, kdt_attn_verify_gqa takes %d",
                   shape->kind, KDT_ATTN_GQA);
    checks.scale("scale", t.scale);
    checks.finite("logit_cap", t.logit_cap);
    checks.require(t.logit_cap >= 0, "logit_cap is %g, must not be negative",
                   static_cast<double>(t.logit_cap));
    if (shape->kv_format == KDT_KV_FP8) {
        checks.scale("k_scale", t.k_scale);
        checks.scale("v_scale", t.v_scale);
    }
    checks.pointer("q", t.q, 16);
    checks.multiple("q_node_stride", t.q_node_stride, kQueryUnit);
    checks.multiple("q_head_stride", t.q_head_stride, kQueryUnit);
    checks.pointer("k", t.k, 16);
    checks.pointer("v", t.v, 16);
    const int64_t bytes = value_bytes(shape->kv_format);
    checks.range("kv_slot_stride", t.kv_slot_stride, shape->head_dim, INT32_MAX);
    checks.multiple("kv_slot_stride", t.kv_slot_stride, kCacheUnit / bytes);
    if (shape->kv_heads > 1) {
        checks.range("kv_head_stride", t.kv_head_stride, shape->head_dim, INT64_MAX / 256);
        checks.multiple("kv_head_stride", t.kv_head_stride, kCacheUnit / bytes);
    }
    checks.pointer("out", t.out, 16);
    if (t.lse != nullptr) checks.pointer("lse", t.lse, 4);
}

AttnBatchView batch_view(const kdt_attn_shape& shape, const kdt_attn_batch& batch) {
    return {.context = batch.context,
            .node_start = batch.node_start,
            .tail_slots = batch.tail_slots,
            .ancestors = batch.ancestors,
            .depth = batch.depth,
            .pages = batch.pages,
            .pages_start = batch.pages_start,
            .pages_stride = batch.pages_stride,
            .page_shift = std::countr_zero(static_cast<uint32_t>(batch.page_size)),
            .requests = batch.requests,
            .sliding_window = shape.sliding_window,
            .max_depth = shape.max_depth,
            .path_keys = attn_path_keys(shape)};
}

}  // namespace kd::api
