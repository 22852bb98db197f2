// Q of a unit for the fp8 loops.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_config.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/node_of_row.h"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Where a lane's part of a unit's Q is, of kFp8MathThreads threads: what it takes to know that
/// does not wait for Q.
template <int32_t kRows>
struct Fp8QuerySources {
    static constexpr int32_t kWarpRows = kRows / (kFp8MathThreads / 32);

    const uint4* latent[kWarpRows] = {};  // block `lane` of the warp's rows; null: none
    const uint4* rope = nullptr;          // block lane % 4 of row lane / 4 of these; likewise

    __device__ Fp8QuerySources(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                               const NodeOfRow& node_of, int32_t thread) {
        const int32_t lane = thread % 32;
        const int32_t first = thread / 32 * kWarpRows;
        const int32_t row = unit.row_begin + first;
        const int32_t node = node_of(row);
        int32_t head = row - node * p.heads;
        const auto* from = static_cast<const uint16_t*>(p.q_latent) +
                           (unit.first_node + node) * p.q_latent_node_stride +
                           head * p.q_latent_head_stride + 16 * lane;
        const int64_t to_next_node =
            p.q_latent_node_stride - (p.heads - 1) * p.q_latent_head_stride;
#pragma unroll
        for (int32_t i = 0; i < kWarpRows; ++i) {
            if (first + i < unit.rows) latent[i] = reinterpret_cast<const uint4*>(from);
            const bool last = ++head == p.heads;
            from += last ? to_next_node : p.q_latent_head_stride;
            if (last) head = 0;
        }
        if (lane / 4 >= kWarpRows || first + lane / 4 >= unit.rows) return;
        const int32_t rope_row = row + lane / 4;
        const int32_t rope_node = node_of(rope_row);
        rope = reinterpret_cast<const uint4*>(
            static_cast<const uint16_t*>(p.q_rope) +
            (unit.first_node + rope_node) * p.q_rope_node_stride +
            (rope_row - rope_node * p.heads) * p.q_rope_head_stride + lane % 4 * 16);
    }
    /// Keeps the compiler from computing the addresses where they are used.
    __device__ void hold() {
#pragma unroll
        for (auto& of : latent) asm volatile("" : "+l"(of));
        asm volatile("" : "+l"(rope));
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
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
        uint32_t top = QueryBlock(latent[i]).top();
        if (has_rope(i)) top = QueryBlock::larger(top, rope.top());
        top = __reduce_max_sync(0xffffffff, max(top & 0x7fff, top >> 16 & 0x7fff));
        const ptx::E4m3Scale scale(__uint_as_float(top << 16));
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
__device__ __forceinline__ void load_query(const Fp8QuerySources<kRows>& sources, uint32_t shared,
                                           int32_t thread, float factor, const Started& started) {
    using Plan = Fp8Plan<kFormat, kMostRows>;
    constexpr bool kScaled = Fp8Row<kFormat>::kScaled;
    constexpr int32_t kWarpRows = Fp8QuerySources<kRows>::kWarpRows;
    constexpr int32_t kAtOnce = kWarpRows < 4 ? kWarpRows : 4;
    const int32_t lane = thread % 32;
    const int32_t first = thread / 32 * kWarpRows;
    const uint32_t q = shared + Plan::kQ;
    uint4 rope[2] = {};
    if (sources.rope != nullptr) {
        rope[0] = sources.rope[0];
        rope[1] = sources.rope[1];
    }
    QueryBlock of_rope(rope);
    float rope_up = 0.0f;
#pragma unroll
    for (int32_t begin = 0; begin < kWarpRows; begin += kAtOnce) {
        uint4 latent[kAtOnce][2] = {};
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i) {
            const uint4* const from = sources.latent[begin + i];
            if (from == nullptr) continue;
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
    if (lane / 4 >= kWarpRows) return;
    const int32_t rope_row = first + lane / 4;
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
