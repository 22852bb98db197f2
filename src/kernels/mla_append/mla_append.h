// mla_append: rotary position embedding of the rope part of new queries, and the write of new rows
// into the paged latent cache.
#pragma once

#include <cstdint>
#include <span>

#include "backends/stream.h"
#include "kernels/kv_view.h"
#include "kernels/rope_append/rope_append.h"

namespace kd {

struct MlaAppendParams {
    int64_t rows = 0;
    int32_t heads = 0;
    int32_t latent = 0;
    int32_t rope = 0;  // even
    RopePairing pairing = RopePairing::adjacent;
    const float* q = nullptr;  // [rows, heads, q_stride], whose last `rope` values are rotated
    int64_t q_stride = 0;
    float* q_latent = nullptr;       // [rows, heads, latent + rope]: the last `rope` are written
    const float* kv = nullptr;       // [rows, latent (normalised) + rope (not yet rotated)]
    const float* angles = nullptr;   // [rows, rope / 2, 2] as rope_angles() writes them
    std::span<const int32_t> slots;  // [rows] where each row goes; distinct
    KvView cache;                    // latent rows of latent + rope values
    int32_t layer = 0;
};

/// Writes the rotated rope part of every query behind its place in the latent space, and latent and
/// rotated key of every row to its slot in the cache's type.
void mla_append(const MlaAppendParams& params, Stream& stream);
void mla_append_ref(const MlaAppendParams& params);

}  // namespace kd
