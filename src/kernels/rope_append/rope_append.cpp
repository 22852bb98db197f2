#include "kernels/rope_append/rope_append.h"

#include <cstring>

#include "base/check.h"
#include "kernels/simd/grain.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope_append/rope_append.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// from -> to (may be the same): pairs (i, i + pairs). No fused operations, so that vectors, the
/// scalar tail and every instruction set agree to the bit.
HWY_INLINE void rotate_half(const float* from, const float* angles, int32_t pairs, float* to) {
    const F32 d;
    int32_t i = 0;
    for (; i + static_cast<int32_t>(kLanes) <= pairs; i += static_cast<int32_t>(kLanes)) {
        F32Vec c, s;
        hn::LoadInterleaved2(d, angles + 2 * i, c, s);
        const F32Vec a = hn::LoadU(d, from + i);
        const F32Vec b = hn::LoadU(d, from + i + pairs);
        hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, to + i);
        hn::StoreU(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), d, to + i + pairs);
    }
    for (; i < pairs; ++i) {
        const float a = from[i];
        const float b = from[i + pairs];
        to[i] = a * angles[2 * i] - b * angles[2 * i + 1];
        to[i + pairs] = a * angles[2 * i + 1] + b * angles[2 * i];
    }
}

/// The same for pairs (2i, 2i + 1).
HWY_INLINE void rotate_adjacent(const float* from, const float* angles, int32_t pairs, float* to) {
    const F32 d;
    int32_t i = 0;
    for (; i + static_cast<int32_t>(kLanes) <= pairs; i += static_cast<int32_t>(kLanes)) {
        F32Vec c, s, a, b;
        hn::LoadInterleaved2(d, angles + 2 * i, c, s);
        hn::LoadInterleaved2(d, from + 2 * i, a, b);
        hn::StoreInterleaved2(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)),
                              hn::Add(hn::Mul(a, s), hn::Mul(b, c)), d, to + 2 * i);
    }
    for (; i < pairs; ++i) {
        const float a = from[2 * i];
        const float b = from[2 * i + 1];
        to[2 * i] = a * angles[2 * i] - b * angles[2 * i + 1];
        to[2 * i + 1] = a * angles[2 * i + 1] + b * angles[2 * i];
    }
}

HWY_INLINE void rotate_head(const RopeAppendParams& params, const float* from, const float* angles,
                            float* to) {
    if (params.pairing == RopePairing::half) {
        rotate_half(from, angles, params.rotated / 2, to);
    } else {
        rotate_adjacent(from, angles, params.rotated / 2, to);
    }
}

HWY_INLINE void write_values(DType type, const float* from, int32_t values, std::byte* to) {
    if (type == DType::f32) {
        std::memcpy(to, from, static_cast<size_t>(values) * sizeof(float));
        return;
    }
    auto* half = reinterpret_cast<uint16_t*>(to);
    int32_t i = 0;
#if HWY_TARGET <= HWY_AVX2
    const F32 d;
    const hn::Rebind<hwy::float16_t, F32> d16;
    for (; i + static_cast<int32_t>(kLanes) <= values; i += static_cast<int32_t>(kLanes)) {
        hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, from + i)), d16,
                   reinterpret_cast<hwy::float16_t*>(half + i));
    }
#endif
    for (; i < values; ++i) half[i] = f32_to_f16(from[i]);
}

void rope_append_rows(const RopeAppendParams& params, int64_t begin, int64_t end) {
    const int32_t dim = params.head_dim;
    const int64_t q_width = int64_t{params.heads} * dim;
    const int64_t kv_width = int64_t{params.kv_heads} * dim;
    const int64_t head_bytes = bytes_of(params.kv.type, dim);
    const KvLayer layer = params.kv.layer(params.layer);
    HWY_ALIGN float rotated[kMaxHeadDim];
    for (int64_t row = begin; row < end; ++row) {
        float* q = params.qkv + row * (q_width + 2 * kv_width);
        const float* angles = params.angles + row * params.rotated;
        const int64_t slot = params.slots[static_cast<size_t>(row)];
        KD_CHECK(slot >= 0 && slot < params.kv.slots, "slot {} of {}", slot, params.kv.slots);
        for (int32_t h = 0; h < params.heads; ++h) {
            rotate_head(params, q + h * dim, angles, q + h * dim);
        }
        const float* k = q + q_width;
        const float* v = k + kv_width;
        for (int32_t h = 0; h < params.kv_heads; ++h) {
            const int64_t at = slot * params.kv.row_bytes() + h * head_bytes;
            std::memcpy(rotated, k + h * dim, static_cast<size_t>(dim) * sizeof(float));
            rotate_head(params, rotated, angles, rotated);
            write_values(params.kv.type, rotated, dim, layer.k + at);
            write_values(params.kv.type, v + h * dim, dim, layer.v + at);
        }
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(rope_append_rows);

void rope_append(const RopeAppendParams& params, Stream& stream) {
    KD_CHECK(params.rotated % 2 == 0 && params.rotated <= params.head_dim &&
                 params.head_dim <= kMaxHeadDim,
             "{} of {} elements rotate", params.rotated, params.head_dim);
    KD_CHECK(params.kv.type == DType::f16 || params.kv.type == DType::f32, "K/V cache of {}",
             name_of(params.kv.type));
    if (stream.kernels == Kernels::reference) return rope_append_ref(params);
    const int64_t columns = int64_t{params.heads + 2 * params.kv_heads} * params.head_dim;
    const int64_t grain = rows_per_chunk(columns, 4096);
    stream.threads->parallel_for(params.rows, grain, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(rope_append_rows)(params, begin, end);
    });
}

}  // namespace kd
#endif
