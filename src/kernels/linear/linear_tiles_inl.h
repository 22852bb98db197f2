// The inner loops of linear: one panel of 16 outputs times up to kTileRows rows. Every (row,
// output) is the same sequence of operations whatever the tile: blocks in order, exact integers
// inside a block, then one or two additions to the row's float sum.
#if defined(KD_KERNELS_LINEAR_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KD_KERNELS_LINEAR_TILES_INL_H
#undef KD_KERNELS_LINEAR_TILES_INL_H
#else
#define KD_KERNELS_LINEAR_TILES_INL_H
#endif

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "hwy/cache_control.h"
#include "kernels/linear/linear_packed.h"
#include "kernels/simd/math_inl.h"

// Highway 1.0.3 has no int8 dot product: the instruction is named here, per target.
#undef KD_DOT_VNNI
#undef KD_DOT_PAIRS
#if HWY_TARGET == HWY_AVX3_DL
#define KD_DOT_VNNI 1
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
#define KD_DOT_PAIRS 1
#endif

#undef KD_LINEAR_TARGET_STR
#if defined(KD_DOT_VNNI)
#define KD_LINEAR_TARGET_STR HWY_TARGET_STR ",avx512vnni"
#elif defined(HWY_TARGET_STR)
#define KD_LINEAR_TARGET_STR HWY_TARGET_STR
#endif

#if defined(KD_LINEAR_TARGET_STR)
HWY_PUSH_ATTRIBUTES(KD_LINEAR_TARGET_STR)
#endif
namespace kd::HWY_NAMESPACE {

/// Rows that share one pass over a panel: as many as the register file holds sums for.
inline constexpr int64_t kTileRows = kLanes >= 16 ? 8 : 4;
static_assert(kQuantTileRows % kTileRows == 0);

/// How far ahead of its use a panel is asked for: the hardware gives up at the border of every
/// page. Panels lie behind each other, so this is the next panels' beginning at the end of one.
/// A row or two wait for memory alone: one request, into the first-level cache. More rows compute
/// for longer than that cache's few outstanding requests last, so the second level is asked long
/// before. Milliseconds of a walk over 96 MB (Zen 5, 2 threads), one request and two: 1.95 and 2.04
/// with one row, 2.45 and 2.30 with four, 3.31 and 2.94 with eight; one row, 1 thread, by distance:
/// 3.2 at 1 KB, 2.6 at 4, 2.4 at 8, 2.5 at 16.
inline constexpr int64_t kOnlyPrefetchBytes = 8192;
inline constexpr int64_t kNearPrefetchBytes = 2048;
inline constexpr int64_t kFarPrefetchBytes = 18 * 1024;

struct Sums {
    HWY_ALIGN float at[kTileRows][kPanelOutputs];
};

/// Some rows of quantised activations: those of a QuantTile from `first` on, block after block.
struct TileRows {
    const QuantTile* tiles = nullptr;  // [blocks]
    int64_t first = 0;
    int64_t blocks = 0;
    bool first_use = true;  // of the panel: it may lie in memory, and what follows it as well
};

#if defined(KD_DOT_VNNI) || defined(KD_DOT_PAIRS)

HWY_INLINE I32Vec load_words(const std::byte* from) {
    return hn::Load(I32(), reinterpret_cast<const int32_t*>(from));
}

/// 4 activations in every lane.
HWY_INLINE I32Vec broadcast4(const int8_t* q) {
    int32_t word;
    std::memcpy(&word, q, sizeof word);
    return hn::Set(I32(), word);
}

#if defined(KD_DOT_VNNI)

/// Sums of the products of one block, one row: lanes are outputs.
struct BlockSums {
    I32Vec sum;

