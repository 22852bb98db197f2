// The GQA verify kernel: grid <= 1 block a multiprocessor, 384 threads; which units of the plan a
// block works off, or pairs of them, says UnitWalk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attn_verify_gqa/cuda/gqa_epilogue.cuh"
#include "kernels/attn_verify_gqa/cuda/gqa_producer.cuh"
#include "kernels/attn_verify_gqa/cuda/gqa_products.cuh"

namespace kd::gqa {

/// Each of a group's 4 warps arrives, `arrivals` times, when it has read the stage.
__device__ __forceinline__ void release(uint32_t barrier, int32_t lane, uint32_t arrivals) {
    __syncwarp();
    ptx::mbarrier_arrive_warp(barrier, lane, arrivals);
}

/// Turns at the tensor cores of groups that take the same tiles: without them both groups issue
/// their products together, then compute their softmax together. Barrier kTurnBarrier + g: group g
/// waits until the other one has issued. Predicated, not branched: products are in flight around
/// them.
inline constexpr int32_t kTurnBarrier = kConsumerBarrier + 1 + kGroups;
__device__ __forceinline__ void wait_turn(bool turns, int32_t group) {
    asm volatile(
        "{\n"
        ".reg .pred turns;\n"
        "setp.ne.b32 turns, %0, 0;\n"
        "@turns bar.sync %1, %2;\n"
        "}\n" ::"r"(static_cast<int32_t>(turns)),
        "r"(kTurnBarrier + group), "n"(kConsumers)
        : "memory");
}
__device__ __forceinline__ void pass_turn(bool turns, int32_t group) {
    asm volatile(
        "{\n"
        ".reg .pred turns;\n"
        "setp.ne.b32 turns, %0, 0;\n"
        "@turns bar.arrive %1, %2;\n"
        "}\n" ::"r"(static_cast<int32_t>(turns)),
        "r"(kTurnBarrier + (group ^ 1)), "n"(kConsumers)
        : "memory");
}

/// Whether Q and what its rows see stay the same.
__device__ __forceinline__ bool has_same_rows(const WorkUnit& unit, const WorkUnit& next) {
    return next.first_node == unit.first_node && next.row_begin == unit.row_begin &&
           next.rows == unit.rows && next.kv_head == unit.kv_head && next.path_node < 0 &&
           unit.path_node < 0;
}

/// Which tiles of the ring a group takes for its unit.
struct GroupTiles {
    int32_t first;      // tile of the unit
    int32_t step;       // from one to the next
    int32_t count;      // of the unit
    int32_t in_ring;    // of the unit or the pair
    int32_t alternate;  // tiles of the unit which stand in the ring by turns with the other group's
    bool turns;         // at the tensor cores
    bool shared;        // both groups read each tile

    /// A group that shares its unit takes the tiles at even (0) or odd (1) multiples of kKeys,
    /// wherever the unit begins and whatever the ring holds: which keys of a row are summed
    /// together depends on their positions alone.
    template <class Config>
    __device__ static GroupTiles of_unit(const WorkUnit& unit, int32_t group) {
        const int32_t tiles = unit_tiles<Config>(unit);
        return {.first = group ^ (unit.key_begin / Config::kKeys & 1),
                .step = kGroups,
                .count = tiles,
                .in_ring = tiles,
                .alternate = INT32_MAX,
                .turns = false,
                .shared = false};
    }
    /// `beside`: the other group's.
    template <class Config>
    __device__ static GroupTiles of_pair(const WorkUnit& unit, const WorkUnit& beside) {
        const int32_t tiles = unit_tiles<Config>(unit);
        const int32_t others = unit_tiles<Config>(beside);
        const bool same = same_keys(unit, beside);
        return {.first = 0,
                .step = 1,
                .count = tiles,
                .in_ring = same ? tiles : tiles + others,
                .alternate = same ? 0 : min(tiles, others),
                .turns = same,
                .shared = same};
    }

