// The GQA verify kernel: grid <= 1 block a multiprocessor, 384 threads; block b works off units b,
// b + grid, ... of the plan.
#pragma once

#include <cstdint>

#include "kernels/attn_verify_gqa/cuda/gqa_epilogue.cuh"
#include "kernels/attn_verify_gqa/cuda/gqa_producer.cuh"
#include "kernels/attn_verify_gqa/cuda/gqa_products.cuh"

namespace kd::gqa {

/// One lane of each of a group's 4 warps arrives, when its warp has read the buffer.
__device__ __forceinline__ void release(uint64_t& barrier, int32_t lane) {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&barrier));
}

/// Group g takes the tiles at even (0) or odd (1) multiples of kKeys, wherever the unit begins and
/// whatever the ring holds: which keys of a row are summed together depends on their positions
/// alone. Copies (and conversions) are ordinary writes, wgmma reads through the asynchronous proxy:
/// hence a fence between a barrier and the products.
template <class Config>
__device__ __forceinline__ void consume(const AttnVerifyGqaCudaParams& params, int32_t stages,
                                        char* s_ring, char* s_converted, char* s_query,
                                        BlockState& state) {
    constexpr int32_t kSteps = Config::kKeys / 16;
    constexpr int32_t kQuerySteps = Config::kQueryInRegisters ? Config::kHeadDim / 16 : 1;
    const int32_t group = threadIdx.x / kGroupThreads;
    const int32_t thread = threadIdx.x % kGroupThreads;
    const int32_t warp = thread / 32;
    const int32_t lane = thread % 32;
    const int32_t group_barrier = kConsumerBarrier + 1 + group;
    const int32_t first_row = warp * 16 + lane / 4;
    const uint32_t ring = ptx::smem_address(s_ring);
    const uint32_t query = ptx::smem_address(s_query);
    char* s_k = s_converted + group * 2 * Config::kHalfTileBytes;
    char* s_v = s_k + Config::kHalfTileBytes;
    Barriers& barriers = state.barriers;
    const ScoreScale scale(Config::kFp8 ? params.scale * params.k_scale : params.scale,
                           params.logit_cap);

    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();

    const int32_t units = params.workspace.header->units;
    uint32_t tiles_before = 0;
    for (int32_t u = blockIdx.x; u < units; u += gridDim.x) {
        const WorkUnit unit = params.workspace.units[u];
        const AttnRequest request(params.batch, unit);
        const KeyRange range(params, unit, request);
        const int32_t tiles = range.tiles<Config>();

        ptx::named_barrier_sync(kConsumerBarrier, kConsumers);  // the last unit's merge is over
        load_query<Config>(params, unit, request.first_node, s_query);
        load_row_ranges(params, unit, request, state.rows);
        if constexpr (Config::kWgmma) ptx::fence_async_proxy();
        ptx::named_barrier_sync(kConsumerBarrier, kConsumers);

        uint32_t q[kQuerySteps][4];
        if constexpr (Config::kQueryInRegisters) {
#pragma unroll
            for (int32_t i = 0; i < kQuerySteps; ++i)
                load_query_fragment(q[i], query, i, warp, lane);
        }
        // Tiles within [free_begin, free_end) are seen whole by all rows of this warp.
        const RowRange& lane_row = state.rows[warp * 16 + lane % 16];
        const int32_t free_begin = __reduce_max_sync(~0u, lane_row.first);
        const int32_t free_end = min(range.end, __reduce_min_sync(~0u, lane_row.limit));

        float o[Config::kOutDim / 2];
#pragma unroll
        for (int32_t i = 0; i < Config::kOutDim / 2; ++i) o[i] = 0;
        Running running;
        const int32_t first_tile = group ^ (range.begin / Config::kKeys & 1);
        RingPosition place(tiles_before + first_tile, stages);

        for (int32_t tile = first_tile; tile < tiles; tile += kGroups) {
            char* s_stage = s_ring + place.stage * Config::kStageBytes;
            const uint32_t k = ring + place.stage * Config::kStageBytes;
            const uint32_t v = k + Config::kMatrixBytes;
            const uint32_t v_full = ptx::smem_address(&barriers.v_full[place.stage]);
            float s[Config::kKeys / 2];

            ptx::mbarrier_wait(ptx::smem_address(&barriers.k_full[place.stage]), place.parity);
            if constexpr (!Config::kWgmma) {
                scores_mma_sync<Config>(s, q, query, k, warp, lane);
                release(barriers.k_empty[place.stage], lane);
            } else if constexpr (!Config::kFp8) {
                ptx::fence_async_proxy();
                issue_scores_wgmma<Config>(s, q, query, k);
                ptx::wgmma_wait();
                ptx::pin_registers(s);
                release(barriers.k_empty[place.stage], lane);
            } else {
                convert_tile<Config>(s_k, s_stage, thread);
                release(barriers.k_empty[place.stage], lane);
                ptx::fence_async_proxy();
                ptx::named_barrier_sync(group_barrier, kGroupThreads);
                issue_scores_wgmma<Config>(s, q, query, ptx::smem_address(s_k));
                ptx::mbarrier_wait(v_full, place.parity);
                convert_tile<Config>(s_v, s_stage + Config::kMatrixBytes, thread);
                release(barriers.v_empty[place.stage], lane);
                ptx::fence_async_proxy();
                ptx::wgmma_wait();
                ptx::pin_registers(s);
            }

            const int32_t key_begin = range.begin + tile * Config::kKeys;
            scale_scores(s, scale);
            if (key_begin < free_begin || key_begin + Config::kKeys > free_end) {
                uint64_t visible[2];
#pragma unroll
                for (int32_t i = 0; i < 2; ++i)
                    visible[i] =
                        visible_keys(state.rows[first_row + 8 * i], request.context, key_begin) &
                        low_bits(range.end - key_begin);
                mask_scores(s, visible, lane);
            }
            float rescale[2];
            softmax(s, running, rescale);
            uint32_t p[kSteps][4];
#pragma unroll
            for (int32_t i = 0; i < kSteps; ++i) pack_probabilities<Config::kFp8>(p[i], s, i);
            // Skipped where it would multiply by exactly 1.
            if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
                for (int32_t i = 0; i < Config::kOutDim / 2; ++i) o[i] *= rescale[i % 4 / 2];
            }

            if constexpr (!Config::kWgmma) {
                ptx::mbarrier_wait(v_full, place.parity);
                output_mma_sync<Config>(o, p, v, lane);
                release(barriers.v_empty[place.stage], lane);
            } else if constexpr (!Config::kFp8) {
                ptx::mbarrier_wait(v_full, place.parity);
                ptx::fence_async_proxy();
                issue_output_wgmma<Config>(o, p, v);
                ptx::wgmma_wait();
                ptx::pin_registers(o);
                release(barriers.v_empty[place.stage], lane);
            } else {
                // Also: no warp still reads s_k, which the next tile overwrites.
                ptx::named_barrier_sync(group_barrier, kGroupThreads);
                issue_output_wgmma<Config>(o, p, ptx::smem_address(s_v));
                ptx::wgmma_wait();
                ptx::pin_registers(o);
            }
            place.advance(kGroups, stages);
        }
        tiles_before += tiles;
        merge_and_store<Config>(params, unit, request.first_node, o, running, state.stats,
                                reinterpret_cast<float4*>(s_query));
    }
}

template <class Config>
__global__ void __launch_bounds__(kThreads, 1)
    attn_verify_gqa_kernel(const __grid_constant__ AttnVerifyGqaCudaParams params, int32_t stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr bool kServed = true;
#else
    constexpr bool kServed = !Config::kWgmma;
#endif
    if constexpr (kServed) {
        extern __shared__ __align__(1024) char s_memory[];
        char* s_converted = s_memory + stages * Config::kStageBytes;
        char* s_query = s_converted + Config::kConvertedBytes;
        BlockState& state = *reinterpret_cast<BlockState*>(s_query + Config::kQueryBytes);

        if (threadIdx.x == 0) {
            for (int32_t i = 0; i < stages; ++i) {
                ptx::mbarrier_init(ptx::smem_address(&state.barriers.k_full[i]), kProducers);
                ptx::mbarrier_init(ptx::smem_address(&state.barriers.v_full[i]), kProducers);
                ptx::mbarrier_init(ptx::smem_address(&state.barriers.k_empty[i]),
                                   kGroupThreads / 32);
                ptx::mbarrier_init(ptx::smem_address(&state.barriers.v_empty[i]),
                                   kGroupThreads / 32);
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
