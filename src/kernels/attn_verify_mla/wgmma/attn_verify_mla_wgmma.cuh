// The sm_90a main loop of attn_verify_mla: one block of four warpgroups a multiprocessor.
//
//   load        gathers the latent rows of 48 keys a stage (cp.async, one row at a time, whatever
//               the page size) into one of three stages;
//   score       S = Q K^T, softmax, P to shared memory;
//   accumulate  two warpgroups, each O[64 rows, 256 columns] += P V of its half of the latent.
//
// Tensor cores stay busy because the score of the next tile runs beside the accumulation of this
// one. The softmax looks for no tile's maximum: P is made relative to the row's reference that
// stands, and made again where it shows that the reference has to move (reference_maximum.h). The
// decision is the row's own, so its result depends on nothing but its keys.
//
// Beside products every trip to shared memory takes a warp some 150 clocks, so that what a tile
// begins with is ready before: descriptors move from stage to stage instead of being computed, and
// P has two places, so that nobody asks whether the last one is free.
#pragma once

#include "kernels/attn_verify_mla/wgmma/bf16_load.cuh"
#include "kernels/attn_verify_mla/wgmma/bf16_results.cuh"
#include "kernels/attn_verify_mla/wgmma/bf16_softmax.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Gathers the tiles of this block's units. Until the first copies are asked for, a block has
/// nothing to do but to wait for its code, which comes from L2 line by line: so none stands before
/// them but what they need. Slots of the first unit's first three tiles are in the plan.
__device__ __forceinline__ void load(const AttnVerifyMlaParams& p, uint32_t shared,
                                     int32_t thread) {
    const auto* const kv = static_cast<const std::byte*>(p.kv) + thread % 8 * 16;
    const FirstSlots<kKeys, 3> first(p.workspace, thread);
    TileWalk<kKeys> walk(p);
    uint32_t units = 0;  // that the walk has left behind
    const auto unit_ends = [&] { return walk.key >= walk.unit.key_end; };
    const auto planned = [&](int32_t slot) {
        const TileRow row = planned_tile(walk, slot);
        walk.key += kKeys;
        return row;
    };
    const auto following = [&] {
        TileRow row;
        if (unit_ends()) {
            walk.next_unit_of_block();
            if (!walk.valid()) return row;
            copy_unit<WholeRing>(p, shared, ++units, walk.unit_index, thread);
        }
        row = look_up_tile(walk, thread);
        walk.key += kKeys;
        return row;
    };
    if (!walk.valid()) return;
    TileRow now = planned(first.slot[0]);
    TileRow next = unit_ends() ? following() : planned(first.slot[1]);
    for (uint32_t tile = 0; now.live(); ++tile) {
        const TileRow later =
            tile == 0 && units == 0 && !unit_ends() ? planned(first.slot[2]) : following();
        const int32_t lane_slot = now.slot(p.batch.page_shift);
        if (now.fresh()) ptx::grid_dependency_wait();  // again costs less than to remember it
        copy_tile<WholeRing>(p, kv, shared, tile, lane_slot, 0, thread);
        // Let Q be asked for behind it, or it would queue behind all stages.
        if (tile == 0) ptx::named_barrier_sync(kQueryBarrier, 256);
        now = next;
        next = later;
    }
}

/// The score warpgroup, one unit after the other.
template <bool kFast>
struct ScoreRole {
    const AttnVerifyMlaParams& p;
    uint32_t shared;
    uint64_t query;  // descriptors of Q in shared memory and of the tile's keys
    uint64_t keys;
    int32_t thread;
    const std::byte* memory;
    float to_log2;
    uint32_t p_row;  // where this lane's row of P goes for the first two groups of 8 keys
    int32_t first_row;
    RingPlace place;
    uint32_t published = 0;  // tiles

