// The sm_90a main loop of attn_verify_mla on fp8 caches: one block of three warpgroups a
// multiprocessor. Everything is transposed, so that the cache is operand A, which a product may
// take from registers: no converted tile is ever written.
//
//   load      gathers the rows of 32 keys a stage, one bulk copy a row, whatever the page size;
//   math      two warpgroups work on a step of two tiles of 64 keys. Each makes the scores of its
//             tile, S^T[64 keys, rows] = K Q^T, and their softmax down the columns, and hands P
//             over in shared memory; then each accumulates both tiles in its half of the latent,
//             O^T[256 columns, rows] += V^T P^T.
//
// Few rows: K is multiplied as it lies in the cache, in e4m3 products, and Q is the sum of two e4m3
// values, the high and the low part, which stand side by side as columns of one product. With one
// scale V and P are treated alike. The sums of such products keep about 13 fraction bits, so they
// run over 128 dimensions of K, or the 128 keys of a step, and are added in float. In 656-byte rows
// V has a scale for each key: there V is converted to f16, and the rope part of K, which is bf16.
//
// Many rows, and deterministic mode, where a node must get the same bits beside few others and
// many: K and V are converted to f16. For 64 rows sums in turns and twice the columns cost more.
//
// Products have the width of the rows: 8 for units of up to 8, kMostRows, an argument of the
// kernel, for all others. A third width in one kernel would make the compiler run out of registers
// and put a wait behind every product; it says so (C7512).
//
// A row's reference maximum moves only when a score exceeds it by kLazyRescale powers of two, a
// decision of the row alone. Whether any row's moves is asked in the barrier that the warpgroups
// meet at anyway.
#pragma once

#include "kernels/attn_verify_mla/wgmma/units.cuh"

namespace kd::mla_wgmma {

/// A row of the cache: its bytes, and how far apart rows lie in shared memory: an odd multiple of
/// 16 bytes, so that eight rows of an ldmatrix meet different banks.
template <kdt_kv_format kFormat>
struct Fp8Row;
template <>
struct Fp8Row<KDT_KV_FP8> {
    static constexpr bool kScaled = false;  // kv_scale goes into the scores and the output
    static constexpr int32_t kBytes = 576;
    static constexpr int32_t kStride = 592;
    static constexpr int32_t kRope = 512;  // e4m3, behind the latent
};
template <>
struct Fp8Row<KDT_KV_FP8_MLA656> {
    static constexpr bool kScaled = true;  // a scaled value must be finite in f16
    static constexpr int32_t kBytes = 656;
    static constexpr int32_t kStride = 656;
    static constexpr int32_t kRope = 528;  // bf16; a key within f16's range
};
inline constexpr int32_t kFp8Scales = 512;  // float [4]

inline constexpr int32_t kFp8Threads = 384;
inline constexpr int32_t kFp8MathThreads = 256;
inline constexpr int32_t kFp8Keys = 64;       // of a tile
inline constexpr int32_t kFp8StageKeys = 32;  // a tile is two stages
inline constexpr int32_t kFewRows = 8;
/// A reference that moves goes this much below the row's largest score, so that P, up to
/// 2^kLazyRescale, is rounded to 2^-(kHeadroom + 14) of its largest at worst.
inline constexpr float kHeadroom = 5.0f;
inline constexpr int32_t kLowProbs = 16;  // times which the low parts of P are stored
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr int32_t kFp8LoadRegisters = 40;
inline constexpr int32_t kFp8MathRegisters = 232;
// A block of 384 threads starts with 168 each; setmaxnreg must be told which way it goes.
static_assert(kFp8LoadRegisters < 168 && kFp8MathRegisters > 168);
static_assert(kFp8LoadRegisters + 2 * kFp8MathRegisters <= 3 * 168);
inline constexpr int32_t kMathBarrier = 3;  // named: both math warpgroups
inline constexpr int32_t kLoadBarrier = 4;  // named: the load warpgroup

/// Shared memory of a block: byte offsets from its 1024-byte-aligned start. Q and P take what
/// kRows of the unit at hand need, and the ring what Q and P of the block's units leave.
template <kdt_kv_format kFormat, int32_t kMostRows>
struct Fp8Plan {
    static constexpr int32_t kStageBytes = kFp8StageKeys * Fp8Row<kFormat>::kStride;

    /// Whether products are of e4m3 values.
    static constexpr bool kE4m3 = kMostRows < kTileRows;

