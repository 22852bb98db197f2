// The math warps of attn_verify_mla_mma_sync and the kernel around them.
//
// One step is 16 keys. The four warps of a group meet twice a step, at two barriers that nobody
// waits for at once: a step's partial scores are written, then the previous step's P V product is
// made, and only then are the partial sums added up, each warp for 8 rows; its P is written, then
// the next step's Q K product is made, and only then is P read.
//
//   Q K (t) · wait P (t-1) · write scores (t), read P (t-1), arrive scores (t) · P V (t-1), free
//   stage t-1 · wait scores (t) · softmax (t) of own rows: read scores, write P, arrive P (t)
//
// One buffer each of scores and P is enough: scores (t) are written after everybody has read scores
// (t-1), and P (t) after everybody has read P (t-1).
#pragma once

#include "kernels/attn_verify_mla/mma_sync/softmax.cuh"
#include "kernels/cuda/launch.cuh"

namespace kd::mla_mma {

/// Where a unit's rows go: [rows, 512] bf16 and [rows] log-sum-exp.
struct Destination {
    uint16_t* out;
    float* lse;  // null: not wanted
    bool natural;

    __device__ Destination(const AttnVerifyMlaParams& params, const WorkUnit& unit) {
        int64_t row = int64_t{unit.partial} * kTileRows;
        if (unit.partial >= 0) {
            out = static_cast<uint16_t*>(params.workspace.partial_out);
            lse = params.workspace.partial_lse;
        } else {
            row = int64_t{unit.first_node} * params.heads + unit.row_begin;
            out = static_cast<uint16_t*>(params.out);
            lse = params.lse;
        }
        natural = unit.partial < 0;
        out += row * kMlaLatent;
        if (lse != nullptr) lse += row;
    }
};

/// Ends the softmax of this warp's rows: 1 / sum for everybody, log-sum-exp to memory.
/// `row`: of this lane in the unit.
__device__ __forceinline__ void finish_rows(const Destination& destination, int32_t row,
                                            int32_t rows, float value_scale, const RowState& state,
                                            const Place& at) {
    const auto of_row = [](float lanes) {
        lanes = __fadd_rn(lanes, __shfl_xor_sync(kAllLanes, lanes, 1));
        return __fadd_rn(lanes, __shfl_xor_sync(kAllLanes, lanes, 2));
    };
    const float sum = of_row(state.sum);
    const float weight = of_row(state.weight);
    if (at.lane % 4 != 0) return;
    const bool seen = sum != 0.0f;  // NaN was seen, and goes on
    ptx::store_shared(at.base + SharedPlan::kInverses + at.lane * 4 + at.warp * 4,
                      seen ? __fdividef(value_scale, weight) : 0.0f);
    if (row >= rows || destination.lse == nullptr) return;
    constexpr float kLn2 = 0.693147180559945f;
    const float lse = seen ? __fadd_rn(state.maximum, __log2f(sum)) : -INFINITY;
    destination.lse[row] = destination.natural ? __fmul_rn(lse, kLn2) : lse;
}

/// Stores the warp's 128 columns of the group's rows; `first_row`, `rows`: in the unit.
template <kdt_kv_format kFormat, int32_t kRowTiles>
__device__ __forceinline__ void store_output(const OutputFragments<kRowTiles>& out,
                                             const Destination& destination, int32_t first_row,
                                             int32_t rows, const Place& at) {
    const uint32_t staging = at.base + SharedPlan::kScores +
                             at.warp * SharedPlan::kWarpScoreBytes;  // 16 rows x 64 columns
    const int32_t g = at.lane / 4;
    const int32_t q = at.lane % 4;
#pragma unroll
    for (int32_t tile = 0; tile < kRowTiles; ++tile) {
        const uint2 two = ptx::load_shared_64(at.base + SharedPlan::kInverses + g * 16 + tile * 8);
        const float inverse[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
        for (int32_t part = 0; part < 2; ++part) {
#pragma unroll
            for (int32_t half = 0; half < 2; ++half) {  // rows g, g + 8
                const float by = inverse[half];
#pragma unroll
                for (int32_t n = 0; n < kValueTiles / 2; n += 2) {
                    const float* a = out[tile][part * (kValueTiles / 2) + n] + 2 * half;
                    const float* b = out[tile][part * (kValueTiles / 2) + n + 1] + 2 * half;
                    const int32_t row = g + 8 * half;
                    if constexpr (CacheRow<kFormat>::kFp8) {  // columns 4q .. 4q + 3 of 16
                        ptx::store_shared(staging + staged_offset(row, n + q / 2) + 8 * (q % 2),
                                          make_uint2(ptx::pack_bf16(a[0] * by, b[0] * by),
                                                     ptx::pack_bf16(a[1] * by, b[1] * by)));
                    } else {  // columns 2q, 2q + 1 of 8 and of the next 8
                        ptx::store_shared(staging + staged_offset(row, n) + 4 * q,
                                          ptx::pack_bf16(a[0] * by, a[1] * by));
                        ptx::store_shared(staging + staged_offset(row, n + 1) + 4 * q,
                                          ptx::pack_bf16(b[0] * by, b[1] * by));
                    }
                }
            }
            __syncwarp();
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) {
                const int32_t row = 4 * i + at.lane / 8;
                const int32_t chunk = at.lane % 8;
                const uint4 piece = ptx::load_shared_128(staging + staged_offset(row, chunk));
                const int32_t in_unit = first_row + 16 * tile + row;
                if (in_unit < rows)
                    store_global(destination.out + int64_t{in_unit} * kMlaLatent +
                                     at.warp * kWarpDims + part * 64 + chunk * 8,
                                 piece);
            }
            __syncwarp();
        }
    }
}

/// Up to 32 rows: 16 a group, so that both groups have work from 17 rows on.
__device__ __forceinline__ int32_t rows_of_group(const WorkUnit& unit) {
    return unit.rows <= kGroupRows ? 16 : kGroupRows;
}
__device__ __forceinline__ int32_t first_row_of(const WorkUnit& unit, int32_t group) {
    return group * rows_of_group(unit);
}
/// The unit that this warp works on, kept in shared memory for want of registers.
__device__ __forceinline__ int32_t current_unit(const Place& at) {
    return static_cast<int32_t>(ptx::load_shared_32(at.base + SharedPlan::kUnit + 4 * at.warp));
}

/// A group's share of a unit: its rows [first_row, first_row + 16 kRowTiles) of the unit.
/// `parity`: of the step, over all units, that is of both barriers' phases.
template <kdt_kv_format kFormat, int32_t kRowTiles>
__device__ __forceinline__ void attend(const AttnVerifyMlaParams& params,
                                       const LaunchConstants& constants, const WorkUnit& unit,
                                       int32_t first_row, int32_t plain_end, RingReader& ring,
                                       uint32_t& parity) {
    constexpr int32_t kQueryRows = CacheRow<kFormat>::kQueryRows;
    const auto now = [&] { return Place::now(ring.shared); };
    // A warp owns the group's rows 8 warp + g.
    const auto owner = [](const Place& at) {
        return kRowTiles == kGroupRows / 16 || at.warp < 2 * kRowTiles;
    };
    QueryFragments<kRowTiles> query = {};
    {
        constexpr int32_t kParts = kRowTiles * 16 / kQueryRows;
        const int32_t total = query_stages<kFormat>(unit);
        const int32_t before = first_row / kQueryRows;
        const Place at = now();
        ring.skip(before, at.lane);
#pragma unroll
        for (int32_t part = 0; part < kParts; ++part) {
            if (before + part < total) {
                ring.wait();
                read_query<kFormat, kRowTiles>(query, part,
                                               ring.template stage<kFormat>(ring.index), at);
                ring.release(ring.index, at.lane);
                ring.advance();
            }
        }
        ring.skip(total - before - kParts, at.lane);
    }

    OutputFragments<kRowTiles> out = {};
    RowState state;
    int32_t key = unit.key_begin;
    const int32_t key_end = unit.key_end;
    const auto scores = [&](ScoreFragments<kRowTiles>& sums) {
        ring.wait();
        multiply_keys<kFormat, kRowTiles>(sums, query, ring.template stage<kFormat>(ring.index),
                                          now());
    };
    const auto softmax = [&] {
        const Place at = now();
        at.wait(SharedPlan::kScoreBarrier, parity);
        if (owner(at)) softmax_step<kFormat>(state, key, key_end, plain_end, constants, at);
        at.arrive(SharedPlan::kProbBarrier);
        parity ^= 1;
        ring.advance();
    };
    // P V of the step before the ring's: P is read before this step's may be written.
    const auto values = [&](const ProbFragments<kRowTiles>& probs) {
        const int32_t previous = ring.previous();
        const Place at = now();
        multiply_values<kFormat, kRowTiles>(out, probs, ring.template stage<kFormat>(previous), at);
        ring.release(previous, at.lane);
    };

    {
        ScoreFragments<kRowTiles> sums;
        scores(sums);
        const Place at = now();
        write_scores<kRowTiles>(sums, at);
        at.arrive(SharedPlan::kScoreBarrier);
    }
    softmax();
    for (key += kStepKeys; key < key_end; key += kStepKeys) {
        ScoreFragments<kRowTiles> sums;
        scores(sums);
        const Place at = now();
        at.wait(SharedPlan::kProbBarrier, parity ^ 1);
        write_scores<kRowTiles>(sums, at);
        const ProbFragments<kRowTiles> probs(at);
        at.arrive(SharedPlan::kScoreBarrier);
        values(probs);
        softmax();
    }

    // One more phase of both barriers, so that one parity serves them: the sums are known.
    const Place at = now();
    const WorkUnit done = params.workspace.units[current_unit(at)];
    const int32_t done_row = first_row_of(done, at.group);
    const Destination destination(params, done);
    if (owner(at))
        finish_rows(destination, done_row + 8 * at.warp + at.lane / 4, done.rows,
                    constants.value_scale, state, at);
    at.wait(SharedPlan::kProbBarrier, parity ^ 1);
    const ProbFragments<kRowTiles> probs(at);
    at.arrive(SharedPlan::kScoreBarrier);
    at.arrive(SharedPlan::kProbBarrier);
    values(probs);
    at.wait(SharedPlan::kScoreBarrier, parity);
    at.wait(SharedPlan::kProbBarrier, parity);  // no phase ends unseen
    parity ^= 1;
    store_output<kFormat, kRowTiles>(out, destination, done_row, done.rows, at);
}

/// Grid: one block of kThreads a multiprocessor, which takes units as first_unit and next_unit
/// say. Warps 0..3 load, 4..7 are group 0, 8..11 group 1. Dynamic shared memory: SharedPlan.
template <kdt_kv_format kFormat>
__global__ void __launch_bounds__(kThreads, 1)
    attn_verify_mla_mma_sync_kernel(const __grid_constant__ AttnVerifyMlaParams params,
                                    const __grid_constant__ LaunchConstants constants) {
    extern __shared__ __align__(128) uint8_t s_block[];
    const uint32_t shared = ptx::smem_address(s_block);
    const int32_t warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    const int32_t lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < kGroups; ++i) {
            const uint32_t group = shared + i * SharedPlan::kGroupBytes;
            ptx::mbarrier_init(group + SharedPlan::kScoreBarrier, kGroupWarps * ptx::kWarpArrivals);
            ptx::mbarrier_init(group + SharedPlan::kProbBarrier, kGroupWarps * ptx::kWarpArrivals);
        }
        for (int32_t i = 0; i < constants.stages; ++i) {
            ptx::mbarrier_init(shared + SharedPlan::kFull + 8 * i, ptx::kWarpArrivals);
            ptx::mbarrier_init(shared + SharedPlan::kEmpty + 8 * i,
                               kGroups * kGroupWarps * ptx::kWarpArrivals);
        }
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    if (warp < kLoadWarps) {
        ptx::setmaxnreg_decrease<kLoadRegisters>();
        load_units<kFormat>(params, constants.stages, shared, warp, lane);
        return;
    }
    ptx::setmaxnreg_increase<kMathRegisters>();
    // Nothing is asked for behind the load warps' copies: it would wait for them.
    int32_t u = first_unit(params.workspace);
    const bool any = u < params.workspace.header->units;
    WorkUnit unit = params.workspace.units[blockIdx.x];
    int32_t plain_end = 0;
    const auto see = [&] {
        const Place at = Place::now(shared);
        plain_end = see_rows(params, constants, unit, first_row_of(unit, at.group), at);
    };
    if (any) see();
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    if (!any) return;
    load_first_query<kFormat>(params, unit, constants.stages, shared, warp - kLoadWarps, lane);
    RingReader ring{.shared = shared, .stages = constants.stages};
    uint32_t parity = 0;
    while (true) {
        const Place at = Place::now(shared);
        __syncwarp();
        if (at.lane == 0)
            ptx::store_shared(at.base + SharedPlan::kUnit + 4 * at.warp, static_cast<uint32_t>(u));
        __syncwarp();
        const int32_t first_row = first_row_of(unit, at.group);
        const int32_t rows = unit.rows - first_row;
        if (rows <= 0) {
            ring.skip(query_stages<kFormat>(unit) + key_stages(unit), at.lane);
        } else if (min(rows, rows_of_group(unit)) <= 16) {
            attend<kFormat, 1>(params, constants, unit, first_row, plain_end, ring, parity);
        } else {
            attend<kFormat, 2>(params, constants, unit, first_row, plain_end, ring, parity);
        }
        u = current_unit(Place::now(shared));
        u = next_unit(params.workspace.units[u], u);
        if (u >= params.workspace.header->units) return;
        unit = params.workspace.units[u];
        see();
    }
}

template <kdt_kv_format kFormat>
cudaError_t launch(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                   cudaStream_t stream) {
    int device = 0;
    int limit = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    const int32_t stages = SharedPlan::stages<kFormat>(limit);
    if (stages < SharedPlan::kMinStages) return cudaErrorInvalidConfiguration;

    constexpr float kLog2E = 1.44269504088896f;
    const float value_scale = kFormat == KDT_KV_FP8 ? params.kv_scale : 1.0f;
    const float scale = params.scale * value_scale;
    LaunchConstants constants = {.stages = stages,
                                 .score_scale = scale * kLog2E,
                                 .cap = params.logit_cap * kLog2E,
                                 .value_scale = value_scale};
    if (params.logit_cap != 0.0f) constants.score_scale *= 2.0f / params.logit_cap;

    return launch_overlapped(attn_verify_mla_mma_sync_kernel<kFormat>, multiprocessors, kThreads,
                             SharedPlan::bytes<kFormat>(stages), stream, params, constants);
}

}  // namespace kd::mla_mma
