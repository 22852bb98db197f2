// The paged K/V cache as the ops see it. Memory is owned by the engine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace kd {

/// K and V of one layer: row `slot` holds kv_heads * head_dim values of `type` (f16 or f32).
struct KvLayer {
    std::byte* k = nullptr;  // [slots, kv_heads, head_dim]
    std::byte* v = nullptr;  // [slots, kv_heads, head_dim]
};

/// All layers of one model. Pool slots come first, then the tail scratch of every session.
struct KvView {
    DType type = DType::f16;
    int32_t layers = 0;
    int64_t slots = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    std::byte* data = nullptr;  // [layers, 2 (K, V), slots, kv_heads, head_dim]

    int64_t row_elements() const { return int64_t{kv_heads} * head_dim; }
    int64_t row_bytes() const { return bytes_of(type, row_elements()); }
    int64_t bytes() const { return int64_t{layers} * 2 * slots * row_bytes(); }
    KvLayer layer(int32_t index) const {
        std::byte* k = data + int64_t{index} * 2 * slots * row_bytes();
        return {.k = k, .v = k + slots * row_bytes()};
    }
};

}  // namespace kd