    __device__ ScoreRole(const AttnVerifyMlaParams& params, std::byte* shared_memory,
                         uint32_t address, int32_t of_role)
        : p(params),
          shared(address),
          query(wgmma::k_major(__shfl_sync(0xffffffff, address + kQ, 0))),
          keys(wgmma::k_major(__shfl_sync(0xffffffff, address + kKv, 0))),
          thread(of_role),
          memory(shared_memory),
          to_log2(score_factor(params, params.scale)) {
        // Lane l addresses row l % 8 of matrix l / 8: rows 0-7 and 8-15 of the first 8 keys, then
        // of the next 8.
        const int32_t lane = thread % 32;
        const int32_t p_rows = thread / 32 * 16 + lane % 16;
        p_row = shared + kP + copy_offset(p_rows, lane / 16);
        first_row = thread / 32 * 16 + lane / 4;
        // Kept, not computed anew where P is handed over: the accumulation waits for that.
        asm volatile("" : "+r"(p_row), "+r"(first_row));
    }

    /// And row + 8. What is made of it is made where it is used: a register kept for it all along
    /// is one too many.
    __device__ int32_t row() const {
        int32_t row = first_row;
        asm volatile("" : "+r"(row));
        return row;
    }
    __device__ uint32_t full() const { return shared + kBarrierFull + 8 * place.stage; }

    /// Writes a tile's P where that of the tile before the last was. Its stage is full again, or
    /// the last tile was waited for.
    __device__ __forceinline__ void store_p(const Published<2>& tile) const {
        const uint32_t buffer = published & 1;
        const uint32_t to = p_row + buffer * kPBytes;
#pragma unroll
        for (int32_t j = 0; j < kKeys / 8; j += 2)
            ptx::store_matrices(to ^ (j << 4), tile.p[j][0], tile.p[j][1], tile.p[j + 1][0],
                                tile.p[j + 1][1]);
        if (thread % 4 == 0) {
            const uint32_t scale = shared + kRowScale + (buffer * 64 + row()) * 4;
            ptx::store_shared(scale, tile.factor[0]);
            ptx::store_shared(scale + 8 * 4, tile.factor[1]);
        }
        if (thread % 32 == 0)
            ptx::store_shared(shared + kRescaleFlag + buffer * 16 + row() / 16 * 4,
                              uint32_t{tile.rescale});
        ptx::fence_async_proxy();
    }

    /// Hands it to the accumulation.
    __device__ __forceinline__ void hand_over() {
        __syncwarp();
        ptx::mbarrier_arrive_warp(shared + kBarrierPFull + 8 * (published & 1), thread % 32);
        ++published;
    }

