// The softmax of one step: each of a group's four warps owns 8 of its rows, adds up their partial
// scores and hands P over in shared memory. Whether a row's reference maximum moves is decided by
// the row.
#pragma once

#include "kernels/attn_verify_mla/mma_sync/group.cuh"
#include "kernels/cuda/reference_maximum.h"

namespace kd::mla_mma {

/// A row's running softmax, in the four lanes of the warp that owns it.
struct RowState {
    float maximum = kNothingSeen;  // the reference, base 2
    float sum = 0.0f;              // of this lane's keys, relative to maximum
    // The sum of what V is weighed with, P as it is rounded: the output is divided by it. Scores
    // that are all alike are rounded alike, and that cancels.
    float weight = 0.0f;
};
/// What this lane's own row sees.
__device__ __forceinline__ RowVisibility* row_visibility(const Place& at) {
    extern __shared__ __align__(128) uint8_t s_block[];
    return reinterpret_cast<RowVisibility*>(s_block + at.group * SharedPlan::kGroupBytes +
                                            SharedPlan::kVisibility) +
           (8 * at.warp + at.lane / 4);
}

/// Finds out what the rows of this warp see of a unit, rows from `first_row` on being the group's.
/// Returns the first key whose score is more than a product with the scale: some row may not see
/// it, or scores are capped.
__device__ __forceinline__ int32_t see_rows(const AttnVerifyMlaParams& params,
                                            const LaunchConstants& constants, const WorkUnit& unit,
                                            int32_t first_row, const Place& at) {
    const int32_t row = first_row + 8 * at.warp + at.lane / 4;
    RowVisibility* visibility = row_visibility(at);
    int32_t plain_end = constants.cap != 0.0f ? 0 : unit.key_end;
    if (row < unit.rows) {
        const int32_t node = (unit.row_begin + row) / params.heads;
        const RowVisibility own(params.batch, AttnRequest(params.batch, unit), unit, node);
        plain_end = min(plain_end, own.limit);
        if (at.lane % 4 == 0) *visibility = own;
    } else if (at.lane % 4 == 0) {
        visibility->limit = 0;
        visibility->context = 0;
        visibility->ancestors[0] = visibility->ancestors[1] = 0;
    }
    __syncwarp();
    return __reduce_min_sync(kAllLanes, plain_end);
}

/// Adds up the partial scores of this warp's 8 rows (lane: row g, keys 2q, 2q + 1, 2q + 8, 2q + 9
/// from `key`), writes their P and the factors of their output rows. Rounding is written out, so
/// that every instance computes the same.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void softmax_step(RowState& state, int32_t key, int32_t key_end,
                                             int32_t plain_end, const LaunchConstants& constants,
                                             const Place& at) {
    // All that is read is asked for at once.
    const uint32_t from =
        at.lane_base() + SharedPlan::kScores + at.warp * SharedPlan::kOwnerScoreBytes;
    float4 part[kGroupWarps];
#pragma unroll
    for (int32_t writer = 0; writer < kGroupWarps; ++writer)
        part[writer] = ptx::load_shared_float4(from + writer * SharedPlan::kWarpScoreBytes);
    float score[4] = {__fadd_rn(__fadd_rn(part[0].x, part[1].x), __fadd_rn(part[2].x, part[3].x)),
                      __fadd_rn(__fadd_rn(part[0].y, part[1].y), __fadd_rn(part[2].y, part[3].y)),
                      __fadd_rn(__fadd_rn(part[0].z, part[1].z), __fadd_rn(part[2].z, part[3].z)),
                      __fadd_rn(__fadd_rn(part[0].w, part[1].w), __fadd_rn(part[2].w, part[3].w))};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) score[i] = __fmul_rn(score[i], constants.score_scale);
    if (key + kStepKeys > plain_end) [[unlikely]] {
        // tanh(x) = 1 - 2 / (1 + e^2x): an absolute error of rounding size, unlike tanh.approx
        if (constants.cap != 0.0f) {
#pragma unroll
            for (int32_t i = 0; i < 4; ++i)
                score[i] = __fsub_rn(constants.cap,
                                     __fdividef(__fmul_rn(2.0f, constants.cap),
                                                __fadd_rn(ptx::exp2_approx(score[i]), 1.0f)));
        }
        const RowVisibility visibility = *row_visibility(at);
        const int32_t first = key + 2 * (at.lane % 4);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            const int32_t tested = first + (i / 2) * 8 + i % 2;
            if (tested >= key_end || !visibility.sees(tested)) score[i] = -INFINITY;
        }
    }
    constexpr bool kF16 = CacheRow<kFormat>::kFp8;
    uint32_t words[2];  // of P
    float sum;
    const auto attempt = [&] {
        float prob[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            prob[i] = ptx::exp2_approx(__fsub_rn(score[i], state.maximum));
#pragma unroll
        for (int32_t keys = 0; keys < 2; ++keys)
            words[keys] = kF16 ? ptx::pack_f16(prob[2 * keys], prob[2 * keys + 1])
                               : ptx::pack_bf16(prob[2 * keys], prob[2 * keys + 1]);
        sum = __fadd_rn(__fadd_rn(prob[0], prob[1]), __fadd_rn(prob[2], prob[3]));
    };
    attempt();
    float factor = 1.0f;
    const uint32_t moving = __ballot_sync(kAllLanes, sum > kMostSum);
    if (moving != 0) [[unlikely]] {
        float largest = fmaxf(fmaxf(score[0], score[1]), fmaxf(score[2], score[3]));
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
        if ((moving >> (at.lane & ~3) & 15) != 0) {  // one of the row's four lanes
            factor = ptx::exp2_approx(__fsub_rn(state.maximum, largest));
            state.maximum = largest;
        }
        attempt();
    }
    state.sum = __fmaf_rn(state.sum, factor, sum);
    float weight = sum;  // f16 rounds to 2^-12, which nobody sees
    if constexpr (!kF16) {
        const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
        const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); };
        weight = __fadd_rn(__fadd_rn(low(words[0]), high(words[0])),
                           __fadd_rn(low(words[1]), high(words[1])));
    }
    state.weight = __fmaf_rn(state.weight, factor, weight);
    const uint32_t to = at.base + SharedPlan::kProbs +
                        (8 * at.warp + at.lane / 4) * SharedPlan::kProbStride + at.lane % 4 * 4;
#pragma unroll
    for (int32_t keys = 0; keys < 2; ++keys) ptx::store_shared(to + 16 * keys, words[keys]);
    if (at.lane % 4 == 0)
        ptx::store_shared(at.base + SharedPlan::kFactors + at.lane * 4 + at.warp * 4, factor);
}

}  // namespace kd::mla_mma
