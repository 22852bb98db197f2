// Tiles and shared memory of the bf16 loop: operand tiles as wgmma.cuh describes them, 9 chunks (8
// latent, 1 rope) each.
#pragma once

#include "kernels/attn_verify_mla/wgmma/units.cuh"

namespace kd::mla_wgmma {

inline constexpr int32_t kStages = 3;
inline constexpr int32_t kKeys = kMlaWgmmaTileKeys;  // of a stage
inline constexpr int32_t kRegisterChunks = 5;        // chunks of Q that the score warpgroup holds
inline constexpr int32_t kSharedChunks = kChunks - kRegisterChunks;
/// Deterministic mode: chunks whose part of a score is a sum of its own; all others make the other.
inline constexpr int32_t kLowChunks = 4;
static_assert(kLowChunks == kRegisterChunks - 1);
inline constexpr int32_t kChunkBytes = kKeys * 128;
inline constexpr int32_t kTileBytes = kChunks * kChunkBytes;
// Of the 36 products that make a tile's scores, those issued before the P of the tile before is
// handed over (ScoreRole::unit_tiles).
inline constexpr int32_t kHandOverAfter = 28;
static_assert(kHandOverAfter >= kSharedChunks * 4 && kHandOverAfter < kChunks * 4);

// Byte offsets from the 1024-byte-aligned start of shared memory.
inline constexpr int32_t kQ = 0;  // [kSharedChunks]
inline constexpr int32_t kKv = kQ + kSharedChunks * kQChunkBytes;
inline constexpr int32_t kP = kKv + kStages * kTileBytes;  // [2], by tile
inline constexpr int32_t kPBytes = kTileRows * 128;
inline constexpr int32_t kRowScale = kP + 2 * kPBytes;             // float [2][64], beside P
inline constexpr int32_t kRowInverse = kRowScale + 2 * 64 * 4;     // float [2][64], by unit parity
inline constexpr int32_t kRescaleFlag = kRowInverse + 2 * 64 * 4;  // int32 [2][4 warps]
inline constexpr int32_t kBarriers = kRescaleFlag + 2 * 16;
inline constexpr int32_t kBarrierFull = kBarriers;                     // [kStages] 128 copies
inline constexpr int32_t kBarrierEmpty = kBarrierFull + 8 * kStages;   // [kStages] 8 warps
inline constexpr int32_t kBarrierPFull = kBarrierEmpty + 8 * kStages;  // [2] 4 warps
// [2] by unit parity, 4 warps: the score warpgroup may be a unit ahead
inline constexpr int32_t kBarrierFinal = kBarrierPFull + 2 * 8;
inline constexpr int32_t kRowsSee = kBarrierFinal + 2 * 8;  // uint4 [64], see row_sees()
// The output passes through shared memory, of each accumulating warp's 16 rows 32 columns at a
// time.
inline constexpr int32_t kOut = (kRowsSee + 64 * 16 + 127) / 128 * 128;
inline constexpr int32_t kOutBytes = 16 * 64;
// The block's units, by number: loads put them there, or each role would wait for L2 at the end of
// a unit. As many as the look-ups can be ahead of the accumulation, in tiles, and one.
inline constexpr int32_t kUnits = kOut + 8 * kOutBytes;
inline constexpr int32_t kUnitPlaces = 8;
static_assert(kUnitPlaces > 2 * kStages + 1);
inline constexpr int32_t kSharedBytes = kUnits + kUnitPlaces * sizeof(WorkUnit);
inline constexpr int32_t kSharedRequestBytes = kSharedBytes + 1024;  // for the alignment
static_assert(kSharedRequestBytes <= 232448);
static_assert(kChunkBytes % 1024 == 0 && kKeys % 16 == 0);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Where load() puts what, of a block that has whole units: all 9 chunks.
struct WholeRing {
    static constexpr int32_t kStages = mla_wgmma::kStages;
    static constexpr int32_t kFirstChunk = 0;
    static constexpr int32_t kChunkCount = kChunks;
    static constexpr int32_t kTileBytes = mla_wgmma::kTileBytes;
    static constexpr int32_t kKv = mla_wgmma::kKv;
    static constexpr int32_t kBarrierFull = mla_wgmma::kBarrierFull;
    static constexpr int32_t kBarrierEmpty = mla_wgmma::kBarrierEmpty;
    __device__ static constexpr int32_t unit_place(uint32_t number) {
        return kUnits + static_cast<int32_t>(number % kUnitPlaces * sizeof(WorkUnit));
    }
};

/// Where a role is in the ring: which stage, which phase. Counted, not computed from the number of
/// tiles: what a tile begins with is waited for.
struct RingPlace {
    uint32_t stage = 0;
    uint32_t parity = 0;

    __device__ void next() {
        const bool wraps = stage == kStages - 1;
        stage = wraps ? 0 : stage + 1;
        parity ^= wraps;
    }
    /// Two turns ago.
    __device__ RingPlace two_before() const {
        static_assert(kStages == 3);
        const bool same_lap = stage == kStages - 1;
        return {same_lap ? 0 : stage + 1, same_lap ? parity : parity ^ 1};
    }
    /// Also moves the descriptor of something in the stage.
    __device__ void next(uint64_t& descriptor) {
        constexpr uint32_t kUnits = kTileBytes >> 4;
        descriptor =
            stage == kStages - 1 ? descriptor - (kStages - 1) * kUnits : descriptor + kUnits;
        next();
    }
};
#endif

}  // namespace kd::mla_wgmma