    HWY_INLINE void clear() { sum = hn::Zero(I32()); }
    /// `low`, `high`: unsigned weights; `q`: activations of the low half, those of the high half 16
    /// further on.
    HWY_INLINE void add_nibbles(I32Vec low, I32Vec high, const int8_t* q) {
        sum.raw = _mm512_dpbusd_epi32(sum.raw, low.raw, broadcast4(q).raw);
        sum.raw = _mm512_dpbusd_epi32(sum.raw, high.raw, broadcast4(q + 16).raw);
    }
    HWY_INLINE void add_bytes(I32Vec bytes, const int8_t* q) {
        sum.raw = _mm512_dpbusd_epi32(sum.raw, bytes.raw, broadcast4(q).raw);
    }
    HWY_INLINE I32Vec nibble_total() const { return sum; }
    HWY_INLINE I32Vec byte_total() const { return sum; }
};

#else

using I16 = hn::ScalableTag<int16_t>;
using I16Vec = hn::Vec<I16>;

/// Products of unsigned and signed bytes, added in pairs, in 16 bits.
HWY_INLINE I16Vec pairs(I32Vec u, I32Vec s) {
#if HWY_TARGET == HWY_AVX3
    return I16Vec{_mm512_maddubs_epi16(u.raw, s.raw)};
#elif HWY_TARGET == HWY_AVX2
    return I16Vec{_mm256_maddubs_epi16(u.raw, s.raw)};
#else
    return I16Vec{_mm_maddubs_epi16(u.raw, s.raw)};
#endif
}

/// Neighbouring 16-bit sums times `factor`, added to 32 bits.
HWY_INLINE I32Vec widen(I16Vec v, int16_t factor) {
    const I16Vec f = hn::Set(I16(), factor);
#if HWY_TARGET == HWY_AVX3
    return I32Vec{_mm512_madd_epi16(v.raw, f.raw)};
#elif HWY_TARGET == HWY_AVX2
    return I32Vec{_mm256_madd_epi16(v.raw, f.raw)};
#else
    return I32Vec{_mm_madd_epi16(v.raw, f.raw)};
#endif
}

/// A sum that has to exist here: left alone, GCC regroups the additions of a whole block and keeps
/// all products in memory until then.
HWY_INLINE void keep_in_register(I16Vec& sum) {
    asm("" : "+x"(sum.raw));
}

// 16-bit sums cannot overflow: a block adds 8 pairs of nibble x byte, at most 8 * 2 * 15 * 127 =
// 30480. Bytes are therefore taken as two nibbles, whose sums stay apart until they are 32 bits.
struct BlockSums {
    I16Vec low_sum;
    I16Vec high_sum;

    HWY_INLINE void clear() { low_sum = high_sum = hn::Zero(I16()); }
    HWY_INLINE void add_nibbles(I32Vec low, I32Vec high, const int8_t* q) {
        low_sum =
            hn::Add(low_sum, hn::Add(pairs(low, broadcast4(q)), pairs(high, broadcast4(q + 16))));
        keep_in_register(low_sum);
    }
    HWY_INLINE void add_split_bytes(I32Vec low, I32Vec high, const int8_t* q) {
        const I32Vec activations = broadcast4(q);
        low_sum = hn::Add(low_sum, pairs(low, activations));
        high_sum = hn::Add(high_sum, pairs(high, activations));
        keep_in_register(low_sum);
        keep_in_register(high_sum);
    }
    HWY_INLINE I32Vec nibble_total() const { return widen(low_sum, 1); }
    HWY_INLINE I32Vec byte_total() const { return hn::Add(widen(low_sum, 1), widen(high_sum, 16)); }
};

#endif

/// The scales of kLanes outputs, those from `lane` on, in a step of a panel. `block`: in the step.
template <DType kType>
struct StepScales {
    const std::byte* step;
    size_t lane;

    HWY_INLINE F32Vec scale(F32 d, int64_t block) const {
        if constexpr (kType == DType::q4_k || kType == DType::q5_k) {
            return hn::Mul(factor(d, 0), hn::ConvertTo(d, byte<uint8_t>(block, 0)));
        } else if constexpr (kType == DType::q6_k) {
            return factor(d, 0);
        } else if constexpr (kType == DType::int4) {
            return hn::LoadU(d, reinterpret_cast<const float*>(step) + lane);
        } else {
            return half_float(d, panel_scales_at(kType, block));
        }
    }
    HWY_INLINE F32Vec minimum(F32 d, int64_t block) const {
        if constexpr (kType == DType::q4_k || kType == DType::q5_k) {
            return hn::Mul(factor(d, 1), hn::ConvertTo(d, byte<uint8_t>(block, 1)));
        } else {
            return half_float(d, panel_scales_at(kType, block) + 2 * kPanelOutputs);
        }
    }
    /// Q6_K's scale of one half of a block.
    HWY_INLINE I32Vec half_factor(int64_t block, int half) const {
        return byte<int8_t>(block, half);
    }