    /// Q. e4m3: chunks of 128 dimensions [kLatentChunks][high rows, low rows][128], swizzled, then
    /// the rope part, [high rows, low rows][64], swizzled by pairs of rows, or, if kScaled, f16
    /// [rows][64], swizzled. f16: [kChunks][row][64], swizzled.
    static constexpr int32_t kQ = 0;
    static constexpr int32_t kLatentChunks = kMlaLatent / 128;
    static constexpr int32_t chunk_bytes(int32_t rows) { return 2 * rows * 128; }
    static constexpr int32_t rope(int32_t rows) { return kLatentChunks * chunk_bytes(rows); }
    static constexpr int32_t query_bytes(int32_t rows) { return rope(rows) + rows * 128; }
    static_assert(query_bytes(1) == kChunks * 128);
    /// P of the step's two tiles: e4m3 [high rows, low rows][128 keys], or f16 [2][row][64 keys],
    /// swizzled.
    static constexpr int32_t probs(int32_t rows) { return query_bytes(rows); }
    static constexpr int32_t ring(int32_t rows) { return probs(rows) + 2 * rows * 128; }

    /// What follows the ring, from its end.
    static constexpr int32_t kStateBytes =
        64 * sizeof(RowVisibility) + 8 * 64 * 4 + 3 * 64 * 4 + sizeof(WorkUnit) + 16;
    static constexpr int32_t kMostStages = 12;  // of any ring
    static constexpr int32_t kBarrierBytes = (2 * kMostStages + 1) * 8;
    static constexpr int32_t stages_behind(int32_t begin) {
        const int32_t stages = (232448 - 1024 - kStateBytes - kBarrierBytes - begin) / kStageBytes;
        return stages < kMostStages ? stages : kMostStages;
    }
    static constexpr int32_t kStages = stages_behind(ring(kMostRows));
    static constexpr int32_t kFewStages = stages_behind(ring(kFewRows));
    static constexpr int32_t kVisibility =  // RowVisibility [64]
        ring(kMostRows) + kStages * kStageBytes > ring(kFewRows) + kFewStages* kStageBytes
            ? ring(kMostRows) + kStages* kStageBytes
            : ring(kFewRows) + kFewStages* kStageBytes;
    static constexpr int32_t kParts = kVisibility + 64 * sizeof(RowVisibility);  // float [8][64]
    static constexpr int32_t kReference = kParts + 8 * 64 * 4;                   // float [64]
    static constexpr int32_t kFactor = kReference + 64 * 4;                      // float [64]
    /// float [64]: scores to powers of two, Q's scale included.
    static constexpr int32_t kScoreFactor = kFactor + 64 * 4;
    static constexpr int32_t kUnit = kScoreFactor + 64 * 4;      // WorkUnit
    static constexpr int32_t kUnits = kUnit + sizeof(WorkUnit);  // of the plan, int32
    static constexpr int32_t kFull = kVisibility + kStateBytes;  // [kMostStages] a warp, its bytes
    static constexpr int32_t kEmpty = kFull + 8 * kMostStages;   // [kMostStages] 8 warps
    static constexpr int32_t kQueryAsked = kEmpty + 8 * kMostStages;  // 8 warps, once
    static constexpr int32_t kBytes = kQueryAsked + 8;
    static constexpr int32_t kRequestBytes = kBytes + 1024;  // for the alignment
    static_assert(kRequestBytes <= 232448);
    static_assert(kFewStages >= kStages && kStages >= 4);  // a step has four
    static_assert(kUnits + 16 == kFull);
    static_assert(kVisibility % 16 == 0 && kUnit % alignof(WorkUnit) == 0 && kFull % 8 == 0);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Whether this block's ring takes the room that few rows leave: its only unit, `first`, number
/// `index`, has no more.
__device__ __forceinline__ bool few_rows(const WorkUnit& first, int32_t index, int32_t units) {
    return first.rows <= kFewRows && next_unit(first, index) >= units;
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// ---- layouts, as host code too ------------------------------------------------------------------

/// Bytes from the first of 16 rows to where lane `lane` of an ldmatrix.x4 points, whose words are
/// then an operand A: words 0 and 1 are the first 16 bytes of rows 0..7 and 8..15, words 2 and 3
/// the second 16 bytes.
__host__ __device__ constexpr int32_t key_offset(int32_t lane, int32_t stride) {
    return lane % 16 * stride + lane / 16 * 16;
}
/// Byte offset of 16-byte unit `unit` of row `row` in swizzled rows of 64 bytes.
__host__ __device__ constexpr uint32_t offset_64(int32_t row, int32_t unit) {
    return row * 64 + ((unit ^ (row >> 1 & 3)) << 4);
}

}  // namespace kd::mla_wgmma
