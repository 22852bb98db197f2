// Random queries and caches made on the device, and the attention computed plainly from them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kdtree/kernels.h"

namespace kd::bench {

/// Stored values are the real ones by this in KDT_KV_FP8 caches.
inline constexpr float kFp8Scale = 0.5f;

/// One cache buffer: [slots, values] of a format; KDT_KV_FP8_MLA656 has rows of 656 bytes.
struct CacheBuffer {
    std::byte* base = nullptr;
    int64_t slots = 0;
    int32_t values = 0;  // of a slot, a multiple of 8
    kdt_kv_format format = KDT_KV_BF16;
};

/// Fills a cache with values uniform in [-1, 1].
void fill_cache(const CacheBuffer& cache, uint32_t seed, cudaStream_t stream);
/// Writes the rows `slots` [count] again, three times as large: so heavy a tree tail makes a fault
/// of the mask show in the output.
void fill_rows(const CacheBuffer& cache, const int32_t* slots, int32_t count, uint32_t seed,
               cudaStream_t stream);
/// bf16 queries, uniform with variance 1. `values`: a multiple of 8.
void fill_queries(void* q, int64_t values, uint32_t seed, cudaStream_t stream);

/// What the plain computation reads: the step and one layer, in device memory.
struct ReferenceInputs {
    kdt_attn_batch batch;
    kdt_kv_format format;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;   // MLA: 576
    int32_t value_dim;  // MLA: 512, the first values of a K row
    float scale;
    const void* q;       // bf16, [nodes, heads, head_dim]
    const std::byte* k;  // [slots, kv_heads, head_dim]
    const std::byte* v;  // MLA: k
    int64_t slot_bytes;
    int64_t head_bytes;
};

/// out [nodes, heads, value_dim] float; scores [nodes * heads, max_context + 128] is scratch.
void reference_attention(const ReferenceInputs& in, int32_t nodes, float* scores, float* out,
                         cudaStream_t stream);

}  // namespace kd::bench
