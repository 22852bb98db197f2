// The score warpgroup of the fp8 loops.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_fragments.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// S^T of a tile: keys g and g + 8 of the warp's 16; [4 j + {0, 1}] are rows 8 j + 2 q + {0, 1} of
/// key g, [4 j + {2, 3}] of key g + 8.
using ColumnScores = float[32];
/// One value for each of a lane's 16 rows: [2 j + e] is row 8 j + 2 q + e.
using OfRows = float[16];

/// Combines the 8 lanes with equal q: afterwards a lane has, in v[0] and v[1], the results of rows
/// 8 j + 2 q + {0, 1} of j = reduced_rows(lane).
__device__ __forceinline__ int32_t reduced_rows(int32_t lane) {
    return (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
}
template <int32_t kCount = 8, class Combine>
__device__ __forceinline__ void reduce_keys(OfRows& v, int32_t lane, const Combine& combine) {
    constexpr int32_t kDistance = 2 * kCount;
    const bool upper = lane & kDistance;
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
        const float mine = upper ? v[kCount + i] : v[i];
        const float other = __shfl_xor_sync(0xffffffff, upper ? v[i] : v[kCount + i], kDistance);
        v[i] = combine(mine, other);
    }
    if constexpr (kCount > 2) reduce_keys<kCount / 2>(v, lane, combine);
}

template <kdt_kv_format kFormat>
struct Fp8ScoreRole {
    using Plan = Fp8Plan<kFormat>;
    using Row = Fp8Row<kFormat>;
    const AttnVerifyMlaParams& p;
    uint32_t shared;
    int32_t thread;
    float scale;  // of S, before a cap
    float to_log2;
    Turn<kFp8Stages> turn{0};

    __device__ Fp8ScoreRole(const AttnVerifyMlaParams& params, uint32_t address, int32_t of_role)
        : p(params),
          shared(address),
          thread(of_role),
          scale(Row::kScaled ? p.scale : p.scale * p.kv_scale),
          to_log2(score_factor(p, scale)) {}

    __device__ int32_t lane() const { return thread % 32; }
    __device__ int32_t warp() const { return thread / 32; }
    template <class Value = float>
    __device__ Value* at(int32_t offset) const {
        return static_cast<Value*>(__cvta_shared_to_generic(shared + offset));
    }
    __device__ uint32_t p_turn() const { return turn.count & 1; }
    __device__ uint32_t p_parity() const { return turn.count >> 1 & 1; }

    /// Q to shared memory as f16, columns in the order of K's words. Bf16 values are copied to
    /// where they belong and converted there, a block of 16 values by the thread that copied it.
    template <class Started>
    __device__ __forceinline__ void load_q(const WorkUnit& unit, const Started& started) const {
        constexpr int32_t kBlocks = kMlaHeadDim / 16;
        const QueryRows query{p, unit};
        const auto place = [&](int32_t i) {
            const int32_t block = i % kBlocks;
            return shared + Plan::kQ + block / 4 * kQChunkBytes +
                   copy_offset(i / kBlocks, block % 4 * 2);
        };
        const int32_t count = unit.rows * kBlocks;
#pragma unroll 2
        for (int32_t i = thread; i < count; i += 128) {
            const int32_t row = i / kBlocks;
            const int32_t block = i % kBlocks;
            constexpr int32_t kLatentBlocks = kMlaLatent / 16;
            const std::byte* from = block < kLatentBlocks
                                        ? query.latent(row) + block * 32
                                        : query.rope(row) + (block - kLatentBlocks) * 32;
            ptx::copy_async_16(place(i), from, true);
            ptx::copy_async_16(place(i) ^ 16, from + 16, true);
        }
        ptx::copy_async_commit();
        started();
        set_visibility(unit);
        ptx::copy_async_wait<0>();
#pragma unroll 2
        for (int32_t i = thread; i < count; i += 128) {
            const uint32_t to = place(i);
            const uint4 a = ptx::load_shared_128(to);
            const uint4 b = ptx::load_shared_128(to ^ 16);
            uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (uint32_t& word : w) word = ptx::bf16_to_f16(word);
            const bool natural = Row::kScaled && i % kBlocks >= kMlaLatent / 16;  // bf16 rope
            if (natural) {
                ptx::store_shared(to, make_uint4(w[0], w[1], w[2], w[3]));
                ptx::store_shared(to ^ 16, make_uint4(w[4], w[5], w[6], w[7]));
            } else {
                ptx::store_shared(to, make_uint4(w[0], w[2], w[4], w[6]));
                ptx::store_shared(to ^ 16, make_uint4(w[1], w[3], w[5], w[7]));
            }
        }
        ptx::fence_async_proxy();
        ptx::named_barrier_sync(kScoreBarrier, 128);
    }