  private:
    HWY_INLINE F32Vec half_float(F32 d, int64_t offset) const {
        return load_f16(d, reinterpret_cast<const uint16_t*>(step + offset) + lane);
    }
    HWY_INLINE F32Vec factor(F32 d, int64_t index) const {
        return half_float(d, panel_factors_at(kType, 0) + index * 2 * kPanelOutputs);
    }
    template <class Byte>
    HWY_INLINE I32Vec byte(int64_t block, int64_t index) const {
        const hn::Rebind<Byte, I32> bytes;
        const std::byte* from = step + panel_scales_at(kType, block) + index * kPanelOutputs;
        return hn::PromoteTo(I32(), hn::LoadU(bytes, reinterpret_cast<const Byte*>(from) + lane));
    }
};

/// Asks for what one more block of a panel takes, that far behind `at`.
template <DType kType, int kRows>
HWY_INLINE void prefetch_block(const std::byte* at) {
    constexpr int64_t kBytes = panel_step_bytes(kType) / panel_step_blocks(kType);
    for (int64_t i = 0; i < kBytes; i += 64) {
        if constexpr (kRows < 3) {
            __builtin_prefetch(at + kOnlyPrefetchBytes + i, 0, 3);
        } else {
            __builtin_prefetch(at + kNearPrefetchBytes + i, 0, 3);
            __builtin_prefetch(at + kFarPrefetchBytes + i, 0, 2);
        }
    }
}

/// kLanes outputs (those from `lane` on) of one block times kRows rows, added to `total`.
template <DType kType, int kRows>
HWY_INLINE void add_block(const StepScales<kType>& scales, int64_t block, const QuantTile& tile,
                          int64_t first, F32Vec (&total)[kRows]) {
    const F32 d;
    const I32 di;
    constexpr bool kBytes = panel_holds_bytes(kType);
    constexpr int kGroups = kBytes ? 8 : 4;
    const I32Vec nibble = hn::Set(di, 0x0f0f0f0f);
    const std::byte* words = scales.step + panel_integers_at(kType, block) + 4 * scales.lane;
    const int8_t* q = tile.q[first];
    BlockSums sums[kRows];
    HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) sums[r].clear();
    HWY_UNROLL(8) for (int g = 0; g < kGroups; ++g) {
        const I32Vec word = load_words(words + g * 4 * kPanelOutputs);
        if constexpr (kBytes) {
#if defined(KD_DOT_VNNI)
            HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
                sums[r].add_bytes(word, q + r * kBlockColumns);
            }
#else
            const I32Vec low = hn::And(word, nibble);
            const I32Vec high = hn::And(hn::ShiftRight<4>(word), nibble);
            HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
                sums[r].add_split_bytes(low, high, q + r * kBlockColumns);
            }
#endif
        } else {
            const I32Vec low = hn::And(word, nibble);
            const I32Vec high = hn::And(hn::ShiftRight<4>(word), nibble);
            HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
                sums[r].add_nibbles(low, high, q + r * kBlockColumns);
            }
        }
        q += 4;
    }
    const F32Vec scale = scales.scale(d, block);
    HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
        I32Vec products = kBytes ? sums[r].byte_total() : sums[r].nibble_total();
        if constexpr (panel_offset(kType) != 0) {
            products = hn::Sub(products, hn::Set(di, panel_offset(kType) * tile.sum[first + r]));
        }
        total[r] = hn::MulAdd(hn::ConvertTo(d, products),
                              hn::Mul(scale, hn::Set(d, tile.scale[first + r])), total[r]);
    }
    if constexpr (panel_has_minimum(kType)) {
        const F32Vec minimum = scales.minimum(d, block);
        HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
            total[r] = hn::MulAdd(minimum, hn::Set(d, tile.scaled_sum[first + r]), total[r]);
        }
    }
}

