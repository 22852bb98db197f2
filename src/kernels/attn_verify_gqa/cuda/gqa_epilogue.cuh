// The beginning and the end of a unit in the consumers: Q in; outputs, merged where both groups
// have the same unit, out.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda.h"
#include "kernels/attn_verify_gqa/cuda/gqa_config.cuh"
#include "kernels/attn_verify_gqa/cuda/gqa_softmax.cuh"
#include "kernels/cuda/mma.cuh"

namespace kd::gqa {

inline constexpr int32_t kConsumerBarrier = 1;

/// The unit's rows of Q to shared memory, zeros beyond them; as f16 where the cache is e4m3, for
/// mma.sync in the order in which K is converted (paired_source).
template <class Config>
__device__ __forceinline__ void load_query(const AttnVerifyGqaCudaParams& params,
                                           const WorkUnit& unit, int32_t first_node,
                                           char* s_query) {
    constexpr int32_t kRowParts = Config::kHeadDim / 16;  // of 32 bytes
    constexpr int32_t kParts = kTileRows * kRowParts;
    const int32_t group = params.heads / params.kv_heads;
    const uint16_t* q = static_cast<const uint16_t*>(params.q);
    // Unrolled whole, 256 dims keep so many addresses alive across units that they spill.
#pragma unroll(Config::kHeadDim == 256 ? 2 : 3)
    for (int32_t i = 0; i < (kParts + kConsumers - 1) / kConsumers; ++i) {
        const int32_t part = static_cast<int32_t>(threadIdx.x) + i * kConsumers;
        if (kParts % kConsumers != 0 && part >= kParts) break;
        const int32_t row = part / kRowParts;
        const int32_t column = part % kRowParts;
        uint32_t w[8] = {};
        if (row < unit.rows) {
            const int32_t node = first_node + (unit.row_begin + row) / group;
            const int32_t head = unit.kv_head * group + (unit.row_begin + row) % group;
            const uint4* from = reinterpret_cast<const uint4*>(
                q + node * params.q_node_stride + head * params.q_head_stride + column * 16);
            const uint4 a = from[0], b = from[1];
            w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
            w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
        }
        uint32_t x[8];
#pragma unroll
        for (int32_t pair = 0; pair < 8; ++pair) {
            const bool paired = Config::kFp8 && !Config::kWgmma;
            const uint32_t word = w[paired ? paired_source(pair) : pair];
            x[pair] = Config::kFp8 ? ptx::bf16_to_f16(word) : word;
        }
        *reinterpret_cast<uint4*>(s_query + half_offset(kTileRows, row, 2 * column)) =
            make_uint4(x[0], x[1], x[2], x[3]);
        *reinterpret_cast<uint4*>(s_query + half_offset(kTileRows, row, 2 * column + 1)) =
            make_uint4(x[4], x[5], x[6], x[7]);
    }
}

/// Q of this thread's two rows straight to fragments, k-step by k-step; rows beyond the unit repeat
/// its last. A quad reads 64 bytes of a row, 16 a thread, which are the words of two k-steps.
template <class Config, int32_t kSteps>
__device__ __forceinline__ void load_query_registers(const AttnVerifyGqaCudaParams& params,
                                                     const WorkUnit& unit, int32_t first_row,
                                                     int32_t lane, uint32_t (&q)[kSteps][4]) {
    static_assert(kSteps % 2 == 0 && kSteps * 16 == Config::kHeadDim);
    const int32_t group = params.heads / params.kv_heads;
    uint4 loaded[2][kSteps / 2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const int32_t row = unit.row_begin + min(first_row + 8 * half, unit.rows - 1);
        const int64_t node = unit.first_node + row / group;
        const int32_t head = unit.kv_head * group + row % group;
        const uint16_t* from = static_cast<const uint16_t*>(params.q) +
                               node * params.q_node_stride + head * params.q_head_stride +
                               lane % 4 * 8;
#pragma unroll
        for (int32_t pair = 0; pair < kSteps / 2; ++pair)
            loaded[half][pair] = *reinterpret_cast<const uint4*>(from + pair * 32);
    }
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
#pragma unroll
        for (int32_t pair = 0; pair < kSteps / 2; ++pair) {
            const uint4 part = loaded[half][pair];
            uint32_t words[4] = {part.x, part.y, part.z, part.w};
            ptx::quad_transpose(words, lane);
#pragma unroll
            for (int32_t i = 0; i < 4; ++i)
                q[2 * pair + i / 2][half + i % 2 * 2] =
                    Config::kFp8 ? ptx::bf16_to_f16(words[i]) : words[i];
        }
    }
}

