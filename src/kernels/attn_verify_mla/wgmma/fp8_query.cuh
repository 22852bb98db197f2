// Q of a unit for the fp8 loops.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_config.cuh"
#include "kernels/cuda/mma.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A row of Q: node and head.
struct QueryRow {
    int32_t node;
    int32_t head;

    __device__ QueryRow(const AttnVerifyMlaParams& p, const WorkUnit& unit, int32_t row)
        : node((unit.row_begin + row) / p.heads), head((unit.row_begin + row) % p.heads) {
        node += unit.first_node;
    }
    __device__ void next(int32_t heads) {
        if (++head < heads) return;
        head = 0;
        ++node;
    }
    __device__ const uint4* latent(const AttnVerifyMlaParams& p) const {
        return reinterpret_cast<const uint4*>(
            static_cast<const std::byte*>(p.q_latent) +
            2 * (node * p.q_latent_node_stride + head * p.q_latent_head_stride));
    }
    __device__ const uint4* rope(const AttnVerifyMlaParams& p) const {
        return reinterpret_cast<const uint4*>(
            static_cast<const std::byte*>(p.q_rope) +
            2 * (node * p.q_rope_node_stride + head * p.q_rope_head_stride));
    }
};

/// 16 bf16 values.
struct QueryBlock {
    uint32_t words[8];

    __device__ __forceinline__ explicit QueryBlock(const uint4 (&w)[2])
        : words{w[0].x, w[0].y, w[0].z, w[0].w, w[1].x, w[1].y, w[1].z, w[1].w} {}

    /// The larger magnitudes of two pairs, with some sign.
    __device__ __forceinline__ static uint32_t larger(uint32_t a, uint32_t b) {
        uint32_t most;
        asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
        return most;
    }
    /// The largest magnitudes of the first and of the second values of the pairs, with some sign.
    __device__ __forceinline__ uint32_t top() const {
        uint32_t most = larger(words[0], words[1]);
#pragma unroll
        for (int32_t i = 2; i < 8; ++i) most = larger(most, words[i]);
        return most;
    }
    /// `up` times themselves, a power of two, as f16.
    __device__ __forceinline__ void scale(float up) {
        const uint32_t factor = ptx::pack_bf16(up, up);
#pragma unroll
        for (uint32_t& word : words) {
            asm("mul.bf16x2 %0, %0, %1;" : "+r"(word) : "r"(factor));
            word = ptx::bf16_to_f16(word);
        }
    }
    /// Of f16: as e4m3, high parts to `high`, low parts `low` bytes further.
    __device__ __forceinline__ void store_e4m3(uint32_t high, uint32_t low) const {
        uint32_t parts[2][4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
            const auto split = ptx::SplitE4m3::of<1>(words[2 * i], words[2 * i + 1]);
            parts[0][i] = split.high;
            parts[1][i] = split.low;
        }
        ptx::store_shared(high, make_uint4(parts[0][0], parts[0][1], parts[0][2], parts[0][3]));
        ptx::store_shared(high + low,
                          make_uint4(parts[1][0], parts[1][1], parts[1][2], parts[1][3]));
    }
    /// Of f16: as they are, in two 16-byte units, the second at `to` ^ 16.
    __device__ __forceinline__ void store_f16(uint32_t to) const {
        ptx::store_shared(to, make_uint4(words[0], words[1], words[2], words[3]));
        ptx::store_shared(to ^ 16, make_uint4(words[4], words[5], words[6], words[7]));
    }
};

/// 16 bf16 values of row `row` as f16 to block `block` of its 36, chunks of kRows rows. `natural`:
/// in their own order, otherwise that of K's words.
template <int32_t kRows>
__device__ __forceinline__ void store_query(uint32_t q, int32_t row, int32_t block, bool natural,
                                            const uint4 (&values)[2]) {
    const uint32_t to = q + block / 4 * kRows * 128 + copy_offset(row, block % 4 * 2);
    uint32_t w[8] = {values[0].x, values[0].y, values[0].z, values[0].w,
                     values[1].x, values[1].y, values[1].z, values[1].w};
#pragma unroll
    for (uint32_t& word : w) word = ptx::bf16_to_f16(word);
    ptx::store_shared(
        to, natural ? make_uint4(w[0], w[1], w[2], w[3]) : make_uint4(w[0], w[2], w[4], w[6]));
    ptx::store_shared(
        to ^ 16, natural ? make_uint4(w[4], w[5], w[6], w[7]) : make_uint4(w[1], w[3], w[5], w[7]));
}