/// `sum` and the products of two groups of 4 columns of Q6_K: unsigned weights to 63, 8
/// activations.
HWY_INLINE I32Vec add_two_groups(I32Vec sum, I32Vec first, I32Vec second, const int8_t* q) {
#if defined(KD_DOT_VNNI)
    sum.raw = _mm512_dpbusd_epi32(sum.raw, first.raw, broadcast4(q).raw);
    sum.raw = _mm512_dpbusd_epi32(sum.raw, second.raw, broadcast4(q + 4).raw);
    return sum;
#else
    // Two pairs in 16 bits: at most 2 * 2 * 63 * 127 = 32004. A third would overflow.
    const I16Vec products = hn::Add(pairs(first, broadcast4(q)), pairs(second, broadcast4(q + 4)));
    return hn::Add(sum, widen(products, 1));
#endif
}

HWY_INLINE int32_t sum_of_16(const int8_t* q) {
    const hn::FixedTag<uint8_t, 16> bytes;
    const auto biased = hn::Xor(hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(q)),
                                hn::Set(bytes, uint8_t{0x80}));
    const auto sums = hn::SumsOf8(biased);
    return static_cast<int32_t>(hn::ExtractLane(sums, 0) + hn::ExtractLane(sums, 1)) - 16 * 128;
}

/// The same for Q6_K, whose scales are int8 factors of 16 columns: the halves' integers, times
/// those, add up to the block's integer. At most 32 * 32 * 127 * 128 = 16646144 < 2^24, so a float
/// holds it.
template <int kRows>
HWY_INLINE void add_q6_k_block(const StepScales<DType::q6_k>& scales, int64_t block,
                               const QuantTile& tile, int64_t first, F32Vec (&total)[kRows]) {
    constexpr DType kType = DType::q6_k;
    const F32 d;
    const I32 di;
    const std::byte* words = scales.step + panel_integers_at(kType, block) + 4 * scales.lane;
    I32Vec products[kRows];
    HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) products[r] = hn::Zero(di);
    for (int half = 0; half < 2; ++half) {
        const int8_t* q = tile.q[first] + 16 * half;
        I32Vec sums[kRows];
        // The weights are stored 32 too large.
        HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
            sums[r] = hn::Set(di, -32 * sum_of_16(q + r * kBlockColumns));
        }
        HWY_UNROLL(1) for (int g = 0; g < 4; g += 2) {
            const I32Vec one = load_words(words);
            const I32Vec two = load_words(words + 4 * kPanelOutputs);
            words += 8 * kPanelOutputs;
            HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
                sums[r] = add_two_groups(sums[r], one, two, q + 4 * g + r * kBlockColumns);
            }
        }
        const I32Vec factor = scales.half_factor(block, half);
        HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
            products[r] = hn::Add(products[r], hn::Mul(sums[r], factor));
        }
    }
    const F32Vec scale = scales.scale(d, block);
    HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
        total[r] = hn::MulAdd(hn::ConvertTo(d, products[r]),
                              hn::Mul(scale, hn::Set(d, tile.scale[first + r])), total[r]);
    }
}

template <DType kType, int kRows>
HWY_NOINLINE void quant_tile(const std::byte* panel, const TileRows& x, Sums& out) {
    constexpr int64_t kBlockBytes = panel_step_bytes(kType) / panel_step_blocks(kType);
    const F32 d;
    const int64_t first = x.first;
    const bool first_use = x.first_use;
    for (size_t lane = 0; lane < kPanelOutputs; lane += kLanes) {
        StepScales<kType> scales{panel, lane};
        F32Vec total[kRows];
        HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) total[r] = hn::Zero(d);
        const QuantTile* tile = x.tiles;
        for (int64_t left = x.blocks; left > 0; left -= panel_step_blocks(kType)) {
            const int64_t blocks = std::min(left, panel_step_blocks(kType));
            HWY_UNROLL(1) for (int64_t block = 0; block < blocks; ++block) {
                if (first_use) prefetch_block<kType, kRows>(scales.step + block * kBlockBytes);
                if constexpr (kType == DType::q6_k) {
                    add_q6_k_block<kRows>(scales, block, *tile++, first, total);
                } else {
                    add_block<kType, kRows>(scales, block, *tile++, first, total);
                }
            }
            scales.step += panel_step_bytes(kType);
        }
        HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) hn::Store(total[r], d, out.at[r] + lane);
    }
}