    /// From the ring's first tile to this group's first one.
    __device__ int32_t begin(int32_t group) const {
        return step > 1 ? first : alternate > 0 ? group : 0;
    }
    /// Stages from this group's tile before `tile` to that one.
    __device__ int32_t stages_to(int32_t tile, int32_t group) const {
        return tile < alternate ? kGroups : tile == alternate ? kGroups - group : 1;
    }
};

/// racecheck loses sight of the groups' common barrier once they have met at their own ones
/// unequally often: in its build a group makes up for the tile that it has fewer.
template <class Config>
__device__ __forceinline__ void even_out_barriers(const GroupTiles& tiles, int32_t group_barrier) {
    if constexpr (ptx::kAllLanesArrive && Config::kWgmma && Config::kFp8) {
        if (tiles.count % 2 == 0 || tiles.first == 0) return;
        constexpr int32_t kOfTile = Config::kRawKeys ? 1 : 2;
        for (int32_t i = 0; i < kOfTile; ++i) ptx::named_barrier_sync(group_barrier, kGroupThreads);
    }
}

/// Consumer group: its units one after the other. What cp.async and its barrier delivered needs no
/// fence before wgmma; converted tiles, ordinary writes, do.
template <class Config>
__device__ __forceinline__ void consume(const AttnVerifyGqaCudaParams& params, int32_t stages,
                                        char* s_ring, char* s_converted, char* s_query,
                                        typename Config::State& state) {
    constexpr int32_t kSteps = Config::kKeys / 16;
    constexpr int32_t kQuerySteps = Config::kQueryInRegisters ? Config::kHeadDim / 16 : 1;
    const int32_t group = threadIdx.x / kGroupThreads;
    const int32_t thread = threadIdx.x % kGroupThreads;
    const int32_t warp = thread / 32;
    const int32_t lane = thread % 32;
    const int32_t group_barrier = kConsumerBarrier + 1 + group;
    const int32_t first_row = warp * 16 + lane / 4;
    uint32_t ring = ptx::smem_address(s_ring);
    // Places known from the ring's: else the compiler works them out anew in every tile. The number
    // of stages of mma.sync, which lies between, is not known to it.
    if constexpr (Config::kWgmma) asm volatile("" : "+r"(ring));
    const auto address = [&](const void* in_block) {
        if constexpr (!Config::kWgmma) return ptx::smem_address(in_block);
        return ring + static_cast<uint32_t>(static_cast<const char*>(in_block) - s_ring);
    };
    const uint32_t query = address(s_query);
    const uint32_t converted = address(s_converted) + group * 2 * Config::kHalfTileBytes;
    const uint32_t barriers = address(&state.barriers);
    RowRange(&rows)[kTileRows] = state.rows[Config::kPairs ? group : 0];
    const WorkUnit* const list = params.workspace.units;
    const int32_t side = UnitWalk::planned_pairs<Config>(params) ? group : 0;
    WorkUnit unit = list[UnitWalk::likely_first<Config>(params) + side];
    WorkUnit beside = list[UnitWalk::likely_first<Config>(params) + (side ^ 1)];
    const UnitWalk walk = UnitWalk::of<Config>(params);
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();

    if constexpr (Config::kOverlap) pass_turn(walk.pairs && group == 1, group);
    uint32_t tiles_before = 0;
    int32_t buffer = 0;  // of converted V
    uint32_t q[kQuerySteps][4];
    float row_scale[2] = {1.0f, 1.0f};
    bool first = true;
    for (int32_t u = walk.first; u < walk.units; u = walk.next(unit, u)) {
        bool same_rows = false;
        if (!first || (walk.pairs && !walk.planned)) {
            const WorkUnit next = list[walk.pairs ? u + group : u];
            same_rows = !Config::kRawKeys && !first && has_same_rows(unit, next);
            unit = next;
            if (walk.pairs) beside = list[u + (group ^ 1)];
        }
        first = false;
        const GroupTiles tiles = walk.pairs ? GroupTiles::of_pair<Config>(unit, beside)
                                            : GroupTiles::of_unit<Config>(unit, group);
        const uint32_t first_in_ring = tiles_before;
        tiles_before += tiles.in_ring;
        const uint32_t arrivals = tiles.shared ? 1 : kGroups;
        const AttnRequest request(params.batch, unit);

        if constexpr (Config::kPairs) {
            // A unit without keys, beside one that is alone, has no rows. Its group goes the same
            // way, so that all meet at one place of the program.
            if (!same_rows && tiles.count > 0) {
                if constexpr (Config::kRawKeys)
                    load_query_raw<Config>(params, unit, first_row, lane, q, row_scale);
                // Rows, and Q where registers allow it, are asked for before either is there.
                const RowRange range = row_range(params, unit, request, thread % kTileRows);
                if constexpr (!Config::kRawKeys)
                    load_query_registers<Config>(params, unit, first_row, lane, q);
                ptx::named_barrier_sync(group_barrier, kGroupThreads);  // rows are no longer read
                if (thread < kTileRows) rows[thread] = range;
                ptx::named_barrier_sync(group_barrier, kGroupThreads);
            }
        } else {
            ptx::named_barrier_sync(kConsumerBarrier, kConsumers);  // the last merge is over
            load_query<Config>(params, unit, request.first_node, s_query);
            if (threadIdx.x < kTileRows)
                rows[threadIdx.x] = row_range(params, unit, request, thread);
            if constexpr (Config::kWgmma) ptx::fence_async_proxy();
            ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
            if constexpr (Config::kQueryInRegisters) {
#pragma unroll
                for (int32_t i = 0; i < kQuerySteps; ++i)
                    load_query_fragment(q[i], query, i, warp, lane);
            }
        }
        // Tiles within [free_begin, free_end) are seen whole by all rows of this warp.
        const RowRange& lane_row = rows[warp * 16 + lane % 16];
        const int32_t free_begin = __reduce_max_sync(~0u, lane_row.first);
        const int32_t free_end = min(unit.key_end, __reduce_min_sync(~0u, lane_row.limit));

        const ScoreScale scale(Config::kFp8 ? params.scale * params.k_scale : params.scale,
                               params.logit_cap, row_scale);
        float o[Config::kOutDim / 2];
#pragma unroll
        for (int32_t i = 0; i < Config::kOutDim / 2; ++i) o[i] = 0;
        Running running;
        RingPosition place(first_in_ring + tiles.begin(group), stages);

        const auto full = [&](const RingPosition& at) {
            return barriers + static_cast<uint32_t>(offsetof(Barriers, full)) + at.stage * 8;
        };
        const auto empty = [&](const RingPosition& at) {
            return barriers + static_cast<uint32_t>(offsetof(Barriers, empty)) + at.stage * 8;
        };
        const auto k_of = [&](const RingPosition& at) {
            return ring + at.stage * Config::kStageBytes;
        };
        float s[Config::kKeys / 2];
        float probabilities[Config::kKeys / 2];
        uint32_t p[kSteps][4];
        float rescale[2];
        // kFirst: the unit's first tile, of a loop that has it in a place of its own.
        const auto soften = [&]<bool kFirst = false>(int32_t tile) {
            const int32_t key_begin = unit.key_begin + tile * Config::kKeys;
            const bool masked = key_begin < free_begin || key_begin + Config::kKeys > free_end;
            const bool first = !Config::kOverlap && tile == tiles.first;
            if (scale.prepared || masked || first) [[unlikely]] {
                scale.prepare(s);
                if (masked) {
                    const int32_t quad = lane % 4;
                    uint32_t seen = 0;
#pragma unroll
                    for (int32_t i = 0; i < 2; ++i)
                        seen |=
                            visible_columns(rows[first_row + 8 * i], key_begin, unit.key_end, quad)
                            << (16 * i);
                    if (key_begin + Config::kKeys > request.context) {
                        const int32_t node = key_begin - request.context;
                        const uint32_t last = first_columns(unit.key_end - key_begin, quad);
#pragma unroll
                        for (int32_t i = 0; i < 2; ++i)
                            seen |=
                                (columns_of(visible_nodes(rows[first_row + 8 * i], node), quad) &
                                 last)
                                << (16 * i);
                    }
                    mask_scores(s, seen);
                }
                if constexpr (!kFirst) begin_rows(s, scale.factor, running);
            }
            return softmax<kFirst>(s, scale.factor, lane, running, probabilities, rescale);
        };
        const auto pack = [&] {
#pragma unroll
            for (int32_t i = 0; i < kSteps; ++i)
                pack_probabilities<Config::kFp8>(p[i], probabilities, i);
        };
        const auto rescale_outputs = [&] {
#pragma unroll
            for (int32_t i = 0; i < Config::kOutDim / 2; ++i) o[i] *= rescale[i % 4 / 2];
        };

        if constexpr (Config::kOverlap) {
            if (tiles.first < tiles.count) {
                ptx::mbarrier_wait(full(place), place.parity);
                issue_scores_wgmma<Config>(s, q, query, k_of(place));
                wgmma::wait<0>();
                wgmma::touch(s);
                soften.template operator()<true>(tiles.first);
                pack();
                for (int32_t tile = tiles.first + tiles.step; tile < tiles.count;
                     tile += tiles.step) {
                    const RingPosition last = place;
                    place.advance(tiles.stages_to(tile, group), stages);
                    ptx::mbarrier_wait(full(place), place.parity);
                    wait_turn(tiles.turns, group);
                    issue_scores_wgmma<Config>(s, q, query, k_of(place));
                    issue_output_wgmma<Config>(o, p, k_of(last) + Config::kMatrixBytes);
                    pass_turn(tiles.turns, group);
                    wgmma::wait<1>();
                    wgmma::touch(s);
                    const bool moved = soften(tile);
                    wgmma::wait<0>();
                    wgmma::touch(o);
                    release(empty(last), lane, arrivals);
                    if (moved) [[unlikely]]
                        rescale_outputs();
                    pack();
                }
                // Read again rather than kept in registers, of which the loop needs all.
                unit = list[walk.pairs ? u + group : u];
                issue_output_wgmma<Config>(o, p, k_of(place) + Config::kMatrixBytes);
                wgmma::wait<0>();
                wgmma::touch(o);
                release(empty(place), lane, arrivals);
            }
        } else if constexpr (Config::kRawKeys) {
            for (int32_t tile = tiles.first; tile < tiles.count; tile += tiles.step) {
                ptx::mbarrier_wait(full(place), place.parity);
                const RawPart<Config> values(k_of(place) + Config::kMatrixBytes, thread);
                issue_scores_raw(s, q, k_of(place));
                // The products with the other buffer's tile may still run; those with this one's
                // are over for all: each warp has waited for them before it met the barrier.
                const uint32_t v = converted + buffer * Config::kHalfTileBytes;
                values.convert(v, thread);
                wgmma::wait<0>();
                wgmma::touch(s);
                wgmma::touch(o);
                release(empty(place), lane, arrivals);
                if (soften(tile)) [[unlikely]]
                    rescale_outputs();
                pack();
                ptx::fence_async_proxy();  // late: it waits for the stores
                ptx::named_barrier_sync(group_barrier, kGroupThreads);
                issue_output_wgmma<Config>(o, p, v);
                buffer ^= 1;
                place.advance(tiles.stages_to(tile + tiles.step, group), stages);
            }
            wgmma::wait<0>();
            wgmma::touch(o);
        } else {
            for (int32_t tile = tiles.first; tile < tiles.count; tile += tiles.step) {
                const uint32_t k = k_of(place);
                const uint32_t v = k + Config::kMatrixBytes;
                ptx::mbarrier_wait(full(place), place.parity);
                if constexpr (!Config::kWgmma) {
                    scores_mma_sync<Config>(s, q, query, k, warp, lane);
                } else if constexpr (!Config::kFp8) {
                    issue_scores_wgmma<Config>(s, q, query, k);
                    wgmma::wait<0>();
                    wgmma::touch(s);
                } else {
                    RawPart<Config>(k, thread).convert(converted, thread);
                    ptx::fence_async_proxy();
                    ptx::named_barrier_sync(group_barrier, kGroupThreads);
                    issue_scores_wgmma<Config>(s, q, query, converted);
                    RawPart<Config>(v, thread).convert(converted + Config::kHalfTileBytes, thread);
                    release(empty(place), lane, arrivals);
                    ptx::fence_async_proxy();
                    wgmma::wait<0>();
                    wgmma::touch(s);
                }
                if (soften(tile)) [[unlikely]]
                    rescale_outputs();
                pack();
                if constexpr (!Config::kWgmma) {
                    output_mma_sync<Config>(o, p, v, lane);
                    release(empty(place), lane, arrivals);
                } else if constexpr (!Config::kFp8) {
                    issue_output_wgmma<Config>(o, p, v);
                    wgmma::wait<0>();
                    wgmma::touch(o);
                    release(empty(place), lane, arrivals);
                } else {
                    // Also: no warp still reads the converted K, which the next tile overwrites.
                    ptx::named_barrier_sync(group_barrier, kGroupThreads);
                    issue_output_wgmma<Config>(o, p, converted + Config::kHalfTileBytes);
                    wgmma::wait<0>();
                    wgmma::touch(o);
                }
                place.advance(tiles.step, stages);
            }
        }
        if constexpr (Config::kPairs) {
            if (walk.pairs) {
                normalise_and_store<Config>(params, unit, o, running);
                // A group sees only its own tiles land, and a parity tells a phase from the next
                // one alone: where the other group has more tiles, the ring may be rounds behind
                // what this one would wait for. Both have seen all of the pair's land after this.
                if (!tiles.shared) ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
                continue;
            }
        }
        even_out_barriers<Config>(tiles, group_barrier);
        merge_and_store<Config>(params, unit, o, running, state.stats,
                                reinterpret_cast<float4*>(s_query));
    }
    if constexpr (Config::kOverlap) wait_turn(walk.pairs && group == 0, group);
}

template <class Config>
__global__ void __launch_bounds__(kThreads, 1)
    attn_verify_gqa_kernel(const __grid_constant__ AttnVerifyGqaCudaParams params,
                           int32_t most_stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr bool kServed = true;
#else
    constexpr bool kServed = !Config::kWgmma;
#endif
    if constexpr (kServed) {
        extern __shared__ __align__(1024) char s_memory[];
        // Known to the compiler where one class of device is served.
        const int32_t stages = Config::kWgmma ? Config::stages_in(kSharedBytesSm90) : most_stages;
        char* s_converted = s_memory + stages * Config::kStageBytes;
        char* s_query = s_converted + Config::kConvertedBytes;
        auto& state = *reinterpret_cast<typename Config::State*>(s_query + Config::kQueryBytes);

        if (threadIdx.x == 0) {
            for (int32_t i = 0; i < stages; ++i) {
                ptx::mbarrier_init(ptx::smem_address(&state.barriers.full[i]), kProducers);
                ptx::mbarrier_init(ptx::smem_address(&state.barriers.empty[i]),
                                   kReleases * ptx::kWarpArrivals);
            }
            ptx::mbarrier_init_fence();
        }
        __syncthreads();

        if (threadIdx.x >= kConsumers) {
            ptx::setmaxnreg_decrease<Config::kProducerRegisters>();
            produce<Config>(params, stages, ptx::smem_address(s_memory), state.barriers);
        } else {
            ptx::setmaxnreg_increase<Config::kConsumerRegisters>();
            consume<Config>(params, stages, s_memory, s_converted, s_query, state);
        }
    }
}

}  // namespace kd::gqa
