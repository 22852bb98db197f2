// The results of a unit, as the fp8 loops store them.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_softmax.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A thread's part of a unit's results: 64 columns of O a warp, the rows of OfRows<kRows>. Can be
/// made when the rows' sums are in kParts, a part a warp, which is before the last products: a
/// block of O then leaves while the next one is made. The first threads store the log-sum-exps.
template <kdt_kv_format kFormat, int32_t kMostRows, int32_t kRows>
struct Fp8Results {
    using Plan = Fp8Plan<kFormat, kMostRows>;

    std::byte* to;  // this lane's first columns in the unit's first row
    int32_t rows;   // of the unit
    int32_t lane;
    OfRows<kRows> inverse;

    __device__ __forceinline__ Fp8Results(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                          uint32_t shared, int32_t group, int32_t thread)
        : rows(unit.rows), lane(thread % 32) {
        if (group == 0 && thread < kRows) {
            float part[8];
#pragma unroll
            for (int32_t i = 0; i < 8; ++i)
                part[i] = ptx::load_shared_float(shared + Plan::kParts + (i * 64 + thread) * 4);
            const float reference = ptx::load_shared_float(shared + Plan::kReference + thread * 4);
            store_lse(p, unit, thread, row_lse(reference, sum(part)));
        }
        const float value_scale = Fp8Row<kFormat>::kScaled ? 1.0f : p.kv_scale;
#pragma unroll
        for (int32_t j = 0; j < kRows / 8; ++j) {
            float part[2][8];
#pragma unroll
            for (int32_t i = 0; i < 8; ++i) {
                const uint2 pair = ptx::load_shared_64(shared + Plan::kParts +
                                                       (i * 64 + j * 8 + lane % 4 * 2) * 4);
                part[0][i] = __uint_as_float(pair.x);
                part[1][i] = __uint_as_float(pair.y);
            }
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                const float of_row = sum(part[i]);
                inverse[2 * j + i] = of_row == 0.0f ? 0.0f : __fdividef(value_scale, of_row);
            }
        }
        const int64_t first_row = unit.partial >= 0
                                      ? int64_t{unit.partial} * kTileRows
                                      : int64_t{unit.first_node} * p.heads + unit.row_begin;
        to = static_cast<std::byte*>(unit.partial >= 0 ? p.workspace.partial_out : p.out) +
             2 * (first_row * kMlaLatent + group * 256 + thread / 32 * 64 + lane / 4 * 2);
    }

    __device__ __forceinline__ static float sum(const float (&part)[8]) {
        const float first = (part[0] + part[1]) + (part[2] + part[3]);
        return first + ((part[4] + part[5]) + (part[6] + part[7]));
    }

    /// Normalises and stores block `block` of O, 16 columns a warp.
    __device__ __forceinline__ void store(const float (&o)[kRows / 2], int32_t block) const {
#pragma unroll
        for (int32_t i = 0; i < kRows / 4; ++i) {
            const int32_t row = i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (row >= rows) continue;
            const float* const pair = o + i / 2 * 4 + i % 2;
            *reinterpret_cast<uint32_t*>(to + 2 * (row * kMlaLatent + block * 16)) =
                ptx::pack_bf16(pair[0] * inverse[i], pair[2] * inverse[i]);
        }
    }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