#else

/// The scales of a step of a panel, output by output. `block`: in the step.
template <DType kType>
struct StepScales {
    const std::byte* step;

    float scale(int64_t block, int n) const {
        if constexpr (kType == DType::q4_k || kType == DType::q5_k) {
            return factor(0, n) * byte<uint8_t>(block, 0, n);
        }
        if constexpr (kType == DType::q6_k) return factor(0, n);
        if constexpr (kType == DType::int4) return reinterpret_cast<const float*>(step)[n];
        return half_float(panel_scales_at(kType, block), n);
    }
    float minimum(int64_t block, int n) const {
        if constexpr (kType == DType::q4_k || kType == DType::q5_k) {
            return factor(1, n) * byte<uint8_t>(block, 1, n);
        }
        return half_float(panel_scales_at(kType, block) + 2 * kPanelOutputs, n);
    }
    /// Q6_K's scale of the half of a block that has column k; 1 for the other types.
    int32_t integer_factor(int64_t block, int k, int n) const {
        return kType == DType::q6_k ? byte<int8_t>(block, k / 16, n) : 1;
    }

  private:
    float half_float(int64_t offset, int n) const {
        return f16_to_f32(reinterpret_cast<const uint16_t*>(step + offset)[n]);
    }
    float factor(int64_t index, int n) const {
        return half_float(panel_factors_at(kType, 0) + index * 2 * kPanelOutputs, n);
    }
    template <class Byte>
    Byte byte(int64_t block, int64_t index, int n) const {
        return static_cast<Byte>(step[panel_scales_at(kType, block) + index * kPanelOutputs + n]);
    }
};

/// The integer of column k of a block, output n.
template <DType kType>
HWY_INLINE int32_t weight(const uint8_t* words, int k, int n) {
    constexpr int32_t kOffset = panel_offset(kType);
    if constexpr (panel_holds_bytes(kType)) return words[k / 4 * 64 + n * 4 + k % 4] - kOffset;
    const int32_t byte = words[k % 16 / 4 * 64 + n * 4 + k % 4];
    return (k < 16 ? byte & 15 : byte >> 4) - kOffset;
}

/// Any other machine: plain loops over the same panel.
template <DType kType, int kRows>
HWY_NOINLINE void quant_tile(const std::byte* panel, const TileRows& x, Sums& out) {
    std::memset(&out, 0, sizeof out);
    for (int64_t b = 0; b < x.blocks; ++b) {
        const StepScales<kType> scales{panel + panel_step_at(kType, b)};
        const int64_t block = b % panel_step_blocks(kType);
        const auto* words = reinterpret_cast<const uint8_t*>(panel + panel_integers_at(kType, b));
        for (int r = 0; r < kRows; ++r) {
            const QuantTile& tile = x.tiles[b];
            const int64_t row = x.first + r;
            for (int n = 0; n < kPanelOutputs; ++n) {
                int32_t products = 0;
                for (int k = 0; k < kBlockColumns; ++k) {
                    products += scales.integer_factor(block, k, n) * weight<kType>(words, k, n) *
                                tile.q[row][k];
                }
                float& total = out.at[r][n];
                total += static_cast<float>(products) * (scales.scale(block, n) * tile.scale[row]);
                if constexpr (panel_has_minimum(kType)) {
                    total += scales.minimum(block, n) * tile.scaled_sum[row];
                }
            }
        }
    }
}

#endif

template <DType kType>
HWY_INLINE F32Vec load_weights(F32 d, const std::byte* panel, int64_t at) {
    if constexpr (kType == DType::f32) {
        return hn::LoadU(d, reinterpret_cast<const float*>(panel) + at);
    } else if constexpr (kType == DType::f16) {
        return load_f16(d, reinterpret_cast<const uint16_t*>(panel) + at);
    } else {
        return load_bf16(d, reinterpret_cast<const uint16_t*>(panel) + at);
    }
}

