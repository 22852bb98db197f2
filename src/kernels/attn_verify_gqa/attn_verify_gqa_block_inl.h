// The inner loops of attn_verify_gqa: the queries of a few rows against the 64 path positions of
// one block. A query's results depend on its own keys and their lanes (path position modulo 64)
// alone, not on what else shares the tile.
#if defined(KD_KERNELS_ATTN_BLOCK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KD_KERNELS_ATTN_BLOCK_INL_H
#undef KD_KERNELS_ATTN_BLOCK_INL_H
#else
#define KD_KERNELS_ATTN_BLOCK_INL_H
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/attn_verify_gqa/attn_verify_gqa.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_path.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_unit.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

inline constexpr int32_t kBlockKeys = kAttnBlockKeys;
/// Vectors of keys (or of head elements) that one pass keeps in registers for each query.
inline constexpr int32_t kPassVectors = kLanes >= 16 ? 4 : 2;
inline constexpr int32_t kLane = static_cast<int32_t>(kLanes);
inline constexpr int32_t kQueriesPerPass = 4;

/// Floats of one block's keys ([head_dim, 64 keys]) or values ([64 keys, padded_dim]). They take
/// turns in one buffer: both at once would fill a first-level cache of 32 KB.
inline constexpr int32_t kTileFloats = kMaxHeadDim * kBlockKeys;

/// Head elements of a V row and of a partial result: whole vectors on every target.
constexpr int32_t padded_dim(int32_t head_dim) {
    return (head_dim + 15) / 16 * 16;
}

/// `values` (a multiple of kHeadDimStep) cache values as floats, padded with zeros to a multiple
/// of 16.
HWY_INLINE void load_row(DType type, const std::byte* from, int32_t values, float* to) {
    const F32 d;
    int32_t i = 0;
    if (type == DType::f16) {
        const auto* half = reinterpret_cast<const uint16_t*>(from);
        for (; i + kLane <= values; i += kLane) hn::Store(load_f16(d, half + i), d, to + i);
        for (; i < values; ++i) to[i] = f16_to_f32(half[i]);
    } else {
        std::memcpy(to, from, static_cast<size_t>(values) * sizeof(float));
        i = values;
    }
    for (; i < padded_dim(values); ++i) to[i] = 0;
}

/// One key into column `lane` of the tile.
HWY_INLINE void put_key(const float* row, int32_t dim, int32_t lane, float* k) {
    for (int32_t i = 0; i < dim; ++i) k[i * kBlockKeys + lane] = row[i];
}

/// Four keys into columns lane .. lane + 3: 4 x 4 transposes.
HWY_INLINE void put_4_keys(const float* rows, int32_t row_stride, int32_t dim, int32_t lane,
                           float* k) {
#if HWY_TARGET == HWY_SCALAR
    for (int32_t j = 0; j < 4; ++j) put_key(rows + j * row_stride, dim, lane + j, k);
#else
    const hn::FixedTag<float, 4> d4;
    const hn::Repartition<double, decltype(d4)> d2;
    for (int32_t i = 0; i < dim; i += 4) {
        const auto a = hn::Load(d4, rows + i);
        const auto b = hn::Load(d4, rows + row_stride + i);
        const auto c = hn::Load(d4, rows + 2 * row_stride + i);
        const auto e = hn::Load(d4, rows + 3 * row_stride + i);
        const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));
        const auto ab_high = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));
        const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
        const auto ce_high = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
        float* to = k + i * kBlockKeys + lane;
        hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ce_low)), d4, to);
        hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ce_low)), d4, to + kBlockKeys);
        hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ce_high)), d4,
                  to + 2 * kBlockKeys);
        hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ce_high)), d4,
                  to + 3 * kBlockKeys);
    }
#endif
}

