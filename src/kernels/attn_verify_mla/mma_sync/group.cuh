// What a group of four math warps does in one step of 16 keys: scores and output; softmax.cuh has
// what is between them. The order of these and the barriers between them are in body.cuh.
//
// A row's arithmetic depends on its own keys alone: sums over dimensions and keys have one order
// whatever the rows beside it.
#pragma once

#include "kernels/attn_verify_mla/mma_sync/load.cuh"

namespace kd::mla_mma {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

/// The ring as a math warp sees it.
struct RingReader {
    uint32_t shared;
    int32_t stages;
    int32_t index = 0;
    uint32_t parity = 0;

    template <kdt_kv_format kFormat>
    __device__ __forceinline__ uint32_t stage(int32_t at) const {
        return shared + SharedPlan::kStages + at * kStageBytes<kFormat>;
    }
    __device__ __forceinline__ void wait() const {
        ptx::mbarrier_wait(shared + SharedPlan::kFull + 8 * index, parity);
    }
    /// This warp has read stage `at`.
    __device__ __forceinline__ void release(int32_t at, int32_t lane) const {
        __syncwarp();
        ptx::mbarrier_arrive_warp(shared + SharedPlan::kEmpty + 8 * at, lane);
    }
    __device__ __forceinline__ int32_t previous() const {
        return (index == 0 ? stages : index) - 1;
    }
    __device__ __forceinline__ void advance() {
        if (++index == stages) {
            index = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void skip(int32_t count, int32_t lane) {
#pragma unroll 1
        for (int32_t i = 0; i < count; ++i) {
            wait();
            release(index, lane);
            advance();
        }
    }
};

/// A math thread's place. Query and output leave few registers, so what follows from the thread is
/// computed again in every step (now()), not kept.
struct Place {
    int32_t group;
    int32_t warp;  // 0..3 in the group
    int32_t lane;
    uint32_t base;  // of the group's part of shared memory

    __device__ __forceinline__ static Place now(uint32_t shared) {
        uint32_t thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        thread -= 32 * kLoadWarps;
        const int32_t group = static_cast<int32_t>(thread / (32 * kGroupWarps));
        return {.group = group,
                .warp = static_cast<int32_t>(thread / 32 % kGroupWarps),
                .lane = static_cast<int32_t>(thread % 32),
                .base = shared + group * SharedPlan::kGroupBytes};
    }

    __device__ __forceinline__ uint32_t lane_base() const { return base + 16 * lane; }
    /// This warp's writes before are seen by whoever waits for the phase.
    __device__ __forceinline__ void arrive(int32_t barrier) const {
        __syncwarp();
        ptx::mbarrier_arrive_warp(base + barrier, lane);
    }
    __device__ __forceinline__ void wait(int32_t barrier, uint32_t parity) const {
        ptx::mbarrier_wait(base + barrier, parity);
    }
};

template <int32_t kRowTiles>
using QueryFragments = uint32_t[kRowTiles][kRegisterSteps][4];
template <int32_t kRowTiles>
using ScoreFragments = float[kRowTiles][2][4];
template <int32_t kRowTiles>
using OutputFragments = float[kRowTiles][kValueTiles][4];

/// Where this lane keeps the query fragment of `step` >= kRegisterSteps.
__device__ __forceinline__ uint32_t shared_query(int32_t tile, int32_t step, const Place& at) {
    return at.lane_base() + SharedPlan::kQuery + at.warp * SharedPlan::kQueryWarpBytes +
           (step - kRegisterSteps) * SharedPlan::kQueryStepBytes +
           tile * SharedPlan::kQueryTileBytes;
}

/// Query rows of stage `part` of the group's, [16 or 8 rows, 576] bf16.
template <kdt_kv_format kFormat, int32_t kRowTiles>
__device__ __forceinline__ void read_query(QueryFragments<kRowTiles>& query, int32_t part,
                                           uint32_t stage, const Place& at) {
    const uint32_t latent = stage + at.warp * (kWarpDims * 2);
    const uint32_t rope = stage + kMlaLatent * 2 + at.warp * (kWarpRope * 2);
    if constexpr (!CacheRow<kFormat>::kFp8) {
        const uint32_t offset = row_offset(at.lane, kQueryRowStride);
#pragma unroll
        for (int32_t step = 0; step < kQuerySteps; ++step) {
            const uint32_t from = (step < kLatentSteps ? latent + step * 32 : rope) + offset;
            if (step < kRegisterSteps) {
                ptx::load_matrices(query[part][step], from);
            } else {
                uint32_t words[4];
                ptx::load_matrices(words, from);
                ptx::store_shared(shared_query(part, step, at),
                                  make_uint4(words[0], words[1], words[2], words[3]));
            }
        }
    } else {
        const int32_t tile = part / 2;
        const int32_t half = part % 2;  // rows 0..7 or 8..15 of the tile: words 0, 2 or 1, 3
        const uint32_t row = (at.lane / 4) * kQueryRowStride;
        const uint32_t q = at.lane % 4;
#pragma unroll
        for (int32_t step = 0; step < kQuerySteps; ++step) {
            uint2 words;
            if (step < kLatentSteps || CacheRow<kFormat>::kFp8Rope) {
                const uint2 four = ptx::load_shared_64(
                    (step < kLatentSteps ? latent + step * 32 : rope) + row + q * 8);
                words = make_uint2(ptx::bf16_to_f16(four.x), ptx::bf16_to_f16(four.y));
            } else {
                words = make_uint2(ptx::load_shared_32(rope + row + q * 4),
                                   ptx::load_shared_32(rope + row + q * 4 + 16));
            }
            if (step < kRegisterSteps) {
                query[tile][step][half] = words.x;
                query[tile][step][2 + half] = words.y;
            } else {
                const uint32_t to = shared_query(tile, step, at) + 4 * half;
                ptx::store_shared(to, words.x);
                ptx::store_shared(to + 8, words.y);
            }
        }
    }
}

/// scores += query of `step` times the B fragments of keys 0..7 and 8..15.
template <bool kF16, int32_t kRowTiles>
__device__ __forceinline__ void multiply_step(ScoreFragments<kRowTiles>& scores,
                                              const QueryFragments<kRowTiles>& query, int32_t step,
                                              const uint32_t (&b)[2][2], const Place& at) {
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
        uint32_t a[4];
        if (step < kRegisterSteps) {
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) a[i] = query[tile][step][i];
        } else {
            const uint4 words = ptx::load_shared_128(shared_query(tile, step, at));
            a[0] = words.x;
            a[1] = words.y;
            a[2] = words.z;
            a[3] = words.w;
        }
        ptx::multiply_add<kF16>(scores[tile][0], a, b[0][0], b[0][1]);
        ptx::multiply_add<kF16>(scores[tile][1], a, b[1][0], b[1][1]);
    }
}

/// The two scales of keys 2q, 2q + 1 of the 8 keys from `first`, for this warp's dimensions.
__device__ __forceinline__ float2 row_scales(uint32_t stage, int32_t first, const Place& at) {
    using Row = CacheRow<KDT_KV_FP8_MLA656>;
    const uint32_t from =
        stage + (first + 2 * (at.lane % 4)) * Row::kStride + Row::kScales + 4 * at.warp;
    return make_float2(ptx::load_shared_float(from), ptx::load_shared_float(from + Row::kStride));
}

/// scores = this warp's share of Q K^T: 16 rows a tile x 16 keys (two tiles of 8).
template <kdt_kv_format kFormat, int32_t kRowTiles>
__device__ __forceinline__ void multiply_keys(ScoreFragments<kRowTiles>& scores,
                                              const QueryFragments<kRowTiles>& query,
                                              uint32_t stage, const Place& at) {
    using Row = CacheRow<kFormat>;
    const uint32_t latent = stage + (at.warp * Row::kWarpBytes + key_offset(at.lane, Row::kStride));
    const uint32_t rope = stage + (Row::kRope + at.warp * Row::kWarpRopeBytes);
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) scores[tile][0][i] = scores[tile][1][i] = 0.0f;
    if constexpr (!Row::kFp8) {
        // The steps whose query is in shared memory first: most registers are free then.
#pragma unroll
        for (int32_t i = 0; i < kQuerySteps; ++i) {
            const int32_t step = (i + kRegisterSteps) % kQuerySteps;
            uint32_t k[4];
            ptx::load_matrices(k, step < kLatentSteps ? latent + step * 32
                                                      : rope + key_offset(at.lane, Row::kStride));
            multiply_step<false, kRowTiles>(scores, query, step, {{k[0], k[1]}, {k[2], k[3]}}, at);
        }
    } else {
#pragma unroll
        for (int32_t pair = 0; pair < kLatentSteps / 2; ++pair) {
            uint32_t bytes[4];  // i: keys i / 2, step 2 pair + i % 2
            ptx::load_matrices(bytes, latent + pair * 32);
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                uint32_t k[2][2];
                ptx::widen_e4m3(bytes[i], k[0][0], k[0][1]);
                ptx::widen_e4m3(bytes[2 + i], k[1][0], k[1][1]);
                multiply_step<true, kRowTiles>(scores, query, 2 * pair + i, k, at);
            }
        }
        if constexpr (Row::kRowScales) {
#pragma unroll
            for (int32_t keys = 0; keys < 2; ++keys) {
                const float2 scale = row_scales(stage, 8 * keys, at);
#pragma unroll
                for (int32_t tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
                    for (int32_t i = 0; i < 4; ++i)
                        scores[tile][keys][i] *= i % 2 == 0 ? scale.x : scale.y;
            }
        }
        if constexpr (Row::kFp8Rope) {
            uint32_t bytes[2];
            uint32_t k[2][2];
            ptx::load_matrix_pair(bytes, rope + row_offset(at.lane, Row::kStride));
            ptx::widen_e4m3(bytes[0], k[0][0], k[0][1]);
            ptx::widen_e4m3(bytes[1], k[1][0], k[1][1]);
            multiply_step<true, kRowTiles>(scores, query, kLatentSteps, k, at);
        } else {
            uint32_t k[4];
            ptx::load_matrices(k, rope + key_offset(at.lane, Row::kStride));
            multiply_step<false, kRowTiles>(scores, query, kLatentSteps,
                                            {{k[0], k[1]}, {k[2], k[3]}}, at);
        }
    }
}

