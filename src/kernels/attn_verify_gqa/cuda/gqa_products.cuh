// The two products of a consumer on one tile: S = Q K^T and O += P V, by mma.sync and by wgmma.
// Fragments are the same for both: a warp has rows 16 * (warp % 4) ... + 16 of the unit, a thread
// of them rows lane / 4 and lane / 4 + 8; accumulator 4 n + e is row e / 2 of these, column 8 n +
// 2 * (lane % 4) + e % 2. Exception: mma.sync on e4m3 V, where 8-column blocks 2 t and 2 t + 1 hold
// the even and the odd dims of [16 t, 16 t + 16).
#pragma once

#include <cstdint>

#include "kernels/attn_verify_gqa/cuda/gqa_config.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace kd::gqa {

/// Left operand of the first product, k-step `step` of 16 dims.
__device__ __forceinline__ void load_query_fragment(uint32_t (&a)[4], uint32_t query, int32_t step,
                                                    int32_t warp, int32_t lane) {
    const int32_t row = 16 * warp + lane % 16;
    ptx::load_matrices(a, query + half_offset(kTileRows, row, 2 * step + lane / 16));
}

// ---- mma.sync ---------------------------------------------------------------------------------

/// s = Q K^T; `q` the fragments where Config::kQueryInRegisters, else read from `query`.
template <class Config, int32_t kSteps, int32_t kCount>
__device__ __forceinline__ void scores_mma_sync(float (&s)[kCount], const uint32_t (&q)[kSteps][4],
                                                uint32_t query, uint32_t k, int32_t warp,
                                                int32_t lane) {
    static_assert(Config::kKeys == 32);
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) s[i] = 0;
#pragma unroll
    for (int32_t step = 0; step < Config::kHeadDim / 16; ++step) {
        uint32_t a[4];
        if constexpr (Config::kQueryInRegisters) {
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) a[i] = q[step][i];
        } else {
            load_query_fragment(a, query, step, warp, lane);
        }
        if constexpr (Config::kFp8) {
            // One 8 x 16-byte matrix is 8 keys x 16 dims.
            uint32_t raw[4];
            ptx::load_matrices(raw, k + raw_offset(Config::kHeadDim, Config::kKeys, lane, step));
#pragma unroll
            for (int32_t n = 0; n < 4; ++n) {
                uint32_t b0, b1;
                ptx::widen_e4m3(raw[n], b0, b1);
                ptx::multiply_add<true>(s + 4 * n, a, b0, b1);
            }
        } else {
            const int32_t row = lane / 16 * 8 + lane % 8;
            const uint32_t address = k + half_offset(Config::kKeys, row, 2 * step + (lane / 8 & 1));
#pragma unroll
            for (int32_t pair = 0; pair < 2; ++pair) {
                uint32_t b[4];
                ptx::load_matrices(b, address + pair * 16 * 128);
                ptx::multiply_add<false>(s + 8 * pair, a, b[0], b[1]);
                ptx::multiply_add<false>(s + 8 * pair + 4, a, b[2], b[3]);
            }
        }
    }
}

/// o += P V.
template <class Config, int32_t kSteps, int32_t kCount>
__device__ __forceinline__ void output_mma_sync(float (&o)[kCount], const uint32_t (&p)[kSteps][4],
                                                uint32_t v, int32_t lane) {
    static_assert(kSteps == 2);
#pragma unroll
    for (int32_t t = 0; t < Config::kHeadDim / 16; ++t) {
        if constexpr (Config::kFp8) {
            // Transposed, a register holds dims 2 n and 2 n + 1 of two keys (n = lane / 4): the
            // bytes are sorted by dim before they are converted.
            uint32_t raw[4];
            ptx::load_matrices_transposed(raw,
                                          v + raw_offset(Config::kHeadDim, Config::kKeys, lane, t));
            uint32_t even[4], odd[4];
#pragma unroll
            for (int32_t i = 0; i < 4; ++i)
                ptx::widen_e4m3(__byte_perm(raw[i], 0, 0x3120), even[i], odd[i]);
#pragma unroll
            for (int32_t step = 0; step < 2; ++step) {
                ptx::multiply_add<true>(o + 8 * t, p[step], even[2 * step], even[2 * step + 1]);
                ptx::multiply_add<true>(o + 8 * t + 4, p[step], odd[2 * step], odd[2 * step + 1]);
            }
        } else {
            const uint32_t address = v + half_offset(Config::kKeys, lane % 16, 2 * t + lane / 16);
#pragma unroll
            for (int32_t step = 0; step < 2; ++step) {
                uint32_t b[4];
                ptx::load_matrices_transposed(b, address + step * 16 * 128);
                ptx::multiply_add<false>(o + 8 * t, p[step], b[0], b[1]);
                ptx::multiply_add<false>(o + 8 * t + 4, p[step], b[2], b[3]);
            }
        }
    }
}

// ---- wgmma ------------------------------------------------------------------------------------