    __device__ RowVisibility* visibility() const {
        return at<RowVisibility>(Plan::kVisibility);
    }
    __device__ __forceinline__ void set_visibility(const WorkUnit& unit) const {
        if (thread >= kTileRows) return;
        const AttnRequest request(p.batch, unit);
        const int32_t packed = unit.row_begin + min(thread, unit.rows - 1);
        visibility()[thread] = RowVisibility(p.batch, request, unit, packed / p.heads);
    }

    /// The 16-byte pieces of chunk `chunk` that make this lane's operands: 8 words, bf16 rope 16.
    __device__ __forceinline__ void read_keys(uint32_t keys, int32_t chunk,
                                              uint32_t (&words)[16]) const {
        const uint32_t from = keys + key_offset(lane(), Row::kStride);
        if (Row::kScaled && chunk == kChunks - 1) {
#pragma unroll
            for (int32_t step = 0; step < 4; ++step)
                ptx::load_matrices(words + 4 * step, from + Row::kRope + step * 32);
        } else {
            ptx::load_matrices(words, from + chunk * 64);
            ptx::load_matrices(words + 4, from + chunk * 64 + 32);
        }
    }
    /// `scales`: f16 pairs, of keys g and g + 8.
    __device__ __forceinline__ static void operands(const uint32_t (&words)[16], bool bf16,
                                                    const uint32_t (&scales)[2], FourA& a) {
#pragma unroll
        for (int32_t step = 0; step < 4; ++step) {
            if (bf16) {
                a[step][0] = ptx::bf16_to_f16(words[4 * step]);
                a[step][1] = ptx::bf16_to_f16(words[4 * step + 2]);
                a[step][2] = ptx::bf16_to_f16(words[4 * step + 1]);
                a[step][3] = ptx::bf16_to_f16(words[4 * step + 3]);
                continue;
            }
            const uint32_t* const pair = words + step / 2 * 4 + step % 2;
            ptx::widen_e4m3(pair[0], a[step][0], a[step][2]);
            ptx::widen_e4m3(pair[2], a[step][1], a[step][3]);
            if constexpr (Row::kScaled) {
#pragma unroll
                for (int32_t i = 0; i < 4; ++i)
                    a[step][i] = ptx::multiply_f16(a[step][i], scales[i % 2]);
            }
        }
    }

    /// S^T of the tile whose rows are at `keys`, this warp's 16.
    __device__ __forceinline__ void compute_scores(uint32_t keys, ColumnScores& s) const {
        uint32_t scales[4][2] = {};  // of a group of 128 dimensions
        if constexpr (Row::kScaled) {
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                const uint4 four =
                    ptx::load_shared_128(keys + (lane() / 4 + 8 * i) * Row::kStride + kFp8Scales);
                const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int32_t group = 0; group < 4; ++group) {
                    const float x = __uint_as_float(words[group]);
                    scales[group][i] = ptx::pack_f16(x, x);
                }
            }
        }
        const uint64_t query = wgmma::k_major(shared + Plan::kQ);
        FourA a[2];
        uint32_t words[16];
        read_keys(keys, 0, words);