    __device__ __forceinline__ void unit_tiles(const WorkUnit& unit, const QueryRegisters& q,
                                               RowState (&rows)[2]) {
        // Tensor cores serve whoever asks, and accumulation asks for more: started beside the next
        // scores it would hold them up. So a tile's P is handed over when most of those are under
        // way, if their keys are there.
        bool held = false;
        Published<2> tile;
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kKeys) {
            Scores s;
            if (!held) ptx::mbarrier_wait(full(), place.parity);
            if (held) store_p(tile);
            asm volatile("" : "+l"(query));  // 16 descriptors made from it would not fit
            compute_scores<kFast>(query, keys, q, s, [&] {
                if (held) hand_over();
            });
            if (p.logit_cap > 0.0f) cap_scores(p, s);
            if (key + kKeys > unit.seen_end) {
                if constexpr (kFast)
                    mask_tail(shared + kRowsSee, unit, key, row(), s);
                else
                    SeenKeys<2>(shared + kRowsSee, row()).mask(p, unit, key, s);
            }
            place.next(keys);
            const bool more = key + kKeys < unit.key_end;
            const bool ahead = more && ptx::mbarrier_done(full(), place.parity);
            tile = soften<2>(s, to_log2, thread, key == unit.key_begin, rows);
            held =
                __all_sync(0xffffffff, ahead || (more && ptx::mbarrier_done(full(), place.parity)));
            if (held) continue;
            // Until the tile before is accumulated: so this warpgroup never is two units ahead.
            const RingPlace before = place.two_before();
            ptx::mbarrier_wait(shared + kBarrierEmpty + 8 * before.stage, before.parity);
            store_p(tile);
            hand_over();
        }
    }

    __device__ __forceinline__ void finish(const WorkUnit& unit, uint32_t unit_parity,
                                           const RowState (&rows)[2]) const {
        const float sum[2] = {quad_sum(rows[0].sum), quad_sum(rows[1].sum)};
        if (thread % 4 == 0) {
            const uint32_t inverse = shared + kRowInverse + (unit_parity * 64 + row()) * 4;
            ptx::store_shared(inverse, sum[0] == 0.0f ? 0.0f : 1.0f / sum[0]);
            ptx::store_shared(inverse + 8 * 4, sum[1] == 0.0f ? 0.0f : 1.0f / sum[1]);
        }
        __syncwarp();
        ptx::mbarrier_arrive_warp(shared + kBarrierFinal + 8 * unit_parity, thread % 32);
        if (thread % 4 == 0) {
            const int32_t of_lse = row();
            store_lse(p, unit, of_lse, row_lse(rows[0].maximum, sum[0]));
            store_lse(p, unit, of_lse + 8, row_lse(rows[1].maximum, sum[1]));
        }
    }

    /// What row `of_unit` sees, if there is room for such a row.
    __device__ __forceinline__ void store_sees(int32_t of_unit, uint4 sees) const {
        if (of_unit < kTileRows) ptx::store_shared(shared + kRowsSee + of_unit * 16, sees);
    }

    __device__ __forceinline__ void run() {
        WorkUnit unit = p.workspace.units[blockIdx.x];
        const int32_t units = p.workspace.header->units;
        int32_t index = first_unit(p.workspace);
        QuerySources sources;
        uint4 sees = {};
        if (index < units) {
            sources = QuerySources(p, unit, thread);
            if (thread < kTileRows) sees = row_sees<kFast>(p, unit, thread);
        }
        sources.hold();
        ptx::grid_dependency_wait();
        ptx::grid_dependency_launch();
        if (index >= units) return;
        QueryRegisters q;
        load_q<0, true>(sources, shared + kQ, thread, q, [&] {
            ptx::named_barrier_arrive(kQueryBarrier, 256);
            store_sees(thread, sees);
        });
        for (uint32_t unit_count = 0;;) {
            RowState rows[2];
            unit_tiles(unit, q, rows);
            finish(unit, unit_count & 1, rows);
            index = next_unit(unit, index);
            if (index >= units) return;
            const WorkUnit before = unit;
            ptx::mbarrier_wait(full(), place.parity);
            unit = *reinterpret_cast<const WorkUnit*>(memory + WholeRing::unit_place(++unit_count));
            if (same_rows(unit, before)) continue;
            // All four warps are through with the Q of the unit before.
            ptx::named_barrier_sync(kScoreBarrier, 128);
            const int32_t anew = thread_of_role();  // or what is made of it takes registers
            load_q<0, true>(QuerySources(p, unit, anew), shared + kQ, anew, q,
                            [&] { store_sees(anew, row_sees<kFast>(p, unit, anew)); });
        }
    }
};