/// Issues s = Q K^T; K (and Q where it is not in registers) 16-bit at `k` and `query`.
template <class Config, int32_t kSteps, int32_t kCount>
__device__ __forceinline__ void issue_scores_wgmma(float (&s)[kCount],
                                                   const uint32_t (&q)[kSteps][4], uint32_t query,
                                                   uint32_t k) {
    const uint64_t k_tile = wgmma_descriptor(k, 16, 1024);
    wgmma::fence();
#pragma unroll
    for (int32_t step = 0; step < Config::kHeadDim / 16; ++step) {
        // 16 dims are 32 bytes within the swizzled row of 64.
        const uint64_t k_step =
            descriptor_at(k_tile, step / 4 * (Config::kKeys * 128) + step % 4 * 32);
        if constexpr (Config::kQueryInRegisters) {
            wgmma::rs_n64<Config::kFp8>(s, q[step], k_step, step > 0);
        } else {
            const uint64_t q_step = descriptor_at(wgmma_descriptor(query, 16, 1024),
                                                  step / 4 * (kTileRows * 128) + step % 4 * 32);
            wgmma::ss_n64<Config::kFp8>(s, q_step, k_step, step > 0);
        }
    }
    wgmma::commit();
}

/// Issues s = Q K^T with raw K; q[2 n] + q[2 n + 1] are the 32 dims of k-step n, of which q[2 n +
/// 1] is the lesser part: these first, as long as the sums have bits for them.
template <int32_t kSteps, int32_t kCount>
__device__ __forceinline__ void issue_scores_raw(float (&s)[kCount], const uint32_t (&q)[kSteps][4],
                                                 uint32_t k) {
    const uint64_t k_tile = wgmma_descriptor(k, 16, 1024);
    wgmma::fence();
#pragma unroll
    for (int32_t part = 0; part < 2; ++part)
#pragma unroll
        for (int32_t step = 0; step < kSteps / 2; ++step)
            wgmma::rs_n64_e4m3(s, q[2 * step + 1 - part], descriptor_at(k_tile, step * 32),
                               part + step > 0);
    wgmma::commit();
}

/// Issues o += P V.
template <class Config, int32_t kSteps, int32_t kCount>
__device__ __forceinline__ void issue_output_wgmma(float (&o)[kCount],
                                                   const uint32_t (&p)[kSteps][4], uint32_t v) {
    constexpr int32_t kColumnBytes = Config::kKeys * 128;  // of 64 dims
    const uint64_t v_tile = wgmma_descriptor(v, kColumnBytes, 1024);
    wgmma::fence();
#pragma unroll
    for (int32_t step = 0; step < kSteps; ++step) {
        const uint64_t v_step = descriptor_at(v_tile, step * 2048);
        if constexpr (Config::kOutDim == 64) {
            wgmma::rs_n64<Config::kFp8, 1>(o, p[step], v_step, true);
        } else {
            wgmma::rs_n128_bt<Config::kFp8, 0>(o, p[step], v_step, true);
            if constexpr (Config::kOutDim == 256)
                wgmma::rs_n128_bt<Config::kFp8, 64>(o, p[step],
                                                    descriptor_at(v_step, 2 * kColumnBytes), true);
        }
    }
    wgmma::commit();
}

/// A thread's part of a raw e4m3 tile that its group converts to the 16-bit layout: every second
/// chunk of one row. Tiles begin at multiples of 1024 bytes, so a chunk's place differs from the
/// first one's by an exclusive or.
template <class Config>
struct RawPart {
    static constexpr int32_t kStep = kGroupThreads / Config::kKeys;
    static constexpr int32_t kChunks = Config::kRowChunks / kStep;
    static_assert(kStep == 2);
    uint4 chunks[kChunks];

    __device__ __forceinline__ RawPart(uint32_t raw, int32_t thread) {
        const uint32_t first = raw + raw_offset(Config::kHeadDim, Config::kKeys,
                                                thread % Config::kKeys, thread / Config::kKeys);
#pragma unroll
        for (int32_t i = 0; i < kChunks; ++i)
            chunks[i] = ptx::load_shared_128(
                (first ^ raw_offset(Config::kHeadDim, Config::kKeys, 0, kStep * i % 8)) +
                kStep * i / 8 * Config::kKeys * 128);
    }

    __device__ __forceinline__ void convert(uint32_t to, int32_t thread) const {
        const uint32_t first =
            to + half_offset(Config::kKeys, thread % Config::kKeys, 2 * (thread / Config::kKeys));
#pragma unroll
        for (int32_t i = 0; i < kChunks; ++i) {
            uint4 low, high;
            ptx::widen_e4m3(chunks[i].x, low.x, low.y);
            ptx::widen_e4m3(chunks[i].y, low.z, low.w);
            ptx::widen_e4m3(chunks[i].z, high.x, high.y);
            ptx::widen_e4m3(chunks[i].w, high.z, high.w);
            const uint32_t at = (first ^ half_offset(0, 0, 2 * kStep * i % 8)) +
                                2 * kStep * i / 8 * Config::kKeys * 128;
            ptx::store_shared(at, low);
            ptx::store_shared(at ^ half_offset(0, 0, 1), high);
        }
    }
};

}  // namespace kd::gqa