/// Rows [row, row + kCount), of which this lane has block `lane` in `latent`, as e4m3, and their
/// score factors. A lane for which has_rope(i) has a block of row row + i's rope part too, `rope`,
/// and gets what that is to be multiplied with.
template <class Plan, int32_t kRows, int32_t kCount, class HasRope>
__device__ __forceinline__ void store_rows_e4m3(uint32_t shared, int32_t row, int32_t lane,
                                                float factor, const uint4 (&latent)[kCount][2],
                                                const HasRope& has_rope, const QueryBlock& rope,
                                                float& rope_up) {
    uint32_t top[kCount];
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
        top[i] = QueryBlock(latent[i]).top();
        if (has_rope(i)) top[i] = QueryBlock::larger(top[i], rope.top());
    }
#pragma unroll
    for (int32_t distance = 16; distance > 0; distance /= 2) {
#pragma unroll
        for (uint32_t& of : top)
            of = QueryBlock::larger(of, __shfl_xor_sync(0xffffffff, of, distance));
    }
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
        const ptx::E4m3Scale scale(fmaxf(fabsf(__uint_as_float(top[i] << 16)),
                                         fabsf(__uint_as_float(top[i] & 0xffff0000u))));
        QueryBlock block(latent[i]);
        block.scale(scale.up);
        block.store_e4m3(shared + Plan::kQ + lane / 8 * Plan::chunk_bytes(kRows) +
                             copy_offset(row + i, lane % 8),
                         kRows * 128);
        if (lane == 0)
            ptx::store_shared(shared + Plan::kScoreFactor + (row + i) * 4, scale.down * factor);
        if (has_rope(i)) rope_up = scale.up;
    }
}

/// Q of the unit's rows to shared memory, as Fp8Plan has it, with e4m3 also their score factors, by
/// kFp8MathThreads threads; zeros behind the last row. `started` is called when all of it has been
/// asked for. `factor`: of the scores of Q as it is, to powers of two.
template <kdt_kv_format kFormat, int32_t kMostRows, int32_t kRows, class Started>
__device__ __forceinline__ void load_query(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                           uint32_t shared, int32_t thread, float factor,
                                           const Started& started) {
    using Plan = Fp8Plan<kFormat, kMostRows>;
    constexpr bool kScaled = Fp8Row<kFormat>::kScaled;
    constexpr int32_t kWarpRows = kRows / (kFp8MathThreads / 32);
    constexpr int32_t kAtOnce = kWarpRows < 4 ? kWarpRows : 4;
    const int32_t lane = thread % 32;
    const int32_t first = thread / 32 * kWarpRows;
    const uint32_t q = shared + Plan::kQ;
    const int32_t rope_row = first + lane / 4;
    const bool has_rope = lane / 4 < kWarpRows;
    uint4 rope[2] = {};  // block lane % 4 of that row
    if (has_rope && rope_row < unit.rows) {
        const uint4* const from = QueryRow(p, unit, rope_row).rope(p) + lane % 4 * 2;
        rope[0] = from[0];
        rope[1] = from[1];
    }
    QueryBlock of_rope(rope);
    float rope_up = 0.0f;
    QueryRow of_warp(p, unit, first);
#pragma unroll
    for (int32_t begin = 0; begin < kWarpRows; begin += kAtOnce) {
        uint4 latent[kAtOnce][2] = {};  // block `lane` of each row
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i, of_warp.next(p.heads)) {
            if (first + begin + i >= unit.rows) continue;
            const uint4* const from = of_warp.latent(p) + 2 * lane;
            latent[i][0] = from[0];
            latent[i][1] = from[1];
        }
        if (begin + kAtOnce == kWarpRows) started();
        if constexpr (Plan::kE4m3) {
            store_rows_e4m3<Plan, kRows>(
                shared, first + begin, lane, factor, latent,
                [&](int32_t i) { return lane / 4 == begin + i; }, of_rope, rope_up);
        } else {
#pragma unroll
            for (int32_t i = 0; i < kAtOnce; ++i)
                store_query<kRows>(q, first + begin + i, lane, false, latent[i]);
        }
    }
    if (!has_rope) return;
    if constexpr (Plan::kE4m3) {
        const uint32_t to = q + Plan::rope(kRows);
        of_rope.scale(rope_up);
        if constexpr (kScaled)
            of_rope.store_f16(to + copy_offset(rope_row, lane % 4 * 2));
        else
            of_rope.store_e4m3(to + offset_64(rope_row, lane % 4), kRows * 64);
    } else {
        store_query<kRows>(q, rope_row, kMlaLatent / 16 + lane % 4, kScaled, rope);
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