/// scores[h][lane] = scale * q[h] . k[lane], the products added in element order.
template <int kQueries>
HWY_INLINE void score(const float* const* q, const float* k, int32_t dim, int32_t valid,
                      float scale, float (*scores)[kBlockKeys]) {
    const F32 d;
    const F32Vec factor = hn::Set(d, scale);
    for (int32_t lane = 0; lane < valid; lane += kPassVectors * kLane) {
        F32Vec sum[kQueries][kPassVectors];
        HWY_UNROLL(4) for (int h = 0; h < kQueries; ++h) {
            HWY_UNROLL(4) for (int v = 0; v < kPassVectors; ++v) sum[h][v] = hn::Zero(d);
        }
        HWY_UNROLL(1) for (int32_t i = 0; i < dim; ++i) {
            const float* keys = k + i * kBlockKeys + lane;
            F32Vec key[kPassVectors];
            HWY_UNROLL(4) for (int v = 0; v < kPassVectors; ++v) {
                key[v] = hn::Load(d, keys + v * kLane);
            }
            HWY_UNROLL(4) for (int h = 0; h < kQueries; ++h) {
                const F32Vec element = hn::Set(d, q[h][i]);
                HWY_UNROLL(4) for (int v = 0; v < kPassVectors; ++v) {
                    sum[h][v] = hn::MulAdd(element, key[v], sum[h][v]);
                }
            }
        }
        HWY_UNROLL(4) for (int h = 0; h < kQueries; ++h) {
            HWY_UNROLL(4) for (int v = 0; v < kPassVectors; ++v) {
                hn::Store(hn::Mul(sum[h][v], factor), d, scores[h] + lane + v * kLane);
            }
        }
    }
}

/// kVectors vectors of sum_j p[h][j] * v[j], keys in path order.
template <int kQueries, int kVectors>
HWY_INLINE void weigh(const float (*p)[kBlockKeys], const float* v, int32_t stride, int32_t valid,
                      int32_t element, float* const* out) {
    const F32 d;
    F32Vec sum[kQueries][kVectors];
    HWY_UNROLL(4) for (int h = 0; h < kQueries; ++h) {
        HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) sum[h][i] = hn::Zero(d);
    }
    HWY_UNROLL(1) for (int32_t j = 0; j < valid; ++j) {
        const float* row = v + j * stride + element;
        F32Vec value[kVectors];
        HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) value[i] = hn::Load(d, row + i * kLane);
        HWY_UNROLL(4) for (int h = 0; h < kQueries; ++h) {
            const F32Vec weight = hn::Set(d, p[h][j]);
            HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) {
                sum[h][i] = hn::MulAdd(weight, value[i], sum[h][i]);
            }
        }
    }
    HWY_UNROLL(4) for (int h = 0; h < kQueries; ++h) {
        HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) {
            hn::StoreU(sum[h][i], d, out[h] + element + i * kLane);
        }
    }
}

/// Scores to weights in place: e^(score - largest). Lanes from `valid` on get weight 0, which also
/// leaves the sum (one fixed tree over all 64 lanes) untouched.
HWY_INLINE void exponentiate(float* scores, int32_t valid, float& largest, float& sum) {
    const F32 d;
    for (int32_t j = valid; j < kBlockKeys; ++j) {
        scores[j] = -std::numeric_limits<float>::infinity();
    }
    F32Vec top = hn::Load(d, scores);
    for (int32_t j = kLane; j < kBlockKeys; j += kLane) top = hn::Max(top, hn::Load(d, scores + j));
    const F32Vec peak = hn::MaxOfLanes(d, top);
    F32Vec total = hn::Zero(d);
    for (int32_t j = 0; j < kBlockKeys; j += kLane) {
        const F32Vec weight = exp_of(d, hn::Sub(hn::Load(d, scores + j), peak));
        hn::Store(weight, d, scores + j);
        total = hn::Add(total, weight);
    }
    largest = hn::GetLane(peak);
    sum = sum_of(d, total);
}

/// A partial result: [padded_dim] weighted V, then the largest score, then the sum of weights.
constexpr int64_t record_floats(int32_t head_dim) {
    return padded_dim(head_dim) + 2;
}

/// Weights p of kQueries queries that see the same number of keys.
template <int kQueries>
HWY_NOINLINE void score_queries(const float* const* q, const float* keys, int32_t dim,
                                int32_t valid, float scale, float (*p)[kBlockKeys],
                                float* const* records) {
    score<kQueries>(q, keys, dim, valid, scale, p);
    const int32_t padded = padded_dim(dim);
    for (int h = 0; h < kQueries; ++h) {
        exponentiate(p[h], valid, records[h][padded], records[h][padded + 1]);
    }
}

/// Their weighted sums of V.
template <int kQueries>
HWY_NOINLINE void weigh_queries(const float (*p)[kBlockKeys], const float* values, int32_t dim,
                                int32_t valid, float* const* records) {
    const int32_t padded = padded_dim(dim);
    int32_t element = 0;
    for (; element + kPassVectors * kLane <= padded; element += kPassVectors * kLane) {
        weigh<kQueries, kPassVectors>(p, values, padded, valid, element, records);
    }
    for (; element < padded; element += kLane) {
        weigh<kQueries, 1>(p, values, padded, valid, element, records);
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
