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

/// Q of the unit's rows to shared memory at `q` as f16, by kFp8MathThreads threads; zeros behind
/// the last row. `started` is called when all of it has been asked for.
template <int32_t kRows, class Started>
__device__ __forceinline__ void load_query(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                           uint32_t q, int32_t thread, bool natural_rope,
                                           const Started& started) {
    constexpr int32_t kWarpRows = kRows / (kFp8MathThreads / 32);
    constexpr int32_t kAtOnce = kWarpRows < 4 ? kWarpRows : 4;
    constexpr int32_t kLatentBlocks = kMlaLatent / 16;
    const int32_t lane = thread % 32;
    const int32_t first = thread / 32 * kWarpRows;
    const int32_t rope_row = first + lane / 4;
    uint4 rope[2] = {};  // block lane % 4 of that row
    if (lane / 4 < kWarpRows && rope_row < unit.rows) {
        const uint4* const from = QueryRow(p, unit, rope_row).rope(p) + lane % 4 * 2;
        rope[0] = from[0];
        rope[1] = from[1];
    }
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
#pragma unroll
        for (int32_t i = 0; i < kAtOnce; ++i)
            store_query<kRows>(q, first + begin + i, lane, false, latent[i]);
    }
    if (lane / 4 < kWarpRows)
        store_query<kRows>(q, rope_row, kLatentBlocks + lane % 4, natural_rope, rope);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