/// Hands every row's partial scores to the warp that owns the row: warp v owns rows 8 v + g.
template <int32_t kRowTiles>
__device__ __forceinline__ void write_scores(const ScoreFragments<kRowTiles>& scores,
                                             const Place& at) {
    const uint32_t to =
        at.lane_base() + SharedPlan::kScores + at.warp * SharedPlan::kWarpScoreBytes;
#pragma unroll
    for (int32_t owner = 0; owner < 2 * kRowTiles; ++owner) {
        const float(&s)[2][4] = scores[owner / 2];
        const int32_t half = 2 * (owner % 2);
        ptx::store_shared(to + owner * SharedPlan::kOwnerScoreBytes,
                          make_float4(s[0][half], s[0][half + 1], s[1][half], s[1][half + 1]));
    }
}

template <int32_t kRowTiles>
struct ProbFragments {
    uint32_t words[kRowTiles][4];
    float factor[2 * kRowTiles];  // of rows g, g + 8, ...

    __device__ __forceinline__ explicit ProbFragments(const Place& at) {
#pragma unroll
        for (int32_t tile = 0; tile < kRowTiles; ++tile) {
            ptx::load_matrices(words[tile], at.base + SharedPlan::kProbs +
                                                tile * 16 * SharedPlan::kProbStride +
                                                row_offset(at.lane, SharedPlan::kProbStride));
            const uint2 two =
                ptx::load_shared_64(at.base + SharedPlan::kFactors + (at.lane / 4) * 16 + tile * 8);
            factor[2 * tile] = __uint_as_float(two.x);
            factor[2 * tile + 1] = __uint_as_float(two.y);
        }
    }
};