template <bool kFast>
__device__ __forceinline__ void accumulate(const AttnVerifyMlaParams& p, const std::byte* memory,
                                           uint32_t shared, int32_t thread, int32_t half) {
    const int32_t warp = thread / 32;
    const int32_t lane = thread % 32;
    const int32_t row = warp * 16 + lane / 4;
    const float* const row_scale = reinterpret_cast<const float*>(memory + kRowScale);
    const float* const row_inverse = reinterpret_cast<const float*>(memory + kRowInverse);
    const int32_t* const rescale_flag = reinterpret_cast<const int32_t*>(memory + kRescaleFlag);
    const uint64_t p_tile = wgmma::k_major(__shfl_sync(0xffffffff, shared + kP, 0));
    // Of its half of the latent, 4 chunks.
    uint64_t tile = wgmma::mn_major(
        __shfl_sync(0xffffffff, shared + kKv + half * 4 * kChunkBytes, 0), kChunkBytes);

    WorkUnit unit = p.workspace.units[blockIdx.x];
    const int32_t units = p.workspace.header->units;
    ptx::grid_dependency_wait();  // the partials may still be read by the step before
    RingPlace place;
    uint32_t tiles = 0;
    uint32_t unit_count = 0;
    for (int32_t index = first_unit(p.workspace); index < units;
         index = next_unit(unit, index), ++unit_count) {
        if (unit_count > 0) {
            ptx::mbarrier_wait(shared + kBarrierFull + 8 * place.stage, place.parity);
            unit = *reinterpret_cast<const WorkUnit*>(memory + WholeRing::unit_place(unit_count));
        }
        const uint32_t unit_parity = unit_count & 1;
        float o[2][64];  // 128 columns each: one product cannot have 256 in a block of 512 threads
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kKeys) {
            const bool first = key == unit.key_begin;
            ptx::mbarrier_wait(shared + kBarrierFull + 8 * place.stage, place.parity);
            const uint32_t buffer = tiles & 1;
            ptx::mbarrier_wait(shared + kBarrierPFull + 8 * buffer, tiles >> 1 & 1);
            ++tiles;
            if (!first && *const_cast<const volatile int32_t*>(rescale_flag + buffer * 4 + warp)) {
                const float factor[2] = {
                    *const_cast<const volatile float*>(row_scale + buffer * 64 + row),
                    *const_cast<const volatile float*>(row_scale + buffer * 64 + row + 8)};
#pragma unroll
                for (int32_t i = 0; i < 128; ++i) o[i / 64][i % 64] *= factor[i >> 1 & 1];
            }
            const uint64_t p_now = p_tile + buffer * (kPBytes >> 4);
            add_products(tile, !first, o, [&](float(&d)[64], int32_t step, uint64_t v, bool add) {
                wgmma::ss_n128_bt(d, p_now + step * 2, v, add);
            });
            ptx::mbarrier_arrive_warp(shared + kBarrierEmpty + 8 * place.stage, lane);
            place.next(tile);
        }
        ptx::mbarrier_wait(shared + kBarrierFinal + 8 * unit_parity, unit_count >> 1 & 1);
        const float inverse[2] = {
            *const_cast<const volatile float*>(row_inverse + unit_parity * 64 + row),
            *const_cast<const volatile float*>(row_inverse + unit_parity * 64 + row + 8)};
        if (!kFast || unit.partial >= 0)
            store_partial(p, unit, thread, half, inverse, o);
        else if (warp * 16 < unit.rows)
            store_out(p, unit, shared, thread, half, inverse, o);
        __syncwarp();
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: at most one block a multiprocessor, persistent. Block: kThreads. kFast: the step's mode.
template <bool kFast>
__global__ void __launch_bounds__(kThreads, 1)
    attn_verify_mla_wgmma_kernel(const __grid_constant__ AttnVerifyMlaParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::byte raw_memory[];
    const uint32_t shared = swizzle_aligned(ptx::smem_address(raw_memory));
    std::byte* const memory = raw_memory + (shared - ptx::smem_address(raw_memory));
    if (threadIdx.x == 0) {
        for (int32_t stage = 0; stage < kStages; ++stage) {
            ptx::mbarrier_init(shared + kBarrierFull + 8 * stage, 128);
            ptx::mbarrier_init(shared + kBarrierEmpty + 8 * stage, 8 * ptx::kWarpArrivals);
        }
        for (int32_t parity = 0; parity < 2; ++parity) {
            ptx::mbarrier_init(shared + kBarrierPFull + 8 * parity, 4 * ptx::kWarpArrivals);
            ptx::mbarrier_init(shared + kBarrierFinal + 8 * parity, 4 * ptx::kWarpArrivals);
        }
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    // One if for the roles: the compiler gives each branch the registers it asks for.
    const int32_t role = threadIdx.x / 128;
    if (role == 0) {
        ptx::setmaxnreg_decrease<32>();
        load(p, shared, thread_of_role());
    } else if (role == 1) {
        ptx::setmaxnreg_increase<160>();
        ScoreRole<kFast>(p, memory, shared, thread_of_role()).run();
    } else {
        ptx::setmaxnreg_increase<160>();
        accumulate<kFast>(p, memory, shared, thread_of_role(), role - 2);
    }
#endif
}

}  // namespace kd::mla_wgmma