/// Float weights: even and odd columns in two sums, added at the end. One chain of dependent
/// additions would be slower than memory.
template <DType kType, int kRows>
HWY_NOINLINE void float_tile(const std::byte* panel, const float* x, int64_t columns, Sums& out) {
    const F32 d;
    for (size_t lane = 0; lane < kPanelOutputs; lane += kLanes) {
        F32Vec even[kRows];
        F32Vec odd[kRows];
        HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(d);
        int64_t at = static_cast<int64_t>(lane);
        int64_t k = 0;
        for (; k + 2 <= columns; k += 2, at += 2 * kPanelOutputs) {
            constexpr int64_t kPairBytes = 2 * kPanelOutputs * block_bytes(kType);
            for (int64_t i = 0; i < kPairBytes; i += 64) {
                hwy::Prefetch(panel + k / 2 * kPairBytes + kOnlyPrefetchBytes + i);
            }
            const F32Vec w0 = load_weights<kType>(d, panel, at);
            const F32Vec w1 = load_weights<kType>(d, panel, at + kPanelOutputs);
            HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
                even[r] = hn::MulAdd(w0, hn::Set(d, x[r * columns + k]), even[r]);
                odd[r] = hn::MulAdd(w1, hn::Set(d, x[r * columns + k + 1]), odd[r]);
            }
        }
        if (k < columns) {
            const F32Vec w0 = load_weights<kType>(d, panel, at);
            HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
                even[r] = hn::MulAdd(w0, hn::Set(d, x[r * columns + k]), even[r]);
            }
        }
        HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
            hn::Store(hn::Add(even[r], odd[r]), d, out.at[r] + lane);
        }
    }
}

/// The instance for `rows` (1..kTileRows) rows.
template <DType kType, int kRows = 1>
HWY_INLINE void run_typed_tile(const LinearParams& params, const std::byte* panel, int64_t row,
                               int64_t rows, Sums& sums) {
    if constexpr (kRows < kTileRows) {
        if (rows > kRows) return run_typed_tile<kType, kRows + 1>(params, panel, row, rows, sums);
    }
    const int64_t columns = params.weights->columns();
    if constexpr (is_quantised(kType)) {
        const TileRows x{.tiles = &params.quantised->tile(row, 0),
                         .first = row % kQuantTileRows,
                         .blocks = columns / kBlockColumns,
                         .first_use = row == 0};
        quant_tile<kType, kRows>(panel, x, sums);
    } else {
        float_tile<kType, kRows>(panel, params.x + row * columns, columns, sums);
    }
}

HWY_NOINLINE void run_tile(const LinearParams& params, DType type, const std::byte* panel,
                           int64_t row, int64_t rows, Sums& sums) {
    switch (type) {
        case DType::f32:
            return run_typed_tile<DType::f32>(params, panel, row, rows, sums);
        case DType::f16:
            return run_typed_tile<DType::f16>(params, panel, row, rows, sums);
        case DType::bf16:
            return run_typed_tile<DType::bf16>(params, panel, row, rows, sums);
        case DType::q8_0:
            return run_typed_tile<DType::q8_0>(params, panel, row, rows, sums);
        case DType::q4_0:
            return run_typed_tile<DType::q4_0>(params, panel, row, rows, sums);
        case DType::q4_1:
            return run_typed_tile<DType::q4_1>(params, panel, row, rows, sums);
        case DType::q4_k:
            return run_typed_tile<DType::q4_k>(params, panel, row, rows, sums);
        case DType::q6_k:
            return run_typed_tile<DType::q6_k>(params, panel, row, rows, sums);
        case DType::q5_1:
            return run_typed_tile<DType::q5_1>(params, panel, row, rows, sums);
        case DType::q5_k:
            return run_typed_tile<DType::q5_k>(params, panel, row, rows, sums);
        case DType::int4:
            return run_typed_tile<DType::int4>(params, panel, row, rows, sums);
        case DType::q5_0:
        case DType::iq4_nl:
        case DType::f8_e4m3:
            break;  // no panels of their own
    }
    KD_CHECK(false, "a panel of {}", name_of(type));
}

}  // namespace kd::HWY_NAMESPACE
#if defined(KD_LINEAR_TARGET_STR)
HWY_POP_ATTRIBUTES
#endif

#endif
