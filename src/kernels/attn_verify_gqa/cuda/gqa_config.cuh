// Tile sizes, thread roles and the shared-memory plan of the GQA verify kernels.
//
// One thread block holds 3 warpgroups: two consumers and one producer, which gathers K and V rows
// into a ring of stages. The softmax of one consumer overlaps the products of the other. Either
// both have all 64 rows of the same unit, take alternate key tiles and merge at the unit's end; or,
// with wgmma, each has a unit of its own: two row tiles of the same keys, which both take every
// tile of, so that keys cross the L2 cache's ports once for 128 rows; or, in deterministic mode,
// two units of different keys, whose tiles stand in the ring by turns.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_plan.h"
#include "kernels/attn_verify_gqa/cuda/gqa_layout.h"

namespace kd::gqa {

inline constexpr int32_t kGroupThreads = 128;
inline constexpr int32_t kGroups = 2;
inline constexpr int32_t kConsumers = kGroups * kGroupThreads;
inline constexpr int32_t kProducers = 128;
inline constexpr int32_t kThreads = kConsumers + kProducers;
inline constexpr int32_t kMaxStages = 12;
/// Arrivals that empty a stage: 8 warps, or the 4 of one group, which then count twice.
inline constexpr int32_t kReleases = kConsumers / 32;

/// What a block may have: sm_90, and sm_120.
inline constexpr int32_t kSharedBytesSm90 = 232448;
inline constexpr int32_t kSharedBytesSm120 = 101376;

enum class Path { kWgmma, kMmaSync };

/// One row's running maximum (base 2) and sum, exchanged between the groups.
struct RowStats {
    float max;
    float sum;
};

/// Full: a stage's K and V have landed. Empty: they have been read.
struct Barriers {
    uint64_t full[kMaxStages];
    uint64_t empty[kMaxStages];
};

/// What follows the ring, the converted tiles and Q in shared memory.
template <int32_t kRowSets>
struct alignas(16) BlockState {
    RowRange rows[kRowSets][kTileRows];
    RowStats stats[kGroups][kTileRows];
    Barriers barriers;
};

template <int32_t kHeadDim_, bool kFp8_, Path kPath_>
struct Config {
    static constexpr int32_t kHeadDim = kHeadDim_;
    static constexpr bool kFp8 = kFp8_;  // e4m3 in the cache; products then run in f16, else bf16
    static constexpr bool kWgmma = kPath_ == Path::kWgmma;
    static_assert(kHeadDim == 64 || kHeadDim == 96 || kHeadDim == 128 || kHeadDim == 256);

    /// Of a thread; 384 threads start with 168 each.
    static constexpr int32_t kConsumerRegisters = kHeadDim == 256 && !kWgmma ? 232 : 224;
    static constexpr int32_t kProducerRegisters = 3 * 168 - 2 * kConsumerRegisters;

    /// Keys a tile. Shorter for mma.sync: then 5 stages of 128 dims fit sm_120 beside Q.
    static constexpr int32_t kKeys = kWgmma ? 64 : 32;
    /// 16-bit tiles are stored in columns of 64 dims; 96 dims leave half a column unused.
    static constexpr int32_t kColumns = (kHeadDim + 63) / 64;
    static constexpr int32_t kPaddedDim = kColumns * 64;
    /// Products of wgmma run over the unused half column, whose results are dropped.
    static constexpr int32_t kOutDim = kWgmma ? kPaddedDim : kHeadDim;
    /// Q in registers: 64 * 256 values would not leave room for the output. wgmma at 64 dims reads
    /// Q from shared memory too: Q and P are then 4 fragments each, and ptxas 13.0 gives both the
    /// same registers although Q is read again by every tile, so that from a group's second tile on
    /// P would be multiplied by K.
    static constexpr bool kQueryInRegisters = kHeadDim <= 128 && !(kWgmma && kHeadDim == 64);

    /// Groups may have units of their own. mma.sync is for devices whose L2 keeps up.
    static constexpr bool kPairs = kWgmma && kQueryInRegisters;
    using State = BlockState<kPairs ? kGroups : 1>;
    /// The scores of a group's next tile are issued with the outputs of this one, its softmax
    /// overlaps the latter: two stages a group are held, so there must be plenty.
    static constexpr bool kOverlap = kPairs && !kFp8;

    /// Q is the sum of two e4m3 values and K is multiplied as it lies in the cache.
    static constexpr bool kRawKeys = kPairs && kFp8;

    static constexpr int32_t kRowBytes = kHeadDim * (kFp8 ? 1 : 2);
    static constexpr int32_t kRowChunks = kRowBytes / 16;
    static constexpr int32_t kHalfTileBytes = kKeys * kPaddedDim * 2;
    static constexpr int32_t kMatrixBytes = kFp8 ? kKeys * raw_pitch(kHeadDim) : kHalfTileBytes;
    static constexpr int32_t kStageBytes = 2 * kMatrixBytes;
    /// wgmma takes V as 16-bit values from shared memory, and K where it is not kRawKeys. Each
    /// group converts its own tiles: K and V, or two V by turns.
    static constexpr int32_t kConvertedBytes = kFp8 && kWgmma ? kGroups * 2 * kHalfTileBytes : 0;
    /// Q (kPairs: straight to registers); at a unit's end the groups exchange their outputs
    /// through it, a quarter at a time.
    static constexpr int32_t kQueryBytes = kTileRows * kPaddedDim * 2;
    static_assert(kConsumers * kHeadDim / 32 * 16 <= kQueryBytes);
    static_assert(kStageBytes % 1024 == 0 && kQueryBytes % 1024 == 0);

    /// Ring first, at the base, a multiple of 1024 bytes as everything up to the block state.
    static constexpr int32_t shared_bytes(int32_t stages) {
        return stages * kStageBytes + kConvertedBytes + kQueryBytes +
               static_cast<int32_t>(sizeof(State));
    }
    static constexpr int32_t stages_in(int32_t bytes) {
        const int32_t stages = (bytes - shared_bytes(0)) / kStageBytes;
        return stages < kMaxStages ? stages : kMaxStages;
    }
    static_assert(!kOverlap || stages_in(kSharedBytesSm90) >= 3 * kGroups);
    static_assert(stages_in(kSharedBytesSm90) >= (kFp8 && kHeadDim == 256 ? 2 : 3));
    static_assert(kWgmma || stages_in(kSharedBytesSm120) >= 2);
};

}  // namespace kd::gqa
