// A math warpgroup of the fp8 loops.
#pragma once

#include <utility>

#include "kernels/attn_verify_mla/wgmma/fp8_query.cuh"
#include "kernels/attn_verify_mla/wgmma/fp8_results.cuh"
#include "kernels/attn_verify_mla/wgmma/fp8_scores.cuh"
#include "kernels/cuda/reference_maximum.h"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A stage of the ring, and the parity of the phase in which it is full.
struct RingTurn {
    uint32_t stage = 0;
    uint32_t parity = 0;
};

/// Works on units of up to kRows rows.
template <kdt_kv_format kFormat, int32_t kMostRows, int32_t kRows>
struct Fp8Math {
    using Plan = Fp8Plan<kFormat, kMostRows>;
    using Row = Fp8Row<kFormat>;
    using Scores = ColumnScores<kRows>;
    using Output = ColumnOutput<kRows>;
    using Rows = OfRows<kRows>;
    using Products = Fp8Scores<kFormat, kMostRows, kRows>;
    using Results = Fp8Results<kFormat, kMostRows, kRows>;
    static constexpr bool kE4m3Scores = Plan::kE4m3;
    static constexpr bool kE4m3Values = Plan::kE4m3 && !Row::kScaled;
    static constexpr int32_t kGroups = kRows / 8;
    static constexpr int32_t kProducts = F16Products<kRows>::kProducts;
    static constexpr int32_t kDepth = F16Products<kRows>::kDepth;
    static constexpr int32_t kAhead = F16Products<kRows>::kAhead;

    const AttnVerifyMlaParams& p;
    uint32_t shared;
    int32_t group;   // of threads: 0 or 1
    int32_t thread;  // of 128
    bool few;        // few_rows() of the block; not if kRows are more
    RingTurn ring;   // the next step's first stage

    __device__ int32_t lane() const { return thread & 31; }
    __device__ int32_t warp() const { return thread >> 5; }
    /// Scores to powers of two, but for e4m3 Q's own scale.
    __device__ float to_log2() const {
        return (Row::kScaled ? p.scale : p.scale * p.kv_scale) * kLog2E;
    }
    /// The same of what compute_scores makes.
    __device__ float score_unit() const {
        return kE4m3Scores || p.logit_cap > 0.0f ? 1.0f : to_log2();
    }
    template <class Value = volatile float>
    __device__ Value* at(int32_t offset) const {
        return static_cast<Value*>(__cvta_shared_to_generic(shared + offset));
    }
    __device__ RowVisibility* visibility() const { return at<RowVisibility>(Plan::kVisibility); }
    /// The unit at hand: what of it is needed again is read from here, no registers across tiles.
    __device__ WorkUnit* unit() const { return at<WorkUnit>(Plan::kUnit); }
    __device__ uint32_t stages() const {
        return kRows == kFewRows && few ? Plan::kFewStages : Plan::kStages;
    }
    __device__ uint32_t stage_address(uint32_t stage) const {
        const bool low = kRows == kFewRows && few;
        return shared + Plan::ring(low ? kFewRows : kMostRows) + stage * Plan::kStageBytes;
    }
    /// The ring's turn `count` stages on.
    __device__ RingTurn turn(uint32_t count) const {
        const uint32_t wraps = ring.stage + count >= stages();
        return {ring.stage + count - (wraps ? stages() : 0), ring.parity ^ wraps};
    }
    /// What follows is worked out from these anew: no registers for it across tiles.
    __device__ __forceinline__ void forget() { asm volatile("" : "+r"(thread), "+r"(shared)); }

    /// Both warpgroups meet.
    __device__ __forceinline__ void meet() const {
        ptx::named_barrier_sync(kMathBarrier, kFp8MathThreads);
    }

    // ---- scores ---------------------------------------------------------------------------------