/// The same for raw K: Q as the sum of two e4m3 values of 4 significant bits each, exact where a
/// value is not below 2^-9 of its row's largest, else to 2^-17 of that. `scale`: of the thread's
/// two rows, a power of two, by which their scores are to be multiplied.
template <class Config, int32_t kSteps>
__device__ __forceinline__ void load_query_raw(const AttnVerifyGqaCudaParams& params,
                                               const WorkUnit& unit, int32_t first_row,
                                               int32_t lane, uint32_t (&q)[kSteps][4],
                                               float (&scale)[2]) {
    static_assert(kSteps * 16 == Config::kHeadDim);
    const int32_t group = params.heads / params.kv_heads;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        const int32_t row = unit.row_begin + min(first_row + 8 * half, unit.rows - 1);
        const int64_t node = unit.first_node + row / group;
        const int32_t head = unit.kv_head * group + row % group;
        const uint16_t* from = static_cast<const uint16_t*>(params.q) +
                               node * params.q_node_stride + head * params.q_head_stride +
                               lane % 4 * 4;
        float x[kSteps][4];
        float top = 0;
#pragma unroll
        for (int32_t i = 0; i < kSteps; ++i) {
            const uint2 two = *reinterpret_cast<const uint2*>(from + i * 16);
            x[i][0] = __uint_as_float(two.x << 16);
            x[i][1] = __uint_as_float(two.x & 0xFFFF0000);
            x[i][2] = __uint_as_float(two.y << 16);
            x[i][3] = __uint_as_float(two.y & 0xFFFF0000);
#pragma unroll
            for (int32_t e = 0; e < 4; ++e) top = fmaxf(top, fabsf(x[i][e]));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const ptx::E4m3Scale own(top);
        scale[half] = own.down;
#pragma unroll
        for (int32_t i = 0; i < kSteps; ++i) {
#pragma unroll
            for (int32_t e = 0; e < 4; ++e) x[i][e] *= own.up;
            const uint32_t high = ptx::pack_e4m3(x[i]);
            uint32_t two[2];
            ptx::widen_e4m3(high, two[0], two[1]);
#pragma unroll
            for (int32_t e = 0; e < 4; ++e)
                x[i][e] -= __half2float(
                    __ushort_as_half(static_cast<uint16_t>(two[e / 2] >> (e % 2 * 16))));
            q[i / 2 * 2][half + i % 2 * 2] = high;
            q[i / 2 * 2 + 1][half + i % 2 * 2] = ptx::pack_e4m3(x[i]);
        }
    }
}

/// What row `row` of the unit sees; rows beyond it repeat its last.
__device__ __forceinline__ RowRange row_range(const AttnVerifyGqaCudaParams& params,
                                              const WorkUnit& unit, const AttnRequest& request,
                                              int32_t row) {
    const int32_t group = params.heads / params.kv_heads;
    const int32_t node = (unit.row_begin + min(row, unit.rows - 1)) / group;
    const RowVisibility seen(params.batch, request, unit, node);
    return {.first = seen.first,
            .limit = seen.limit,
            .ancestors = {seen.ancestors[0], seen.ancestors[1]}};
}

/// Stores columns [first_column, first_column + kCount * 2) of this thread's two rows where they
/// are of the unit, and their log-sum-exp (base 2) where `with_lse`.
template <class Config, int32_t kCount>
__device__ __forceinline__ void store_rows(const AttnVerifyGqaCudaParams& params,
                                           const WorkUnit& unit, int32_t first_row, int32_t lane,
                                           int32_t first_column, const float (&x)[kCount],
                                           const float (&lse)[2], bool with_lse) {
    const int32_t quad = lane % 4;
    const int32_t heads_a_group = params.heads / params.kv_heads;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        const int32_t row = first_row + 8 * i;
        const bool stored = row < unit.rows;
        int64_t place = int64_t{unit.partial} * kTileRows + row;
        if (unit.partial < 0) {
            const int64_t node = unit.first_node + (unit.row_begin + row) / heads_a_group;
            place = node * params.heads + unit.kv_head * heads_a_group +
                    (unit.row_begin + row) % heads_a_group;
        }
        if (stored && with_lse && quad == 0) {
            if (unit.partial >= 0)
                params.workspace.partial_lse[place] = lse[i];
            else if (params.lse != nullptr)
                params.lse[place] = lse[i] * kLn2;
        }
        __nv_bfloat16* out = static_cast<__nv_bfloat16*>(
                                 unit.partial >= 0 ? params.workspace.partial_out : params.out) +
                             place * Config::kHeadDim + first_column;
#pragma unroll
        for (int32_t t = 0; t < kCount / 8; ++t) {
            const float* pair = &x[8 * t + 2 * i];  // block 2 t, and 4 further block 2 t + 1
            uint2 words;
            int32_t column;
            if constexpr (Config::kFp8 && !Config::kWgmma) {
                words =
                    make_uint2(ptx::pack_bf16(pair[0], pair[4]), ptx::pack_bf16(pair[1], pair[5]));
                column = 4 * quad;
            } else {
                // Neighbours trade words so that each has 4 columns in a row: even lanes of block
                // 2 t, odd lanes of block 2 t + 1.
                const uint32_t a = ptx::pack_bf16(pair[0], pair[1]);
                const uint32_t b = ptx::pack_bf16(pair[4], pair[5]);
                const bool odd = quad % 2 != 0;
                const uint32_t got = __shfl_xor_sync(~0u, odd ? a : b, 1);
                words = odd ? make_uint2(got, b) : make_uint2(a, got);
                column = quad % 2 * 8 + quad / 2 * 4;
            }
            if (stored) *reinterpret_cast<uint2*>(out + 16 * t + column) = words;
        }
    }
}

