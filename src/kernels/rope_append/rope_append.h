// rope_append: rotary position embedding of new Q and K rows, and the write of new K/V rows into
// the paged cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/stream.h"
#include "base/views.h"
#include "kernels/kv_view.h"

namespace kd {

/// The rotation of a model: pair i turns by position * inverse_frequency[i]; cos and sin are
/// multiplied by `magnitude` (1 but for some context extensions).
struct RopeTable {
    std::vector<double> inverse_frequency;  // [rotated / 2]
    double magnitude = 1;
};

/// cos and sin, times the table's magnitude, computed once per forward and shared by all layers.
/// positions [rows] -> angles [rows, rotated / 2, 2 (cos, sin)].
void rope_angles(std::span<const int32_t> positions, const RopeTable& table, float* angles);

struct RopeAppendParams {
    int64_t rows = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    int32_t rotated = 0;  // leading elements of a head that rotate, even, <= head_dim
    RopePairing pairing = RopePairing::half;
    float* qkv = nullptr;  // [rows, (heads + 2 kv_heads) * head_dim]: Q, K, V of a row; Q is
                           // rotated in place
    const float* angles = nullptr;   // [rows, rotated / 2, 2]
    std::span<const int32_t> slots;  // [rows] where K and V of each row go; distinct
    KvView kv;
    int32_t layer = 0;
};

/// Rotates Q in place, writes rotated K and plain V of every row to its slot in the cache's type.
void rope_append(const RopeAppendParams& params, Stream& stream);
void rope_append_ref(const RopeAppendParams& params);

}  // namespace kd