    /// S^T of 16 keys, whose rows are at `keys`, for each warp, in score_unit().
    __device__ __forceinline__ void compute_scores(uint32_t keys, Scores& s) const {
        if constexpr (kE4m3Scores) {
            Products{shared, lane()}.e4m3(keys, s);
            Rows factor;
            read_rows(Plan::kScoreFactor, factor);
#pragma unroll
            for (int32_t i = 0; i < kRows / 2; ++i) s[i] *= factor[i / 4 * 2 + i % 2];
            if (p.logit_cap > 0.0f) cap_scores<kRows>(p.logit_cap, 1.0f, s);
        } else {
            Products{shared, lane()}.f16(keys, s);
            if (p.logit_cap > 0.0f) cap_scores<kRows>(p.logit_cap, to_log2(), s);
        }
    }

    // ---- softmax --------------------------------------------------------------------------------

    /// This lane's rows of a float [64].
    __device__ __forceinline__ void read_rows(int32_t offset, Rows& v) const {
#pragma unroll
        for (int32_t j = 0; j < kGroups; ++j) {
            const uint2 pair = ptx::load_shared_64(shared + offset + (j * 8 + lane() % 4 * 2) * 4);
            v[2 * j] = __uint_as_float(pair.x);
            v[2 * j + 1] = __uint_as_float(pair.y);
        }
    }
    /// Combines a value of each row over the warp's keys and leaves it in the warp's kParts.
    template <class Combine>
    __device__ __forceinline__ void store_part(Rows& v, const Combine& combine) const {
        reduce_keys<2 * kGroups>(v, lane(), combine);
        volatile float* const to = at(Plan::kParts) + (group * 4 + warp()) * 64 +
                                   reduced_rows<2 * kGroups>(lane()) * 8 + lane() % 4 * 2;
        to[0] = v[0];
        to[1] = v[1];
    }

