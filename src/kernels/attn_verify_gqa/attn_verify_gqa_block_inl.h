// The inner loops of attn_verify_gqa: the queries of a few rows against the 64 path positions of
// one block. A query's results depend on its own keys and their lanes (path position modulo 64)
// alone, not on what else shares the tile.
#if defined(KD_KERNELS_ATTN_BLOCK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KD_KERNELS_ATTN_BLOCK_INL_H
#undef KD_KERNELS_ATTN_BLOCK_INL_H
#else
#define KD_KERNELS_ATTN_BLOCK_INL_H
#endif

#include <limits>

#include "kernels/attn_verify_gqa/attn_verify_gqa_tile_inl.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// Vectors of keys (or of head elements) that one pass keeps in registers for each query.
inline constexpr int32_t kPassVectors = kLanes >= 16 ? 4 : 2;
inline constexpr int32_t kQueriesPerPass = 6;

/// kVectors vectors of scores[h][column] = scale * q[h] . key of the column, from column `first`
/// on, the products added in element order.
template <int kQueries, int kVectors>
HWY_INLINE void score(const float* const* q, const float* tile, int32_t dim, int32_t first,
                      float scale, float (*scores)[kBlockKeys]) {
    const F32 d;
    const F32Vec factor = hn::Set(d, scale);
    F32Vec sum[kQueries][kVectors];
    HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
        HWY_UNROLL(4) for (int v = 0; v < kVectors; ++v) sum[h][v] = hn::Zero(d);
    }
    HWY_UNROLL(1) for (int32_t i = 0; i < dim; ++i) {
        const float* keys = tile + i * kBlockKeys + first;
        F32Vec key[kVectors];
        HWY_UNROLL(4) for (int v = 0; v < kVectors; ++v) key[v] = hn::Load(d, keys + v * kLane);
        HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
            const F32Vec element = hn::Set(d, q[h][i]);
            HWY_UNROLL(4) for (int v = 0; v < kVectors; ++v) {
                sum[h][v] = hn::MulAdd(element, key[v], sum[h][v]);
            }
        }
    }
    HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
        HWY_UNROLL(4) for (int v = 0; v < kVectors; ++v) {
            hn::Store(hn::Mul(sum[h][v], factor), d, scores[h] + first + v * kLane);
        }
    }
}

/// Scores of kQueries queries against the first `columns` keys of the tile, rounded up to vectors.
template <int kQueries>
HWY_NOINLINE void score_queries(const float* const* q, const float* tile, int32_t dim,
                                int32_t columns, float scale, float (*scores)[kBlockKeys]) {
    int32_t first = 0;
    for (; columns - first > kLane; first += kPassVectors * kLane) {
        score<kQueries, kPassVectors>(q, tile, dim, first, scale, scores);
    }
    if (first < columns) score<kQueries, 1>(q, tile, dim, first, scale, scores);
}

/// kVectors vectors of sum_j p[h][j] * v[j] from element `start` on, keys in path order; meanwhile
/// the lines of `ahead` on their way.
template <int kQueries, int kVectors, class T>
HWY_INLINE void weigh(const float (*p)[kBlockKeys], const CacheRows<T>& values,
                      const CacheRows<T>& ahead, int32_t valid, int32_t start, float* const* out) {
    const F32 d;
    F32Vec sum[kQueries][kVectors];
    HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
        HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) sum[h][i] = hn::Zero(d);
    }
    HWY_UNROLL(1) for (int32_t j = 0; j < valid; ++j) {
        const T* next = ahead.row(j) + start;
        for (int32_t i = 0; i < kVectors * kLane; i += kLineValues<T>) hwy::Prefetch(next + i);
        const T* row = values.row(j) + start;
        F32Vec value[kVectors];
        HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) {
            value[i] = load_values(d, row + i * kLane, values.dim);
        }
        HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
            const F32Vec weight = hn::Set(d, p[h][j]);
            HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) {
                sum[h][i] = hn::MulAdd(weight, value[i], sum[h][i]);
            }
        }
    }
    HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
        HWY_UNROLL(4) for (int i = 0; i < kVectors; ++i) {
            hn::StoreU(sum[h][i], d, out[h] + start + i * kLane);
        }
    }
}

/// Head elements of a partial result: whole vectors on every target.
constexpr int32_t padded_dim(int32_t head_dim) {
    return (head_dim + 15) / 16 * 16;
}

/// A partial result: [padded_dim] weighted V, then the largest score, then the sum of weights.
constexpr int64_t record_floats(int32_t head_dim) {
    return padded_dim(head_dim) + 2;
}

/// Scores to weights in place: e^(score - largest), and what a record keeps of them. Lanes from
/// valid[h] on get weight 0, which also leaves the sum (one fixed tree over all 64 lanes)
/// untouched.
/// The queries take turns step by step: each of them alone is a chain of waits.
template <int kQueries>
HWY_NOINLINE void exponentiate(float (*scores)[kBlockKeys], const int32_t* valid, int32_t padded,
                               float* const* records) {
    const F32 d;
    F32Vec peak[kQueries];
    F32Vec total[kQueries];
    HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
        for (int32_t j = valid[h]; j < kBlockKeys; ++j) {
            scores[h][j] = -std::numeric_limits<float>::infinity();
        }
        peak[h] = hn::Load(d, scores[h]);
        for (int32_t j = kLane; j < kBlockKeys; j += kLane) {
            peak[h] = hn::Max(peak[h], hn::Load(d, scores[h] + j));
        }
        total[h] = hn::Zero(d);
    }
    HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) peak[h] = hn::MaxOfLanes(d, peak[h]);
    HWY_UNROLL(1) for (int32_t j = 0; j < kBlockKeys; j += kLane) {
        HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
            const F32Vec weight = exp_of(d, hn::Sub(hn::Load(d, scores[h] + j), peak[h]));
            hn::Store(weight, d, scores[h] + j);
            total[h] = hn::Add(total[h], weight);
        }
    }
    HWY_UNROLL(6) for (int h = 0; h < kQueries; ++h) {
        records[h][padded] = hn::GetLane(peak[h]);
        records[h][padded + 1] = sum_of(d, total[h]);
    }
}

/// Weighted sums of V of kQueries queries that see the same `valid` keys.
template <int kQueries, class T>
HWY_NOINLINE void weigh_queries(const float (*p)[kBlockKeys], const CacheRows<T>& values,
                                const CacheRows<T>& ahead, int32_t valid, float* const* records) {
    constexpr int32_t kPass = kPassVectors * kLane;
    int32_t i = 0;
    for (; i + kPass <= values.dim; i += kPass) {
        weigh<kQueries, kPassVectors>(p, values, ahead, valid, i, records);
    }
    for (; i < values.dim; i += kLane) {
        weigh<kQueries, 1>(p, values, ahead, valid, vector_start(i, values.dim), records);
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
