// How attn_verify_gqa reads cached rows: V straight from the cache, K through a tile of floats in
// which it lies transposed, [head_dim, 64 keys].
#if defined(KD_KERNELS_ATTN_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KD_KERNELS_ATTN_TILE_INL_H
#undef KD_KERNELS_ATTN_TILE_INL_H
#else
#define KD_KERNELS_ATTN_TILE_INL_H
#endif

#include <algorithm>

#include "kernels/attn_verify_gqa/attn_verify_gqa.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_unit.h"
#include "kernels/simd/math_inl.h"

// After a Highway header.
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

inline constexpr int32_t kBlockKeys = kAttnBlockKeys;
inline constexpr int32_t kLane = static_cast<int32_t>(kLanes);

/// One head's K or V of the path positions of a block, as the cache holds them: T is uint16_t (f16
/// bits) or float. The first `keys` positions have a row, the others an address that may be
/// prefetched.
template <class T>
struct CacheRows {
    const std::byte* head = nullptr;   // of slot 0
    const int64_t* offsets = nullptr;  // [64] bytes from there
    int32_t keys = 0;
    int32_t dim = 0;

    HWY_INLINE const T* row(int32_t key) const {
        return reinterpret_cast<const T*>(head + offsets[key]);
    }
};

/// Values in one line of the cache.
template <class T>
inline constexpr int32_t kLineValues = 64 / static_cast<int32_t>(sizeof(T));

HWY_INLINE F32Vec load_values(F32 d, const uint16_t* from) {
    return load_f16(d, from);
}
HWY_INLINE F32Vec load_values(F32 d, const float* from) {
    return hn::LoadU(d, from);
}
/// kLane values, or of a head that has only `dim` < kLane those and zeros after them.
template <class T>
HWY_INLINE F32Vec load_values(F32 d, const T* from, int32_t dim) {
    if (dim >= kLane) return load_values(d, from);
    HWY_ALIGN T values[kLanes] = {};
    for (int32_t i = 0; i < dim; ++i) values[i] = from[i];
    return load_values(d, values);
}

/// Where vector i / kLane of a head begins: the last one is not cut but overlaps the one before it.
HWY_INLINE int32_t vector_start(int32_t i, int32_t dim) {
    return std::max(0, std::min(i, dim - kLane));
}

/// Rows to columns: kLane vectors of kLane values each.
HWY_INLINE void transpose(F32Vec (&v)[kLanes]) {
#if HWY_TARGET == HWY_SCALAR
    (void)v;
#else
    // 4 x 4 values within the 16-byte blocks of 4 rows, ...
    const F32 d;
    const hn::Repartition<double, F32> d64;
    HWY_UNROLL(4) for (int32_t r = 0; r < kLane; r += 4) {
        const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, v[r], v[r + 1]));
        const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, v[r], v[r + 1]));
        const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, v[r + 2], v[r + 3]));
        const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, v[r + 2], v[r + 3]));
        v[r] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
        v[r + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
        v[r + 2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
        v[r + 3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
    }
#if HWY_TARGET <= HWY_AVX3
    // ... then 2 x 2 blocks ...
    HWY_UNROLL(8) for (int32_t i = 0; i < kLane / 2; ++i) {
        F32Vec& a = v[i / 4 * 8 + i % 4];
        F32Vec& b = v[i / 4 * 8 + i % 4 + 4];
        const F32Vec even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
        b = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
        a = even;
    }
#endif
#if HWY_TARGET <= HWY_AVX2
    // ... and halves.
    HWY_UNROLL(8) for (int32_t r = 0; r < kLane / 2; ++r) {
        F32Vec& a = v[r];
        F32Vec& b = v[r + kLane / 2];
        const F32Vec low = hn::ConcatLowerLower(d, b, a);
        b = hn::ConcatUpperUpper(d, b, a);
        a = low;
    }
#endif
#endif
}

/// One key into its column of the tile.
template <class T>
HWY_NOINLINE void put_key(const CacheRows<T>& keys, int32_t lane, float* tile) {
    const F32 d;
    HWY_ALIGN float values[kLanes];
    for (int32_t i = 0; i < keys.dim; i += kLane) {
        const int32_t start = vector_start(i, keys.dim);
        hn::Store(load_values(d, keys.row(lane) + start, keys.dim), d, values);
        for (int32_t r = 0; r < std::min(kLane, keys.dim); ++r) {
            tile[(start + r) * kBlockKeys + lane] = values[r];
        }
    }
}

/// K rows as columns of the tile, and meanwhile the lines of `ahead` on their way: slots may lie
/// anywhere, so the hardware does not foresee them. Columns without a key are masked later; they
/// hold zeros.
template <class T>
HWY_NOINLINE void put_keys(const CacheRows<T>& keys, const CacheRows<T>& ahead, float* tile) {
    HWY_ALIGN static constexpr T kNoKey[kMaxHeadDim] = {};
    const F32 d;
    const int32_t dim = keys.dim;
    if (dim < kLane) {
        if (keys.keys < kBlockKeys) std::fill_n(tile, dim * kBlockKeys, 0.0f);
        for (int32_t lane = 0; lane < keys.keys; ++lane) put_key(keys, lane, tile);
        return;
    }
    for (int32_t lane = 0; lane < kBlockKeys; lane += kLane) {
        const T* rows[kLanes];
        for (int32_t r = 0; r < kLane; ++r) {
            rows[r] = lane + r < keys.keys ? keys.row(lane + r) : kNoKey;
        }
        for (int32_t i = 0; i < dim; i += kLane) {
            if (i % kLineValues<T> == 0) {
                for (int32_t r = 0; r < kLane; ++r) hwy::Prefetch(ahead.row(lane + r) + i);
            }
            const int32_t start = vector_start(i, dim);
            F32Vec v[kLanes];
            HWY_UNROLL(16) for (int32_t r = 0; r < kLane; ++r) {
                v[r] = load_values(d, rows[r] + start);
            }
            transpose(v);
            float* column = tile + start * kBlockKeys + lane;
            HWY_UNROLL(16) for (int32_t r = 0; r < kLane; ++r) {
                hn::Store(v[r], d, column + r * kBlockKeys);
            }
        }
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