#pragma unroll
        for (int32_t chunk = 0; chunk < kChunks; ++chunk) {
            FourA& of = a[chunk % 2];
            if (chunk >= 2) {
                wgmma::wait<1>();
                hold(of);
            }
            operands(words, Row::kScaled && chunk == kChunks - 1, scales[chunk / 2 % 4], of);
            wgmma::fence();
#pragma unroll
            for (int32_t step = 0; step < 4; ++step)
                wgmma::rs_n64<true>(s, of[step], query + chunk * (kQChunkBytes >> 4) + step * 2,
                                    chunk + step > 0);
            wgmma::commit();
            if (chunk + 1 < kChunks) read_keys(keys, chunk + 1, words);
        }
        wgmma::wait<0>();
        hold(a[0]);
        hold(a[1]);
        wgmma::touch(s);
    }

    /// tanh(s * scale / cap), from an exponential: tanh.approx is too coarse for scores.
    __device__ __forceinline__ void cap_scores(ColumnScores& s) const {
        constexpr float kTwoLog2E = 2.8853900817779268f;
        const float inner = scale / p.logit_cap * kTwoLog2E;
#pragma unroll
        for (float& x : s) x = 1.0f - __fdividef(2.0f, 1.0f + ptx::exp2_approx(x * inner));
    }

    __device__ __forceinline__ void mask_scores(int32_t key, int32_t key_end,
                                                ColumnScores& s) const {
        const int32_t first = key + warp() * 16 + lane() / 4;
#pragma unroll
        for (int32_t i = 0; i < 16; ++i) {
            const RowVisibility row = visibility()[i / 2 * 8 + lane() % 4 * 2 + i % 2];
#pragma unroll
            for (int32_t half = 0; half < 2; ++half) {
                const int32_t of = first + 8 * half;
                if (of >= key_end || !row.sees(of)) s[i / 2 * 4 + 2 * half + i % 2] = -INFINITY;
            }
        }
    }

    /// What a thread < kTileRows keeps of row `thread` from tile to tile: the reference, at most
    /// kLazyRescale below the true maximum.
    struct Reference {
        float maximum = -INFINITY;
        __device__ float base() const { return maximum == -INFINITY ? 0.0f : maximum; }
    };

    /// Softmax of a tile; hands its P and the factors of what was accumulated before it over.
    __device__ __forceinline__ void soften(ColumnScores& s, Reference& reference,
                                           OfRows& sums) const {
        OfRows top;
#pragma unroll
        for (int32_t i = 0; i < 16; ++i)
            top[i] = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + 2 + i % 2]);
        reduce_keys(top, lane(), [](float a, float b) { return fmaxf(a, b); });
        const int32_t mine = lane() % 4 * 2;  // row of this lane in 8
        float* const maxima = at(Plan::kMaxima);
        *reinterpret_cast<float2*>(maxima + warp() * 64 + reduced_rows(lane()) * 8 + mine) =
            make_float2(top[0], top[1]);
        // Factors and P of the tile before the last have been used.
        ptx::mbarrier_wait(shared + Plan::kPEmpty + 8 * p_turn(), p_parity() ^ 1);
        ptx::named_barrier_sync(kScoreBarrier, 128);
        float* const factors = at(Plan::kFactor) + p_turn() * 64;
        auto* const flags = at<int32_t>(Plan::kRescaleFlag) + p_turn() * 2;
        if (thread < kTileRows) {
            const float all = fmaxf(fmaxf(maxima[thread], maxima[64 + thread]),
                                    fmaxf(maxima[128 + thread], maxima[192 + thread])) *
                              to_log2;
            float factor = 1.0f;
            if (all > reference.maximum + kLazyRescale) {
                factor = ptx::exp2_approx(reference.maximum - all);
                reference.maximum = all;
            }
            factors[thread] = factor;
            at(Plan::kBase)[thread] = reference.base();
            const bool rescale = __any_sync(0xffffffff, factor != 1.0f);
            if (lane() == 0) flags[warp()] = rescale;
        }
        ptx::named_barrier_sync(kScoreBarrier, 128);
        if (flags[0] | flags[1]) {
#pragma unroll
            for (int32_t j = 0; j < 8; ++j) {
                const float2 factor = *reinterpret_cast<const float2*>(factors + 8 * j + mine);
                sums[2 * j] *= factor.x;
                sums[2 * j + 1] *= factor.y;
            }
        }
        const uint32_t to =
            shared + Plan::kP + p_turn() * Plan::kPBytes + probs_offset(warp(), lane());
