// The sm_90a main loop of attn_verify_mla on fp8 caches: one block of three warpgroups a
// multiprocessor. Operands are f16 and everything is transposed, so that the cache is operand A,
// which a product may take from registers: the cache's bytes are converted on the way; no converted
// tile is ever written.
//
//   load      gathers the rows of 32 keys a stage, one bulk copy a row, whatever the page size;
//   math      two warpgroups work on a step of two tiles of 64 keys. Each makes the scores of its
//             tile, S^T[64 keys, rows] = K Q^T, and their softmax down the columns, and hands P
//             over in shared memory; then each accumulates both tiles in its half of the latent,
//             O^T[256 columns, rows] += V^T P^T.
//
// Products have 8 columns for units of up to 8 rows, 64 for all others: 13 clocks of the tensor
// cores instead of 32. A third width would make the compiler run out of registers and put a wait
// behind every product; it says so (C7512).
//
// The softmax is that of the bf16 loop: a row's reference maximum moves only when a score exceeds
// it by kLazyRescale powers of two, a decision of the row alone. Whether any row's moves is asked
// in the barrier that the warpgroups meet at anyway.
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
    static constexpr int32_t kRope = 512;  // e4m3
    static constexpr int32_t kStages = 7;
};
template <>
struct Fp8Row<KDT_KV_FP8_MLA656> {
    static constexpr bool kScaled = true;  // a scaled value must be finite in f16
    static constexpr int32_t kBytes = 656;
    static constexpr int32_t kStride = 656;
    static constexpr int32_t kRope = 528;  // bf16; a key within f16's range
    static constexpr int32_t kStages = 6;
};
inline constexpr int32_t kFp8Scales = 512;  // float [4]

inline constexpr int32_t kFp8Threads = 384;
inline constexpr int32_t kFp8MathThreads = 256;
inline constexpr int32_t kFp8Keys = 64;       // of a tile
inline constexpr int32_t kFp8StageKeys = 32;  // a tile is two stages
inline constexpr int32_t kFewRows = 8;
inline constexpr int32_t kFp8LoadRegisters = 40;
inline constexpr int32_t kFp8MathRegisters = 232;
// A block of 384 threads starts with 168 each; setmaxnreg must be told which way it goes.
static_assert(kFp8LoadRegisters < 168 && kFp8MathRegisters > 168);
static_assert(kFp8LoadRegisters + 2 * kFp8MathRegisters <= 3 * 168);
inline constexpr int32_t kMathBarrier = 3;  // named: both math warpgroups
inline constexpr int32_t kLoadBarrier = 4;  // named: the load warpgroup

/// Keys of a unit: rows see the same of tiles that end before `free_of_mask`.
struct UnitKeys {
    int32_t begin;
    int32_t end;
    int32_t free_of_mask;
};

/// Shared memory of a block: byte offsets from its 1024-byte-aligned start. Q and P take what
/// kRows of the unit at hand need, and the ring what Q and P of the block's units leave.
template <kdt_kv_format kFormat>
struct Fp8Plan {
    static constexpr int32_t kStageBytes = kFp8StageKeys * Fp8Row<kFormat>::kStride;

    static constexpr int32_t chunk_bytes(int32_t rows) { return rows * 128; }
    static constexpr int32_t kQ = 0;  // f16 [kChunks][row][64], swizzled
    /// P, f16 [2, of the step's tiles][row][key], swizzled.
    static constexpr int32_t probs(int32_t rows) { return kChunks * chunk_bytes(rows); }
    static constexpr int32_t ring(int32_t rows) { return probs(rows) + 2 * chunk_bytes(rows); }
    static constexpr int32_t kStages = Fp8Row<kFormat>::kStages;
    static constexpr int32_t kVisibility =
        ring(kTileRows) + kStages * kStageBytes;  // RowVisibility [64]
    static constexpr int32_t kFewStages = (kVisibility - ring(kFewRows)) / kStageBytes;
    static constexpr int32_t kParts = kVisibility + 64 * sizeof(RowVisibility);  // float [8][64]
    static constexpr int32_t kReference = kParts + 8 * 64 * 4;                   // float [64]
    static constexpr int32_t kFactor = kReference + 64 * 4;                      // float [64]
    static constexpr int32_t kInverse = kFactor + 64 * 4;                        // float [64]
    static constexpr int32_t kUnitKeys = kInverse + 64 * 4;
    static constexpr int32_t kFull = kUnitKeys + 16;           // [kFewStages] 1 warp and its bytes
    static constexpr int32_t kEmpty = kFull + 8 * kFewStages;  // [kFewStages] 8 warps
    static constexpr int32_t kQueryAsked = kEmpty + 8 * kFewStages;  // 8 warps, once
    static constexpr int32_t kBytes = kQueryAsked + 8;
    static constexpr int32_t kRequestBytes = kBytes + 1024;  // for the alignment
    static_assert(kRequestBytes <= 232448);
    static_assert(kFewStages >= kStages && kStages >= 4);  // a step has four
    static_assert(kVisibility % 16 == 0 && kFull % 8 == 0);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Whether this block's ring takes the room that few rows leave: its only unit, `first`, number
/// `index`, has no more.
__device__ __forceinline__ bool few_rows(const WorkUnit& first, int32_t index, int32_t units) {
    return first.rows <= kFewRows && next_unit(first, index) >= units;
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// ---- layouts, as host code too ------------------------------------------------------------------

/// Bytes from the first of 16 rows to where lane `lane` of an ldmatrix.x4 points. Words 0 and 1 of
/// the result are the first and the second 16 bytes of rows 0..7, words 2 and 3 those of
/// rows 8..15.
__host__ __device__ constexpr int32_t key_offset(int32_t lane, int32_t stride) {
    return ((lane & 7) + (lane >> 4) * 8) * stride + (lane >> 3 & 1) * 16;
}
/// Where lane `lane` of a warpgroup's warp `warp` points when it stores, transposed, the four
/// matrices of rows 0..7 and 8..15 by its warp's keys 0..7 and 8..15 (rows before keys) of P.
__host__ __device__ constexpr uint32_t probs_offset(int32_t warp, int32_t lane) {
    const int32_t row = lane / 16 * 8 + lane % 8;
    const int32_t unit = 2 * warp + (lane / 8 & 1);
    return row * 128 + ((unit ^ (row & 7)) << 4);
}

}  // namespace kd::mla_wgmma
