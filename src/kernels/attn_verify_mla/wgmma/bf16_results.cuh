// What the accumulating warpgroups of the bf16 loop do with a tile and at the end of a unit.
#pragma once

#include "kernels/attn_plan/quad_layout.h"
#include "kernels/attn_verify_mla/wgmma/bf16_config.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Normalises a warp's 16 rows of O and stores them as a partial, straight from registers, as
/// quad_layout.h says. `thread`: of the warpgroup; `half`: of the latent.
__device__ __forceinline__ void store_partial(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                              int32_t thread, int32_t half,
                                              const float (&inverse)[2], const float (&o)[2][64]) {
    const int32_t lane = thread % 32;
    const int32_t row = thread / 32 * 16 + lane / 4;  // and row + 8
    auto* const to = static_cast<uint16_t*>(p.workspace.partial_out) +
                     int64_t{unit.partial} * kTileRows * kMlaLatent +
                     quad_values_at(row, half * 8, lane % 4);
#pragma unroll
    for (int32_t group = 0; group < 8; ++group) {  // of 32 columns
#pragma unroll
        for (int32_t r = 0; r < 2; ++r) {
            uint32_t words[4];
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) {
                const float* const d = &o[group / 4][group % 4 * 16 + i * 4 + 2 * r];
                words[i] = ptx::pack_bf16(d[0] * inverse[r], d[1] * inverse[r]);
            }
            if (row + 8 * r < unit.rows)
                *reinterpret_cast<uint4*>(to + quad_values_at(8 * r, group, 0)) =
                    make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

/// Normalises a warp's 16 rows of O and stores them as the output, by way of its own part of shared
/// memory, 32 columns at a time. No stage of the ring is taken for it: the next unit's tiles come
/// meanwhile. `thread`: of the warpgroup.
__device__ __forceinline__ void store_out(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                          uint32_t shared, int32_t thread, int32_t half,
                                          const float (&inverse)[2], const float (&o)[2][64]) {
    const int32_t lane = thread % 32;
    const uint32_t memory = shared + kOut + (half * 4 + thread / 32) * kOutBytes;
    // 64 bytes a row; the 16-byte units of rows 2 i and 2 i + 1 lie in order i.
    const auto place = [&](int32_t row, int32_t unit16) {
        return memory + row * 64 + ((unit16 ^ (row >> 1 & 3)) << 4);
    };
    const uint32_t to[2] = {place(lane % 16, lane / 16), place(lane % 16, 2 + lane / 16)};
    const uint32_t from[2] = {place(lane / 4, lane % 4), place(8 + lane / 4, lane % 4)};
    const int64_t first_row = int64_t{unit.first_node} * p.heads + unit.row_begin;
    const int32_t row = thread / 32 * 16 + lane / 4;  // and row + 8
    auto* const out = static_cast<std::byte*>(p.out) +
                      2 * ((first_row + row) * kMlaLatent + half * 256) + lane % 4 * 16;
#pragma unroll
    for (int32_t piece = 0; piece < 8; ++piece) {
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {  // 16 columns
            const float* const d = &o[piece / 4][piece % 4 * 16 + i * 8];
            ptx::store_matrices(to[i], ptx::pack_bf16(d[0] * inverse[0], d[1] * inverse[0]),
                                ptx::pack_bf16(d[2] * inverse[1], d[3] * inverse[1]),
                                ptx::pack_bf16(d[4] * inverse[0], d[5] * inverse[0]),
                                ptx::pack_bf16(d[6] * inverse[1], d[7] * inverse[1]));
        }
        __syncwarp();
        const uint4 values[2] = {ptx::load_shared_128(from[0]), ptx::load_shared_128(from[1])};
        if (row < unit.rows) *reinterpret_cast<uint4*>(out + piece * 64) = values[0];
        if (row + 8 < unit.rows)
            *reinterpret_cast<uint4*>(out + 8 * 2 * kMlaLatent + piece * 64) = values[1];
        __syncwarp();  // before the next piece is written
    }
}

/// O += P V of a tile; `more` false: O = P V. product(d, step, v, add) takes those of 16 keys and
/// 128 columns, P being where its caller has it.
template <class Product>
__device__ __forceinline__ void add_products(uint64_t v_tile, bool more, float (&o)[2][64],
                                             const Product& product) {
#pragma unroll
    for (auto& of_columns : o) wgmma::touch(of_columns);
    wgmma::fence();
#pragma unroll
    for (int32_t step = 0; step < kKeys / 16; ++step) {
#pragma unroll
        for (int32_t i = 0; i < 2; ++i)
            product(o[i], step, v_tile + i * 2 * (kChunkBytes >> 4) + step * 128, more || step > 0);
    }
    wgmma::commit();
    wgmma::wait<0>();
#pragma unroll
    for (auto& of_columns : o) wgmma::touch(of_columns);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
