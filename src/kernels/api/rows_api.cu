// kdt_rope_append and kdt_kv_move: checks, then the launch.
#include "kernels/api/api_checks.h"
#include "kernels/kv_move/kv_move_cuda.h"
#include "kernels/rope_append/rope_append_cuda.h"

namespace kd::api {

namespace {

constexpr int64_t kRowUnit = 8;     // values: 16-byte accesses
constexpr int64_t kCacheUnit = 16;  // bytes

void check_rope_shape(Checks& checks, const kdt_rope_append_params& p) {
    checks.range("kind", p.kind, KDT_ATTN_MLA, KDT_ATTN_GQA);
    checks.range("kv_format", p.kv_format, KDT_KV_BF16, KDT_KV_FP8_MLA656);
    checks.range("rows", p.rows, 0, 65536);
    checks.range("heads", p.heads, 1, 128);
    checks.range("pairing", p.pairing, KDT_ROPE_ADJACENT, KDT_ROPE_HALF);
    if (p.kind == KDT_ATTN_MLA) {
        checks.range("kv_heads (MLA)", p.kv_heads, 1, 1);
        checks.range("head_dim (MLA)", p.head_dim, 576, 576);
        checks.range("rotated (MLA)", p.rotated, 0, 64);
    } else {
        checks.range("kv_heads", p.kv_heads, 1, 128);
        checks.require(
            p.head_dim == 64 || p.head_dim == 96 || p.head_dim == 128 || p.head_dim == 256,
            "head_dim is %d, must be 64, 96, 128 or 256 (GQA)", p.head_dim);
        checks.range("rotated", p.rotated, 0, p.head_dim);
        checks.require(p.kv_format != KDT_KV_FP8_MLA656,
                       "kv_format is %d (KDT_KV_FP8_MLA656), which is for MLA only", p.kv_format);
    }
    checks.multiple("rotated", p.rotated, 2);
    checks.finite("attention_factor", p.attention_factor);
}

void check_rope_rows(Checks& checks, const kdt_rope_append_params& p) {
    const bool gqa = p.kind == KDT_ATTN_GQA;
    if (p.row_count != nullptr) checks.pointer("row_count", p.row_count, 4);
    checks.pointer("positions", p.positions, 4);
    checks.pointer("slots", p.slots, 4);
    if (p.rotated > 0) checks.pointer("inverse_frequency", p.inverse_frequency, 4);
    checks.pointer("q", p.q, 16);
    checks.multiple("q_row_stride", p.q_row_stride, kRowUnit);
    checks.multiple("q_head_stride", p.q_head_stride, kRowUnit);
    checks.pointer("k", p.k, 16);
    checks.pointer("v", p.v, 16);
    checks.multiple("k_row_stride", p.k_row_stride, kRowUnit);
    checks.multiple("v_row_stride", p.v_row_stride, kRowUnit);
    if (p.kv_format == KDT_KV_FP8) {
        checks.scale("k_scale", p.k_scale);
        if (gqa) checks.scale("v_scale", p.v_scale);
    }
    checks.pointer("k_cache", p.k_cache, 16);
    if (gqa) checks.pointer("v_cache", p.v_cache, 16);
    const int64_t value_bytes = p.kv_format == KDT_KV_BF16 ? 2 : 1;
    const bool packed = p.kv_format == KDT_KV_FP8_MLA656;
    checks.range("kv_slot_stride", p.kv_slot_stride, packed ? 656 : p.head_dim, INT32_MAX);
    checks.multiple("kv_slot_stride", p.kv_slot_stride, kCacheUnit / value_bytes);
    if (gqa && p.kv_heads > 1) {
        checks.range("kv_head_stride", p.kv_head_stride, p.head_dim, INT64_MAX / 256);
        checks.multiple("kv_head_stride", p.kv_head_stride, kCacheUnit / value_bytes);
    }
}

// Keeps the grid, 128 bytes of one buffer a block and up to four blocks for all moves, in 31 bits.
constexpr int64_t kKvMoveMostBytes = int64_t{1} << 35;

void check_move(Checks& checks, const kdt_kv_move_params& p) {
    checks.range("buffers", p.buffers, 1, INT32_MAX);
    checks.range("max_moves", p.max_moves, 0, kKvMoveLimit);
    checks.range("row_bytes", p.row_bytes, 16, INT32_MAX);
    checks.multiple("row_bytes", p.row_bytes, kCacheUnit);
    checks.range("slot_stride_bytes", p.slot_stride_bytes, p.row_bytes, INT64_MAX);
    checks.multiple("slot_stride_bytes", p.slot_stride_bytes, kCacheUnit);
    checks.require(int64_t{p.buffers} * p.row_bytes <= kKvMoveMostBytes,
                   "buffers is %d and row_bytes %d: together beyond 2^35", p.buffers, p.row_bytes);
    if (p.max_moves == 0) return;
    checks.pointer("buffer", p.buffer, alignof(void*));
    if (p.move_count != nullptr) checks.pointer("move_count", p.move_count, 4);
    checks.pointer("from", p.from, 4);
    checks.pointer("to", p.to, 4);
}

}  // namespace

}  // namespace kd::api

using namespace kd;
using namespace kd::api;

kdt_status kdt_rope_append(const kdt_rope_append_params* params, kdt_stream stream) {
    Checks checks;
    checks.pointer("params", params, alignof(kdt_rope_append_params));
    if (!checks.ok()) return checks.status();
    checks.struct_bytes("kdt_rope_append_params", params->struct_bytes, sizeof *params);
    check_rope_shape(checks, *params);
    if (checks.ok() && params->rows > 0) check_rope_rows(checks, *params);
    Device device;
    if (checks.ok()) checks.add(current_device(device));
    if (!checks.ok()) return checks.status();
    return status_of(rope_append_cuda(*params, stream), "launching rope_append");
}

kdt_status kdt_kv_move(const kdt_kv_move_params* params, kdt_stream stream) {
    Checks checks;
    checks.pointer("params", params, alignof(kdt_kv_move_params));
    if (!checks.ok()) return checks.status();
    checks.struct_bytes("kdt_kv_move_params", params->struct_bytes, sizeof *params);
    check_move(checks, *params);
    Device device;
    if (checks.ok()) checks.add(current_device(device));
    if (!checks.ok()) return checks.status();
    return status_of(kv_move_cuda(*params, stream), "launching kv_move");
}