#pragma unroll
        for (int32_t j = 0; j < 8; j += 2) {
            uint32_t words[4];
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                const float2 base =
                    *reinterpret_cast<const float2*>(at(Plan::kBase) + 8 * (j + i) + mine);
                float* const x = s + 4 * (j + i);
                x[0] = ptx::exp2_approx(__fmaf_rn(x[0], to_log2, -base.x));
                x[1] = ptx::exp2_approx(__fmaf_rn(x[1], to_log2, -base.y));
                x[2] = ptx::exp2_approx(__fmaf_rn(x[2], to_log2, -base.x));
                x[3] = ptx::exp2_approx(__fmaf_rn(x[3], to_log2, -base.y));
                sums[2 * (j + i)] += x[0] + x[2];
                sums[2 * (j + i) + 1] += x[1] + x[3];
                words[2 * i] = ptx::pack_f16(x[0], x[1]);
                words[2 * i + 1] = ptx::pack_f16(x[2], x[3]);
            }
            ptx::store_matrices_transposed(to + j * 8 * 128, words[0], words[1], words[2],
                                           words[3]);
        }
        ptx::fence_async_proxy();
        __syncwarp();
        if (lane() == 0) ptx::mbarrier_arrive(shared + Plan::kPFull + 8 * p_turn());
    }

    __device__ __forceinline__ void unit_tiles(const WorkUnit& unit, Reference& reference,
                                               OfRows& sums) {
        const int32_t free_of_mask = p.batch.sliding_window > 0 ? 0 : unit.seen_end;
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kFp8Keys, ++turn.count) {
            ptx::mbarrier_wait(shared + Plan::kFull + 8 * turn.stage(), turn.parity());
            ColumnScores s;
            compute_scores(
                shared + Plan::kKv + turn.stage() * Plan::kStageBytes + warp() * 16 * Row::kStride,
                s);
            __syncwarp();
            if (lane() == 0) ptx::mbarrier_arrive(shared + Plan::kEmpty + 8 * turn.stage());
            if (p.logit_cap > 0.0f) cap_scores(s);
            if (key + kFp8Keys > free_of_mask) mask_scores(key, unit.key_end, s);
            soften(s, reference, sums);
        }
    }

    __device__ __forceinline__ void finish(const WorkUnit& unit, uint32_t unit_parity,
                                           const Reference& reference, OfRows& sums) const {
        reduce_keys(sums, lane(), [](float a, float b) { return a + b; });
        float* const parts = at(Plan::kMaxima);  // read before the last tile's second barrier
        *reinterpret_cast<float2*>(parts + warp() * 64 + reduced_rows(lane()) * 8 +
                                   lane() % 4 * 2) = make_float2(sums[0], sums[1]);
        ptx::mbarrier_wait(shared + Plan::kTaken, unit_parity ^ 1);
        ptx::named_barrier_sync(kScoreBarrier, 128);
        if (thread < kTileRows) {
            const float sum =
                (parts[thread] + parts[64 + thread]) + (parts[128 + thread] + parts[192 + thread]);
            const float value_scale = Row::kScaled ? 1.0f : p.kv_scale;
            at(Plan::kInverse)[thread] = sum == 0.0f ? 0.0f : value_scale / sum;
            store_lse(p, unit, thread, row_lse(reference.maximum, sum));
        }
        __syncwarp();
        if (lane() == 0) ptx::mbarrier_arrive(shared + Plan::kFinal);
    }

    __device__ __forceinline__ void run() {
        WorkUnit unit = p.workspace.units[blockIdx.x];
        const int32_t units = p.workspace.header->units;
        ptx::grid_dependency_wait();
        ptx::grid_dependency_launch();
        uint32_t unit_parity = 0;
        for (int32_t index = first_unit(p.workspace); index < units;
             index = next_unit(unit, index), unit_parity ^= 1) {
            if (index != blockIdx.x) unit = p.workspace.units[index];
            load_q(unit, [&] {
                if (index == blockIdx.x) ptx::named_barrier_arrive(kQueryBarrier, 256);
            });
            Reference reference;
            OfRows sums = {};
            unit_tiles(unit, reference, sums);
            finish(unit, unit_parity, reference, sums);
        }
    }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