    /// Moves the references of rows that this step's scores exceed; kFactor has what was summed is
    /// to be multiplied with.
    __device__ __forceinline__ void find_references(const Scores& s) const {
        Rows top;
#pragma unroll
        for (int32_t i = 0; i < 2 * kGroups; ++i)
            top[i] = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + 2 + i % 2]);
        store_part(top, [](float a, float b) { return fmaxf(a, b); });
        meet();
        if (group == 0 && thread < kRows) {
            const volatile float* const part = at(Plan::kParts) + thread;
            float all = part[0];
#pragma unroll
            for (int32_t i = 1; i < 8; ++i) all = fmaxf(all, part[i * 64]);
            const float reference = at(Plan::kReference)[thread];
            float factor = 1.0f;
            if (__fmaf_rn(all, score_unit(), -reference) > kLazyRescale) {
                const float moved = all * score_unit() - kHeadroom;
                factor = ptx::exp2_approx(reference - moved);
                at(Plan::kReference)[thread] = moved;
            }
            at(Plan::kFactor)[thread] = factor;
        }
        meet();
    }
    __device__ __forceinline__ void rescale(Rows& sums, Output& o) const {
        Rows factor;
        read_rows(Plan::kFactor, factor);
#pragma unroll
        for (int32_t i = 0; i < 2 * kGroups; ++i) {
            sums[i] *= factor[i];
#pragma unroll
            for (auto& block : o) {
                block[i / 2 * 4 + i % 2] *= factor[i];
                block[i / 2 * 4 + 2 + i % 2] *= factor[i];
            }
        }
    }

    /// By how many powers of two the scores exceed the references at most; at least 0.
    __device__ __forceinline__ float excess(const Scores& s) const {
        Rows reference;
        read_rows(Plan::kReference, reference);
        float most = 0.0f;
#pragma unroll
        for (int32_t i = 0; i < 2 * kGroups; ++i) {
            const float top = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + 2 + i % 2]);
            most = fmaxf(most, __fmaf_rn(top, score_unit(), -reference[i]));
        }
        return most;
    }

    /// P of rows 8 j + 2 q + {0, 1} in place of their scores.
    __device__ __forceinline__ void exponentials(float* x, const float* reference,
                                                 float* sums) const {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
            x[i] = ptx::exp2_approx(__fmaf_rn(x[i], score_unit(), -reference[i % 2]));
        sums[0] += x[0] + x[2];
        sums[1] += x[1] + x[3];
    }
    /// What stmatrix stores of them: high and low parts, or, in f16, of keys 0..7 and 8..15.
    __device__ __forceinline__ static uint2 probs_words(const float* x) {
        if constexpr (kE4m3Values) {
            const auto split =
                ptx::SplitE4m3::of<kLowProbs>(ptx::pack_f16(x[0], x[2]), ptx::pack_f16(x[1], x[3]));
            return {split.high, split.low};
        } else {
            return {ptx::pack_f16(x[0], x[1]), ptx::pack_f16(x[2], x[3])};
        }
    }
    /// Where this lane points when it stores, transposed, the matrices of P of rows 0..7 and 8..15:
    /// with e4m3 high parts of both, then low parts, with f16 keys 0..7 and 8..15 of the first,
    /// then of the second.
    __device__ __forceinline__ uint32_t probs_address() const {
        const int32_t matrix = lane() / 8;
        const uint32_t probs = shared + Plan::probs(kRows);
        return kE4m3Values ? probs + copy_offset(matrix / 2 * kRows + matrix % 2 * 8 + lane() % 8,
                                                 group * 4 + warp())
                           : probs + group * kRows * 128 +
                                 copy_offset(matrix / 2 * 8 + lane() % 8, 2 * warp() + matrix % 2);
    }

    /// P of this warpgroup's tile to shared memory.
    __device__ __forceinline__ void store_probs(Scores& s, Rows& sums) const {
        Rows reference;
        read_rows(Plan::kReference, reference);
        const uint32_t to = probs_address();
        if constexpr (kGroups == 1) {
            exponentials(s, reference, sums);
            const uint2 words = probs_words(s);
            ptx::store_matrix_pair_transposed(to, words.x, words.y);
        } else {
#pragma unroll
            for (int32_t j = 0; j < kGroups; j += 2) {
                uint2 words[2];
#pragma unroll
                for (int32_t i = 0; i < 2; ++i) {
                    exponentials(s + 4 * (j + i), reference + 2 * (j + i), sums + 2 * (j + i));
                    words[i] = probs_words(s + 4 * (j + i));
                }
                if constexpr (kE4m3Values) std::swap(words[0].y, words[1].x);
                ptx::store_matrices_transposed(to + j * 8 * 128, words[0].x, words[0].y, words[1].x,
                                               words[1].y);
            }
        }
    }

    /// Scores and softmax of the step of two tiles, or one, that begins at `key`. After the unit's
    /// last one all sums are in kParts.
    __device__ __forceinline__ void score(int32_t key, bool mine, bool first, bool last, Rows& sums,
                                          Output& o) {
        Scores s;
        if (mine) {
            const RingTurn of_warp = turn(group * 2 + warp() / 2);
            ptx::mbarrier_wait(shared + Plan::kFull + 8 * of_warp.stage, of_warp.parity);
            compute_scores(stage_address(of_warp.stage) + warp() % 2 * 16 * Row::kStride, s);
            forget();
            const int32_t of_group = key + group * kFp8Keys;
            if (of_group + kFp8Keys > unit()->seen_end) {
                const int32_t first_key = of_group + warp() * 16;
                if (!unit()->is_fast())
                    mask_scores<kRows>(visibility(), first_key, unit()->key_end, lane(), s);
                else
                    mask_tail_columns<kRows>(visibility(), first_key, unit()->key_end,
                                             unit()->context, lane(), s);
            }
        } else {
#pragma unroll
            for (float& x : s) x = -INFINITY;
        }
        // In the unit's first step all references move. Later all have accumulated the step before,
        // too, when they meet: its P and factors are free.
        if (first) {
            find_references(s);
        } else if (ptx::named_barrier_any(kMathBarrier, kFp8MathThreads,
                                          excess(s) > kLazyRescale)) {
            find_references(s);
            rescale(sums, o);
        }
        if (mine) store_probs(s, sums);
        if (last) store_part(sums, [](float a, float b) { return a + b; });
        ptx::fence_async_proxy();
        meet();
    }

    // ---- accumulation ---------------------------------------------------------------------------

    /// Where ldmatrix.trans of this lane points for this warpgroup's columns of 32 keys, the step's
    /// stage `ahead`.
    __device__ __forceinline__ uint32_t values_of(uint32_t ahead) const {
        return stage_address(turn(ahead).stage) + lane() * Row::kStride + group * 256 + warp() * 64;
    }
    /// Gives back the step's stages [first, first + kCount): all that this warp wants of them has
    /// been read.
    template <int32_t kCount>
    __device__ __forceinline__ void release(uint32_t first) const {
        __syncwarp();
#pragma unroll
        for (int32_t i = 0; i < kCount; i += 2)
            ptx::mbarrier_arrive_warp_at<kCount == 1 ? 1 : 2>(
                shared + Plan::kEmpty, turn(first + i).stage, turn(first + i + 1).stage, lane());
    }

    /// O^T += V^T P^T of the step's kTiles tiles, this warpgroup's dimensions, in e4m3. That the
    /// tiles are there follows from their P. `ended(block)` is called when a block of O has them.
    template <int32_t kTiles, class Ended>
    __device__ __forceinline__ void accumulate_e4m3(Output& o, const Ended& ended) const {
        constexpr int32_t kReads = 2 * kTiles;  // of 32 keys
        const uint64_t probs = wgmma::k_major(shared + Plan::probs(kRows));
        uint32_t from[kReads];
#pragma unroll
        for (int32_t i = 0; i < kReads; ++i) from[i] = values_of(i);
        take_sums<4, kReads, kRows, 1>(  // a turn: 16 dimensions a warp
            [&](int32_t block, Operands<kReads>& a) {
#pragma unroll
                for (int32_t i = 0; i < kReads; ++i)
                    ptx::load_matrices_transposed(a[i], from[i] + block * 16);
                if (block == 3) release<kReads>(0);
            },
            [](Operands<kReads>& a) {
#pragma unroll
                for (auto& of : a) value_operand(of);
            },
            [&](int32_t, const Operands<kReads>& a, float(&sum)[kRows]) {
#pragma unroll
                for (int32_t i = 0; i < kReads; ++i) multiply_e4m3(sum, a[i], probs + 2 * i, i > 0);
            },
            [&](int32_t block, const float(&sum)[kRows]) {
#pragma unroll
                for (int32_t i = 0; i < kRows / 2; ++i)
                    o[block][i] += __fmaf_rn(sum[kRows / 2 + i], 1.0f / kLowProbs, sum[i]);
                wgmma::touch(o[block]);  // or the additions would wait for those of all blocks
                ended(block);
            });
    }

    /// Scales of 32 keys each whose rows begin at `rows`, as f16 pairs: of keys 8 i + 2 q + {0, 1}.
    /// `dims`: which 128 dimensions.
    __device__ __forceinline__ void read_scales(const uint32_t (&rows)[kProducts / 2], int32_t dims,
                                                uint32_t (&scales)[2 * kProducts]) const {
#pragma unroll
        for (int32_t i = 0; i < 2 * kProducts; ++i) {
            const uint32_t from =
                rows[i / 4] + (i % 4 * 8 + lane() % 4 * 2) * Row::kStride + kFp8Scales + dims * 4;
            scales[i] = ptx::pack_f16(ptx::load_shared_float(from),
                                      ptx::load_shared_float(from + Row::kStride));
        }
    }

    /// The same in f16, of tile `tile` alone.
    __device__ __forceinline__ void accumulate_f16(int32_t tile, Output& o) const {
        // A turn: 16 kProducts keys, one of the four blocks of 16 dimensions a warp.
        constexpr int32_t kTurns = 16 / kProducts;
        constexpr int32_t kReads = kProducts / 2;  // of 32 keys
        const uint64_t probs = wgmma::k_major(shared + Plan::probs(kRows) + tile * kRows * 128);
        const uint32_t from[2] = {values_of(2 * tile), values_of(2 * tile + 1)};  // of 32 keys each
        Operands<kProducts> a[kDepth];
        uint32_t words[kAhead][2 * kProducts];
        const auto read = [&](int32_t at) {
#pragma unroll
            for (int32_t i = 0; i < kReads; ++i)
                ptx::load_matrices_transposed(words[at % kAhead] + 4 * i,
                                              from[at / 4 * kReads + i] + at % 4 * 16);
        };
        uint32_t scales[2 * kProducts] = {};
#pragma unroll
        for (auto& block : o) wgmma::touch(block);
#pragma unroll
        for (int32_t at = 0; at < kAhead; ++at) read(at);
#pragma unroll
        for (int32_t at = 0; at < kTurns; ++at) {
            const int32_t block = at % 4;
            if constexpr (Row::kScaled) {
                if (block == 0) {
                    uint32_t of_keys[kReads];
#pragma unroll
                    for (int32_t i = 0; i < kReads; ++i)
                        of_keys[i] = stage_address(turn(2 * tile + at / 4 * kReads + i).stage);
                    read_scales(of_keys, group * 2 + warp() / 2, scales);
                }
            }
            auto& of = a[at % kDepth];
            if (at >= kDepth) {
                wgmma::wait<kDepth - 1>();
                hold<kProducts>(of);
            }
            value_operands_f16<kFormat, kProducts>(words[at % kAhead], scales, of);
            if (at + kAhead < kTurns) read(at + kAhead);
            // All of these keys, and of their scales, has been asked for.
            if (block == 2) release<kReads>(2 * tile + at / 4 * kReads);
            wgmma::fence();
#pragma unroll
            for (int32_t i = 0; i < kProducts; ++i) {
                const int32_t step = at / 4 * kProducts + i;
                multiply_f16(o[block], of[i], probs + step * 2, true);
            }
            wgmma::commit();
        }
        wgmma::wait<0>();
#pragma unroll
        for (auto& of : a) hold<kProducts>(of);
#pragma unroll
        for (auto& block : o) wgmma::touch(block);
    }

    // ---- a unit ---------------------------------------------------------------------------------

    /// Works on `work`, which afterwards has nothing but what follows from shared memory;
    /// returns where the ring is behind it. `same_rows`: the unit before had its rows. `started` is
    /// called when Q has been asked for.
    template <class Started>
    __device__ __forceinline__ RingTurn run(WorkUnit& work, const NodeOfRow& node_of,
                                            bool same_rows, const Started& started) {
        forget();
        int32_t key = work.key_begin;
        const int32_t end = work.key_end;
        start(work, node_of, same_rows, started);
        Output o = {};
        Rows sums = {};
        bool first = true;
        for (; end - key > 2 * kFp8Keys; key += 2 * kFp8Keys) {
            forget();
            score(key, true, first, false, sums, o);
            first = false;
            if constexpr (kE4m3Values) {
                forget();
                accumulate_e4m3<2>(o, [](int32_t) {});
            } else {
#pragma unroll 1
                for (int32_t tile = 0; tile < 2; ++tile) {
                    forget();
                    accumulate_f16(tile, o);
                }
            }
            ring = turn(4);
        }
        const bool second = end - key > kFp8Keys;
        forget();
        work = *unit();  // before both meet: afterwards the next unit may take its place
        score(key, group == 0 || second, first, true, sums, o);
        forget();
        if constexpr (kE4m3Values) {
            const Results results(p, work, shared, group, thread);
            const auto store = [&](int32_t block) { results.store(o[block], block); };
            second ? accumulate_e4m3<2>(o, store) : accumulate_e4m3<1>(o, store);
        } else {
#pragma unroll 1
            for (int32_t tile = 0; tile <= second; ++tile) {
                forget();
                accumulate_f16(tile, o);
            }
            const Results results(p, work, shared, group, thread);
#pragma unroll
            for (int32_t block = 0; block < 4; ++block) results.store(o[block], block);
        }
        return turn(second ? 4 : 2);
    }

    /// Q, unless it is there, references, and who is seen. Only Q waits for the kernel before;
    /// everything else is asked for behind it.
    template <class Started>
    __device__ __forceinline__ void start(const WorkUnit& unit, const NodeOfRow& node_of,
                                          bool same_rows, const Started& started) const {
        const int32_t of_block = group * 128 + thread;
        const auto prepare = [&] {
            if (of_block == 0) *this->unit() = unit;
            if (of_block >= kRows) return;
            at(Plan::kReference)[thread] = kNothingSeen;
            const int32_t tiles = (unit.key_end - unit.key_begin + kFp8Keys - 1) / kFp8Keys;
            if (unit.key_begin + tiles * kFp8Keys > unit.seen_end) {
                const AttnRequest request(p.batch, unit);
                const int32_t node = node_of(unit.row_begin + min(thread, unit.rows - 1));
                visibility()[thread] = RowVisibility(p.batch, request, unit, node);
            }
        };
        if (same_rows) {
            prepare();
        } else {
            Fp8QuerySources<kRows> sources(p, unit, node_of, of_block);
            sources.hold();
            ptx::grid_dependency_wait();
            ptx::grid_dependency_launch();
            load_query<kFormat, kMostRows, kRows>(sources, shared, of_block, to_log2(), [&] {
                started();
                prepare();
            });
        }
        ptx::fence_async_proxy();
        meet();
    }
};

