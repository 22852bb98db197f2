// Scores of the fp8 loops, and how their e4m3 products are taken.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_softmax.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// How f16 products are fed: many rows take so many registers that only two can be prepared at a
/// time; few rows take so little of the tensor cores that it pays to prepare four.
template <int32_t kRows>
struct F16Products {
    static constexpr int32_t kProducts = kRows > kFewRows ? 2 : 4;  // issued together
    static constexpr int32_t kDepth = 2;                            // of operands in use
    static constexpr int32_t kAhead = kRows > kFewRows ? 1 : 2;  // turns that words are read ahead
};

/// Takes kTurns sums, two at a time: read(turn, a) asks for operands, kAhead turns before they are
/// used, make(a) ends them, issue(turn, a, sum) takes the products, add(turn, sum) is what becomes
/// of them.
template <int32_t kTurns, int32_t kCount, int32_t kRows, int32_t kAhead, class Read, class Make,
          class Issue, class Add>
__device__ __forceinline__ void take_sums(const Read& read, const Make& make, const Issue& issue,
                                          const Add& add) {
    constexpr int32_t kDepth = 2 + kAhead;
    Operands<kCount> a[kDepth];
    float sums[2][kRows];
    const auto finish = [&](int32_t turn) {
        wgmma::touch(sums[turn % 2]);
        hold<kCount>(a[turn % kDepth]);
        add(turn, sums[turn % 2]);
    };
    if constexpr (kAhead == 1) read(0, a[0]);
#pragma unroll
    for (int32_t turn = 0; turn < kTurns; ++turn) {
        if (turn + kAhead < kTurns) read(turn + kAhead, a[(turn + kAhead) % kDepth]);
        make(a[turn % kDepth]);
        hold<kCount>(a[turn % kDepth]);  // made before the products begin
        wgmma::fence();
        issue(turn, a[turn % kDepth], sums[turn % 2]);
        wgmma::commit();
        if (turn == 0) continue;
        wgmma::wait<1>();
        finish(turn - 1);
    }
    wgmma::wait<0>();
    finish(kTurns - 1);
}

/// S^T of 16 keys, whose rows are at `keys`, for each warp.
template <kdt_kv_format kFormat, int32_t kMostRows, int32_t kRows>
struct Fp8Scores {
    using Plan = Fp8Plan<kFormat, kMostRows>;
    using Row = Fp8Row<kFormat>;
    using Scores = ColumnScores<kRows>;

    uint32_t shared;
    int32_t lane;

    /// By f16 products.
    __device__ __forceinline__ void f16(uint32_t keys, Scores& s) const {
        using Keys = KeyOperands<kFormat, F16Products<kRows>::kProducts>;
        constexpr int32_t kProducts = F16Products<kRows>::kProducts;
        constexpr int32_t kDepth = F16Products<kRows>::kDepth;
        constexpr int32_t kAhead = F16Products<kRows>::kAhead;
        uint32_t scales[4][2] = {};  // of a group of 128 dimensions
        if constexpr (Row::kScaled) {
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                const uint4 four =
                    ptx::load_shared_128(keys + (lane / 4 + 8 * i) * Row::kStride + kFp8Scales);
                const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int32_t of = 0; of < 4; ++of) {
                    const float x = __uint_as_float(words[of]);
                    scales[of][i] = ptx::pack_f16(x, x);
                }
            }
        }
        const uint64_t query = wgmma::k_major(shared + Plan::kQ);
        const uint32_t from = keys + key_offset(lane, Row::kStride);
        Operands<kProducts> a[kDepth];
        typename Keys::Words words[kAhead];
#pragma unroll
        for (int32_t turn = 0; turn < kAhead; ++turn) Keys::read(from, turn, words[turn]);
#pragma unroll
        for (int32_t turn = 0; turn < Keys::kTurns; ++turn) {
            auto& of = a[turn % kDepth];
            if (turn >= kDepth) {
                wgmma::wait<kDepth - 1>();
                hold<kProducts>(of);
            }
            Keys::make(words[turn % kAhead], turn, scales[turn * Keys::kDims / 128 % 4], of);
            if (turn + kAhead < Keys::kTurns) Keys::read(from, turn + kAhead, words[turn % kAhead]);
            wgmma::fence();
#pragma unroll
            for (int32_t i = 0; i < kProducts; ++i) {
                const int32_t step = turn * kProducts + i;
                multiply_f16(s, of[i], query + step / 4 * (kRows * 128 >> 4) + step % 4 * 2,
                             step > 0);
            }
            wgmma::commit();
        }
        wgmma::wait<0>();
#pragma unroll
        for (auto& of : a) hold<kProducts>(of);
        wgmma::touch(s);
    }

    /// The same by e4m3 products; the rope part of 656-byte rows in f16.
    __device__ __forceinline__ void e4m3(uint32_t keys, Scores& s) const {
        constexpr int32_t kTurns = Plan::kLatentChunks + !Row::kScaled;  // the last: rope
        const uint32_t from = keys + key_offset(lane, Row::kStride);
        const uint32_t query = shared + Plan::kQ;
        take_sums<kTurns, 4, kRows, Row::kScaled ? 0 : 1>(
            [&](int32_t turn, Operands<4>& a) {
#pragma unroll
                for (int32_t i = 0; i < (turn < Plan::kLatentChunks ? 4 : 2); ++i)
                    ptx::load_matrices(a[i], from + turn * 128 + 32 * i);
            },
            [](Operands<4>&) {},
            [&](int32_t turn, const Operands<4>& a, float(&sum)[kRows]) {
                const bool latent = turn < Plan::kLatentChunks;
                const uint64_t chunk = latent
                                           ? wgmma::k_major(query + turn * Plan::chunk_bytes(kRows))
                                           : wgmma::k_major_64(query + Plan::rope(kRows));
#pragma unroll
                for (int32_t i = 0; i < (latent ? 4 : 2); ++i)
                    multiply_e4m3(sum, a[i], chunk + 2 * i, i > 0);
            },
            [&](int32_t turn, const float(&sum)[kRows]) {
                [[maybe_unused]] float scale[2];  // of keys g and g + 8
                if constexpr (Row::kScaled) {
#pragma unroll
                    for (int32_t i = 0; i < 2; ++i)
                        scale[i] = ptx::load_shared_float(keys + (lane / 4 + 8 * i) * Row::kStride +
                                                          kFp8Scales + turn * 4);
                }
#pragma unroll
                for (int32_t i = 0; i < kRows / 2; ++i) {
                    const float both = sum[i] + sum[kRows / 2 + i];
                    if constexpr (Row::kScaled) {
                        s[i] = __fmaf_rn(both, scale[i % 4 / 2], turn == 0 ? 0.0f : s[i]);
                    } else {
                        s[i] = turn == 0 ? both : s[i] + both;
                    }
                }
            });
        if constexpr (Row::kScaled) {
            const uint64_t rope = wgmma::k_major(query + Plan::rope(kRows));
            Operands<4> a;
            float sum[kRows / 2];
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) {
                ptx::load_matrices(a[i], from + Row::kRope + 32 * i);
                for (uint32_t& word : a[i]) word = ptx::bf16_to_f16(word);
            }
            wgmma::fence();
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) multiply_f16(sum, a[i], rope + 2 * i, i > 0);
            wgmma::commit();
            wgmma::wait<0>();
            hold<4>(a);
            wgmma::touch(sum);
#pragma unroll
            for (int32_t i = 0; i < kRows / 2; ++i) s[i] += sum[i];
        }
    }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
