// attn_verify_mla with mma.sync: the shape of a block, of a cache row in shared memory and of the
// ring that feeds the tensor cores.
//
// A block has 8 math warps: 2 groups of 4. A group owns up to 32 query rows; its warp w owns the
// latent dimensions [128 w, 128 w + 128) and the rope dimensions [16 w, 16 w + 16), both of K (a
// partial score, summed over the four warps through shared memory) and of V (the output columns).
// So a key is read twice from shared memory (once a group), not once for every 16 rows. The output
// (128 registers) and most of the query (56 of 72) stay in registers. 4 more warps fill a ring of
// stages with bulk copies, one a cache row: 16 keys a stage, and in front of a unit's keys its
// query rows. Shared-memory traffic a key at 64 rows, bf16: 34 clocks for K and V, 16 for the
// scores, 9 of writing the stage, 8 for the query, 4 for P; the products take 136 (sm_120a) or
// about 55 (sm_90a), where the loop (1,560 clocks a step) is bound by shared memory: 73 % of its
// wavefronts, and what saves some of them is what makes it faster.
#pragma once

#include "kernels/attn_verify_mla/attn_verify_mla.h"

namespace kd::mla_mma {

inline constexpr int32_t kStepKeys = 16;
inline constexpr int32_t kGroups = 2;
inline constexpr int32_t kGroupWarps = 4;
inline constexpr int32_t kGroupRows = 32;
inline constexpr int32_t kLoadWarps = 4;
inline constexpr int32_t kThreads = 32 * (kGroups * kGroupWarps + kLoadWarps);
inline constexpr int32_t kMathRegisters = 240;
inline constexpr int32_t kLoadRegisters = 24;
static_assert(kGroups * kGroupRows == kTileRows && kTileKeys % kStepKeys == 0);
static_assert(kGroups * kMathRegisters + kLoadRegisters <= 3 * 168,
              "what the block starts with: 168 registers a thread");

inline constexpr int32_t kWarpDims = kMlaLatent / kGroupWarps;  // 128
inline constexpr int32_t kWarpRope = kMlaRope / kGroupWarps;    // 16
inline constexpr int32_t kLatentSteps = kWarpDims / 16;         // products of depth 16
inline constexpr int32_t kQuerySteps = kLatentSteps + 1;        // and the one of rope
// Query fragments of the last steps stay in shared memory. One step less would fit as well, but
// leaves K's fragments too few registers to be ahead in: 80.2 us instead of 78.0 on an H200, 64
// rows and 131,072 keys.
inline constexpr int32_t kSharedSteps = 2;
inline constexpr int32_t kRegisterSteps = kQuerySteps - kSharedSteps;
inline constexpr int32_t kValueTiles = kWarpDims / 8;  // output tiles of 8 columns
inline constexpr int32_t kQueryRowBytes = kMlaHeadDim * 2;
// Rows lie an odd multiple of 16 bytes apart, so that the eight rows of an ldmatrix matrix meet
// eight different groups of banks.
inline constexpr int32_t kQueryRowStride = kQueryRowBytes + 16;

/// A row of the cache: bytes in global memory, distance in shared memory, where a warp's share is.
template <kdt_kv_format kFormat>
struct CacheRow;

template <>
struct CacheRow<KDT_KV_BF16> {
    static constexpr bool kFp8 = false;
    static constexpr bool kFp8Rope = false;
    static constexpr bool kRowScales = false;
    static constexpr int32_t kBytes = 1152;
    static constexpr int32_t kStride = 1168;
    static constexpr int32_t kWarpBytes = 256;
    static constexpr int32_t kRope = 1024;
    static constexpr int32_t kWarpRopeBytes = 32;
    static constexpr int32_t kQueryRows = 16;  // that one stage holds
};

template <>
struct CacheRow<KDT_KV_FP8> {
    static constexpr bool kFp8 = true;
    static constexpr bool kFp8Rope = true;
    static constexpr bool kRowScales = false;
    static constexpr int32_t kBytes = 576;
    static constexpr int32_t kStride = 592;
    static constexpr int32_t kWarpBytes = 128;
    static constexpr int32_t kRope = 512;
    static constexpr int32_t kWarpRopeBytes = 16;
    static constexpr int32_t kQueryRows = 8;
};

template <>
struct CacheRow<KDT_KV_FP8_MLA656> {
    static constexpr bool kFp8 = true;
    static constexpr bool kFp8Rope = false;
    static constexpr bool kRowScales = true;  // warp w's dimensions are those of scale w
    static constexpr int32_t kBytes = 656;
    static constexpr int32_t kStride = 656;
    static constexpr int32_t kWarpBytes = 128;
    static constexpr int32_t kScales = 512;
    static constexpr int32_t kRope = 528;
    static constexpr int32_t kWarpRopeBytes = 32;
    static constexpr int32_t kQueryRows = 8;
};

template <kdt_kv_format kFormat>
inline constexpr int32_t kStageBytes = kStepKeys* CacheRow<kFormat>::kStride;

/// Shared memory of a block, in bytes from its start; the ring's stages come last.
struct SharedPlan {
    static constexpr int32_t kMinStages = 3;  // the step's, that of the step before, the next
    static constexpr int32_t kMaxStages = 16;
    // A group's part, in bytes from the start of the group's.
    // Partial scores, float4 [writing warp][reading warp][lane]: a warp writes only its own 2 KiB,
    // which therefore also serve it to lay out its output rows.
    static constexpr int32_t kScores = 0;
    static constexpr int32_t kOwnerScoreBytes = 32 * 16;
    static constexpr int32_t kWarpScoreBytes = kGroupWarps * kOwnerScoreBytes;
    // P [32 rows][16 keys], 16-bit.
    static constexpr int32_t kProbs = kScores + kGroupWarps * kWarpScoreBytes;
    static constexpr int32_t kProbStride = kStepKeys * 2 + 16;
    // What the output rows are multiplied with, float [row % 8][row / 8]: in a step, and at the
    // end.
    static constexpr int32_t kFactors = kProbs + kGroupRows * kProbStride;
    static constexpr int32_t kInverses = kFactors + kGroupRows * 4;
    // Query fragments, 16 bytes [warp][step - kRegisterSteps][16 rows][lane]; a lane reads back
    // only what it wrote.
    static constexpr int32_t kQuery = kInverses + kGroupRows * 4;
    static constexpr int32_t kQueryTileBytes = 32 * 16;
    static constexpr int32_t kQueryStepBytes = kGroupRows / 16 * kQueryTileBytes;
    static constexpr int32_t kQueryWarpBytes = kSharedSteps * kQueryStepBytes;
    // What the rows see.
    static constexpr int32_t kVisibility = kQuery + kGroupWarps * kQueryWarpBytes;
    // The unit that a warp works on.
    static constexpr int32_t kUnit = kVisibility + kGroupRows * sizeof(RowVisibility);
    static constexpr int32_t kScoreBarrier = kUnit + kGroupWarps * 4;
    static constexpr int32_t kProbBarrier = kScoreBarrier + 8;
    static constexpr int32_t kGroupBytes = (kProbBarrier + 8 + 127) / 128 * 128;
    // The block's part.
    static constexpr int32_t kFull = kGroups * kGroupBytes;
    static constexpr int32_t kEmpty = kFull + kMaxStages * 8;
    static constexpr int32_t kStages = (kEmpty + kMaxStages * 8 + 127) / 128 * 128;

