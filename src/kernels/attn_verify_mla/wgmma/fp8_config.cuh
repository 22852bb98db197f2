// The sm_90a main loop of attn_verify_mla on fp8 caches: one block of four warpgroups a
// multiprocessor. Operands are f16 and everything is transposed, so that the cache is operand A,
// which a product may take from registers: the cache's bytes are read once for K and once for V
// and converted on the way; no converted tile is ever written.
//
//   load        gathers the rows of 64 keys a stage (cp.async, whatever the page size);
//   score       S^T[64 keys, 64 rows] = K Q^T, softmax down the columns, P to shared memory;
//   accumulate  two warpgroups, each O^T[256 columns, 64 rows] += V^T P^T.
//
// Tried before: the bf16 loop on tiles that its load warpgroup converts in shared memory. On an
// H200, 8 heads, one node, e4m3 with one scale, that took 13.5 / 31.1 / 52.2 us at 16k / 64k /
// 128k, this takes 15.6 / 29.6 / 47.2 us: operands in shared memory keep it busy longer than the
// tensor cores already, and a converted tile is written and read there besides.
//
// The softmax is that of the bf16 loop: a row's reference maximum moves only when a score exceeds
// it by kLazyRescale powers of two, a decision of the row alone.
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
};
template <>
struct Fp8Row<KDT_KV_FP8_MLA656> {
    static constexpr bool kScaled = true;  // a scaled value must be finite in f16
    static constexpr int32_t kBytes = 656;
    static constexpr int32_t kStride = 656;
    static constexpr int32_t kRope = 528;  // bf16; a key within f16's range
};
inline constexpr int32_t kFp8Scales = 512;  // float [4]

inline constexpr int32_t kFp8Keys = 64;  // of a stage
inline constexpr int32_t kFp8Stages = 3;
inline constexpr int32_t kFp8LoadRegisters = 40;
inline constexpr int32_t kFp8ScoreRegisters = 120;
inline constexpr int32_t kFp8AccumulateRegisters = 176;
// A block of 512 threads starts with 128 each; setmaxnreg must be told which way it goes.
static_assert(kFp8LoadRegisters < 128 && kFp8ScoreRegisters < 128 && kFp8AccumulateRegisters > 128);
static_assert(kFp8LoadRegisters + kFp8ScoreRegisters + 2 * kFp8AccumulateRegisters <= 512);

/// Shared memory of a block: byte offsets from its 1024-byte-aligned start.
template <kdt_kv_format kFormat>
struct Fp8Plan {
    static constexpr int32_t kStageBytes = kFp8Keys * Fp8Row<kFormat>::kStride;
    static constexpr int32_t kPBytes = kTileRows * 128;  // f16 [row][key], swizzled

    static constexpr int32_t kQ = 0;                                        // [kChunks]
    static constexpr int32_t kP = kQ + kChunks * kQChunkBytes;              // [2]
    static constexpr int32_t kKv = kP + 2 * kPBytes;                        // [kFp8Stages]
    static constexpr int32_t kVisibility = kKv + kFp8Stages * kStageBytes;  // RowVisibility [64]
    static constexpr int32_t kMaxima = kVisibility + 64 * sizeof(RowVisibility);  // float [4][64]
    static constexpr int32_t kBase = kMaxima + 4 * 64 * 4;                        // float [64]
    static constexpr int32_t kFactor = kBase + 64 * 4;          // float [2][64], by tile
    static constexpr int32_t kInverse = kFactor + 2 * 64 * 4;   // float [64]
    static constexpr int32_t kRescaleFlag = kInverse + 64 * 4;  // int32 [2][2 warps]
    static constexpr int32_t kFull = kRescaleFlag + 16;         // [kFp8Stages] 128 copies
    static constexpr int32_t kEmpty = kFull + 8 * kFp8Stages;   // [kFp8Stages] 12 warps
    static constexpr int32_t kPFull = kEmpty + 8 * kFp8Stages;  // [2] 4 warps
    static constexpr int32_t kPEmpty = kPFull + 16;             // [2] 8 warps
    static constexpr int32_t kFinal = kPEmpty + 16;             // 4 warps: kInverse is there
    static constexpr int32_t kTaken = kFinal + 8;               // 8 warps: and has been read
    static constexpr int32_t kBytes = kTaken + 8;
    static constexpr int32_t kRequestBytes = kBytes + 1024;  // for the alignment
    static_assert(kRequestBytes <= 232448);
    static_assert(kVisibility % 16 == 0 && kFull % 8 == 0);
};

// ---- layouts, as host code too ------------------------------------------------------------------

/// Bytes from the first of 16 rows to where lane `lane` of an ldmatrix.x4 points. Words 0 and 1 of
/// the result are the first and the second 16 bytes of rows 0..7, words 2 and 3 those of
/// rows 8..15.
__host__ __device__ constexpr int32_t key_offset(int32_t lane, int32_t stride) {
    return ((lane & 7) + (lane >> 4) * 8) * stride + (lane >> 3 & 1) * 16;
}
/// Where lane `lane` of score warp `warp` points when it stores, transposed, the four matrices of
/// rows 0..7 and 8..15 by its warp's keys 0..7 and 8..15 (rows before keys) of P.
__host__ __device__ constexpr uint32_t probs_offset(int32_t warp, int32_t lane) {
    const int32_t row = lane / 16 * 8 + lane % 8;
    const int32_t unit = 2 * warp + (lane / 8 & 1);
    return row * 128 + ((unit ^ (row & 7)) << 4);
}

}  // namespace kd::mla_wgmma