/// The math warpgroup `group`: the block's units one after the other, first `unit`, number `index`
/// of `units`.
template <kdt_kv_format kFormat, int32_t kMostRows>
__device__ __forceinline__ void math_fp8(const AttnVerifyMlaParams& p, WorkUnit unit, int32_t index,
                                         int32_t units, uint32_t shared, int32_t group,
                                         int32_t thread) {
    using Plan = Fp8Plan<kFormat, kMostRows>;
    NodeOfRow node_of(p.heads);
    asm volatile("" : "+r"(node_of.reciprocal));  // now, not where the unit's rows are known
    RingTurn ring;
    bool same_rows = false;
    if (index >= units) {
        ptx::grid_dependency_wait();
        return;
    }
    const bool few = few_rows(unit, index, units);
    ptx::store_shared(shared + Plan::kUnits, static_cast<uint32_t>(units));  // all the same
    while (true) {
        const auto started = [&] {
            if (index != blockIdx.x) return;  // not the block's first
            __syncwarp();
            ptx::mbarrier_arrive_warp(shared + Plan::kQueryAsked, thread % 32);
        };
        if (unit.rows <= kFewRows) {
            ring = Fp8Math<kFormat, kMostRows, kFewRows>{p, shared, group, thread, few, ring}.run(
                unit, node_of, same_rows, started);
        } else {
            ring = Fp8Math<kFormat, kMostRows, kMostRows>{p, shared, group, thread, few, ring}.run(
                unit, node_of, same_rows, started);
        }
        const WorkUnit done = unit;
        index = next_unit(done, index);
        if (index >= static_cast<int32_t>(ptx::load_shared_32(shared + Plan::kUnits))) break;
        unit = p.workspace.units[index];
        // The Q of more rows takes the place of the P of few, which the others may still multiply.
        // Otherwise the next unit's first meeting comes before anything of this one is overwritten.
        if (done.rows <= kFewRows && unit.rows > kFewRows)
            ptx::named_barrier_sync(kMathBarrier, kFp8MathThreads);
        same_rows = unit.first_node * p.heads + unit.row_begin ==
                        done.first_node * p.heads + done.row_begin &&
                    unit.rows == done.rows;
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
