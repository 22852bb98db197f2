// The paged K/V cache as the ops see it. Memory is owned by the engine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace kd {

/// Which rows a layer keeps: K and V; or latent rows alone (MLA: one "head" of the normalised
/// latent and the rotated key that all heads share), of which keys and values are both made.
enum class KvRows : uint8_t { keys_and_values, latent };

/// One layer: row `slot` holds kv_heads * head_dim values of `type` (f16 or f32).
struct KvLayer {
    std::byte* k = nullptr;  // [slots, kv_heads, head_dim] K, or the latent rows
    std::byte* v = nullptr;  // [slots, kv_heads, head_dim]; null beside latent rows
};

/// All layers of one model. Pool slots come first, then the tail scratch of every session.
struct KvView {
    DType type = DType::f16;
    int32_t layers = 0;
    int64_t slots = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    std::byte* data = nullptr;  // [layers, planes, slots, kv_heads, head_dim]
    KvRows rows = KvRows::keys_and_values;

    /// Rows of a slot in one layer: K and V, or the latent one.
    int64_t planes() const { return rows == KvRows::latent ? 1 : 2; }
    int64_t row_elements() const { return int64_t{kv_heads} * head_dim; }
    int64_t row_bytes() const { return bytes_of(type, row_elements()); }
    int64_t bytes() const { return int64_t{layers} * planes() * slots * row_bytes(); }
    KvLayer layer(int32_t index) const {
        std::byte* k = data + int64_t{index} * planes() * slots * row_bytes();
        return {.k = k, .v = rows == KvRows::latent ? nullptr : k + slots * row_bytes()};
    }
};

}  // namespace kd