    template <kdt_kv_format kFormat>
    static constexpr int32_t bytes(int32_t stages) {
        return kStages + stages * kStageBytes<kFormat>;
    }
    /// Stages that fit into `limit` bytes; fewer than kMinStages: the device cannot run this.
    template <kdt_kv_format kFormat>
    static constexpr int32_t stages(int32_t limit) {
        const int32_t fit = (limit - kStages) / kStageBytes<kFormat>;
        return fit < kMaxStages ? fit : kMaxStages;
    }
};

/// What an RTX PRO 6000 gives a block.
inline constexpr int32_t kSm120SharedBytes = 101376;

template <kdt_kv_format kFormat>
constexpr bool config_is_sound() {
    using Row = CacheRow<kFormat>;
    return Row::kBytes % 16 == 0 && Row::kStride % 32 == 16 && Row::kStride >= Row::kBytes &&
           Row::kQueryRows * kQueryRowStride <= kStageBytes<kFormat> &&
           kGroupRows % Row::kQueryRows == 0 &&
           SharedPlan::stages<kFormat>(kSm120SharedBytes) >= SharedPlan::kMinStages;
}
static_assert(config_is_sound<KDT_KV_BF16>());
static_assert(config_is_sound<KDT_KV_FP8>());
static_assert(config_is_sound<KDT_KV_FP8_MLA656>());
static_assert(sizeof(RowVisibility) == 32 && SharedPlan::kVisibility % 16 == 0 &&
              SharedPlan::kScoreBarrier % 8 == 0 && SharedPlan::kFull % 8 == 0);

/// What the host works out for a launch; score scales are in base 2.
struct LaunchConstants {
    int32_t stages;
    float score_scale;  // no cap: score = dot * score_scale
    float cap;          // 0: none; else score = cap - 2 cap / (1 + exp2(dot * score_scale))
    float value_scale;  // of the output
};

/// Launches on one block a multiprocessor. One definition a format, in the instance files.
template <kdt_kv_format kFormat>
cudaError_t launch(const AttnVerifyMlaParams& params, int32_t multiprocessors, cudaStream_t stream);

}  // namespace kd::mla_mma