/// Output *= the rows' factors of the step, += P V over its 16 keys.
template <kdt_kv_format kFormat, int32_t kRowTiles>
__device__ __forceinline__ void multiply_values(OutputFragments<kRowTiles>& out,
                                                const ProbFragments<kRowTiles>& probs,
                                                uint32_t stage, const Place& at) {
    using Row = CacheRow<kFormat>;
    const uint32_t values = stage + (at.warp * Row::kWarpBytes + row_offset(at.lane, Row::kStride));
    // Asked for ahead of their use, the first ones across the vote: as many as registers allow.
    constexpr int32_t kLoads = Row::kWarpBytes / 32;
    constexpr int32_t kAhead = Row::kRowScales ? 0 : Row::kFp8 ? 2 : 4;
    uint32_t v[kAhead + 1][4];
    const auto load = [&](int32_t i) {
        if (i < kLoads) ptx::load_matrices_transposed(v[i % (kAhead + 1)], values + i * 32);
    };
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) load(i);
    bool moved = false;
#pragma unroll
    for (int32_t i = 0; i < 2 * kRowTiles; ++i) moved |= probs.factor[i] != 1.0f;
    // A factor of 1 changes no bit: the vote is no decision.
    if (__any_sync(kAllLanes, moved)) [[unlikely]] {
#pragma unroll
        for (int32_t tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
            for (int32_t n = 0; n < kValueTiles; ++n)
#pragma unroll
                for (int32_t i = 0; i < 4; ++i) out[tile][n][i] *= probs.factor[2 * tile + i / 2];
    }
    if constexpr (!Row::kFp8) {
#pragma unroll
        for (int32_t n = 0; n < kLoads; ++n) {  // 16 dimensions
            load(n + kAhead);
            const uint32_t(&now)[4] = v[n % (kAhead + 1)];
#pragma unroll
            for (int32_t i = 0; i < 2; ++i)
#pragma unroll
                for (int32_t tile = 0; tile < kRowTiles; ++tile)
                    ptx::multiply_add<false>(out[tile][2 * n + i], probs.words[tile], now[2 * i],
                                             now[2 * i + 1]);
        }
    } else {
        uint32_t scale[2] = {};
        if constexpr (Row::kRowScales) {
#pragma unroll
            for (int32_t keys = 0; keys < 2; ++keys) {
                const float2 two = row_scales(stage, 8 * keys, at);
                scale[keys] = ptx::pack_f16(two.x, two.y);
            }
        }
#pragma unroll
        for (int32_t i = 0; i < kLoads; ++i) {  // 32 dimensions
            const int32_t n = 4 * i;
            load(i + kAhead);
            const uint32_t(&bytes)[4] = v[i % (kAhead + 1)];
#pragma unroll
            for (int32_t block = 0; block < 2; ++block) {
                uint32_t even[2], odd[2];
#pragma unroll
                for (int32_t keys = 0; keys < 2; ++keys) {
                    // bytes: key 2q dims 2g, 2g + 1, key 2q + 1 likewise -> by dimension
                    const uint32_t word = __byte_perm(bytes[2 * block + keys], 0, 0x3120);
                    ptx::widen_e4m3(word, even[keys], odd[keys]);
                    if constexpr (Row::kRowScales) {
                        even[keys] = ptx::multiply_f16(even[keys], scale[keys]);
                        odd[keys] = ptx::multiply_f16(odd[keys], scale[keys]);
                    }
                }
#pragma unroll
                for (int32_t tile = 0; tile < kRowTiles; ++tile) {
                    ptx::multiply_add<true>(out[tile][n + 2 * block], probs.words[tile], even[0],
                                            even[1]);
                    ptx::multiply_add<true>(out[tile][n + 2 * block + 1], probs.words[tile], odd[0],
                                            odd[1]);
                }
            }
        }
    }
}

}  // namespace kd::mla_mma