/// Merges the two groups' results and writes the unit's rows. Each group ends up with half of the
/// columns; the other half goes to its peer (same fragment, same thread) through `exchange`, in two
/// parts. `stats` and `exchange` may be overwritten after the next kConsumerBarrier.
template <class Config, int32_t kCount>
__device__ __forceinline__ void merge_and_store(const AttnVerifyGqaCudaParams& params,
                                                const WorkUnit& unit, float (&o)[kCount],
                                                Running& running,
                                                RowStats (&stats)[kGroups][kTileRows],
                                                float4* exchange) {
    constexpr int32_t kHalf = Config::kHeadDim / 16;  // blocks of 8 columns: 4 registers a thread
    constexpr int32_t kPart = kHalf / 2;
    static_assert(kHalf % 2 == 0);
    const int32_t thread = threadIdx.x % kGroupThreads;
    const int32_t group = threadIdx.x / kGroupThreads;
    const int32_t lane = thread % 32;
    const int32_t quad = lane % 4;
    const int32_t first_row = thread / 32 * 16 + lane / 4;

#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        float& sum = running.sum[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (quad == 0) stats[group][first_row + 8 * i] = {running.max[i], sum};
    }
    ptx::named_barrier_sync(kConsumerBarrier, kConsumers);  // also: Q is no longer read

    float lse[2], factor[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        const RowStats a = stats[0][first_row + 8 * i];
        const RowStats b = stats[1][first_row + 8 * i];
        const float base = fmaxf(a.max, b.max);
        const float sum =
            a.sum * ptx::exp2_approx(a.max - base) + b.sum * ptx::exp2_approx(b.max - base);
        const bool seen = sum != 0;  // NaN was seen, and goes on
        lse[i] = seen ? base + __log2f(sum) : -INFINITY;
        const float inverse = seen ? __fdividef(Config::kFp8 ? params.v_scale : 1.0f, sum) : 0.0f;
        factor[i] = ptx::exp2_approx(running.max[i] - base) * inverse;
    }

    float kept[kHalf * 4];
#pragma unroll
    for (int32_t part = 0; part < 2; ++part) {
        if (part > 0) ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
#pragma unroll
        for (int32_t n = 0; n < kPart; ++n) {
            const int32_t left = 4 * (part * kPart + n);  // registers of the block in either half
            const int32_t right = left + 4 * kHalf;
            float send[4];
#pragma unroll
            for (int32_t e = 0; e < 4; ++e) {
                send[e] = (group == 0 ? o[right + e] : o[left + e]) * factor[e / 2];
                kept[left + e] = (group == 0 ? o[left + e] : o[right + e]) * factor[e / 2];
            }
            exchange[(group * kPart + n) * kGroupThreads + thread] =
                make_float4(send[0], send[1], send[2], send[3]);
        }
        ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
#pragma unroll
        for (int32_t n = 0; n < kPart; ++n) {
            const float4 got = exchange[((group ^ 1) * kPart + n) * kGroupThreads + thread];
            const int32_t at = 4 * (part * kPart + n);
            kept[at] += got.x;
            kept[at + 1] += got.y;
            kept[at + 2] += got.z;
            kept[at + 3] += got.w;
        }
    }

    store_rows<Config>(params, unit, first_row, lane, group * (Config::kHeadDim / 2), kept, lse,
                       group == 0);
}

/// Writes the rows of a unit that one group has alone.
template <class Config, int32_t kCount>
__device__ __forceinline__ void normalise_and_store(const AttnVerifyGqaCudaParams& params,
                                                    const WorkUnit& unit, float (&o)[kCount],
                                                    const Running& running) {
    const int32_t lane = threadIdx.x % 32;
    const int32_t first_row =
        static_cast<int32_t>(threadIdx.x) % kGroupThreads / 32 * 16 + lane / 4;
    float lse[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
        float sum = running.sum[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const bool seen = sum != 0;  // NaN was seen, and goes on
        lse[i] = seen ? running.max[i] + __log2f(sum) : -INFINITY;
        const float factor = seen ? __fdividef(Config::kFp8 ? params.v_scale : 1.0f, sum) : 0.0f;
#pragma unroll
        for (int32_t n = 0; n < Config::kHeadDim / 8; ++n) {
            o[4 * n + 2 * i] *= factor;
            o[4 * n + 2 * i + 1] *= factor;
        }
    }
    float kept[Config::kHeadDim / 2];  // without the unused half column of 96 dims
#pragma unroll
    for (int32_t i = 0; i < Config::kHeadDim / 2; ++i) kept[i] = o[i];
    store_rows<Config>(params, unit, first_row, lane, 0, kept, lse, true);
}

}  // namespace kd::gqa
