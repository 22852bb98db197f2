// The accumulating warpgroups of the fp8 loops and the kernel around all roles.
#pragma once

#include "kernels/attn_verify_mla/wgmma/fp8_load.cuh"
#include "kernels/attn_verify_mla/wgmma/fp8_score.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// O^T of a warpgroup, [64 columns of its 256]: dimensions 2 g and 2 g + 1 of the warp's 16 in
/// [4 j + {0, 1}] and [4 j + {2, 3}], rows 8 j + 2 q + {0, 1}.
using ColumnOutput = float[4][32];

/// Operands of two products: a block of 64 dimensions at `from`, keys 0..15 and 16..31 of the 32
/// whose rows the lanes point at. `scales`: of keys 8 i + 2 q + {0, 1}.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void value_operands(uint32_t from, const uint32_t (&scales)[4],
                                               TwoA& a) {
    uint32_t words[4];
    ptx::load_matrices_transposed(words, from);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        uint32_t& even = a[i / 2][i % 2 * 2];
        uint32_t& odd = a[i / 2][i % 2 * 2 + 1];
        // key 2q dimensions 2g, 2g + 1, key 2q + 1 likewise -> by dimension
        ptx::widen_e4m3(__byte_perm(words[i], 0, 0x3120), even, odd);
        if constexpr (Fp8Row<kFormat>::kScaled) {
            even = ptx::multiply_f16(even, scales[i]);
            odd = ptx::multiply_f16(odd, scales[i]);
        }
    }
}

/// O^T += V^T P^T of one tile. `values`: its first row, at this warp's first dimension; `scales`:
/// that row's for this warpgroup's dimensions. `read` is called when all of V has been read.
template <kdt_kv_format kFormat, class Read>
__device__ __forceinline__ void multiply_values(uint32_t values, uint32_t scales, uint32_t probs,
                                                int32_t lane, bool first, ColumnOutput& o,
                                                const Read& read) {
    using Row = Fp8Row<kFormat>;
    const uint64_t p_tile = wgmma::k_major(probs);
    TwoA a[2];
    uint32_t by[4] = {};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) wgmma::touch(o[i]);
#pragma unroll
    for (int32_t turn = 0; turn < 8; ++turn) {
        const int32_t keys = turn / 4 * 32;
        const int32_t block = turn % 4;  // of 64 dimensions
        TwoA& of = a[turn % 2];
        if (turn >= 2) {
            wgmma::wait<1>();
            hold(of);
        }
        if constexpr (Row::kScaled) {
            if (block % 2 == 0) {
#pragma unroll
                for (int32_t i = 0; i < 4; ++i) {
                    const uint32_t at =
                        scales + (keys + 8 * i + lane % 4 * 2) * Row::kStride + block / 2 * 4;
                    by[i] = ptx::pack_f16(ptx::load_shared_float(at),
                                          ptx::load_shared_float(at + Row::kStride));
                }
            }
        }
        value_operands<kFormat>(values + (keys + lane) * Row::kStride + block * 64, by, of);
        if (turn == 7) read();
        wgmma::fence();
#pragma unroll
        for (int32_t step = 0; step < 2; ++step)
            wgmma::rs_n64<true>(o[block], of[step], p_tile + (keys / 16 + step) * 2,
                                !first || keys + step > 0);
        wgmma::commit();
    }
    wgmma::wait<0>();
    hold(a[0]);
    hold(a[1]);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) wgmma::touch(o[i]);
}

/// Normalises and stores this warp's columns; `column`: the first of its 16 of the first 64.
__device__ __forceinline__ void store_columns(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                              int32_t column, int32_t lane, const OfRows& inverse,
                                              const ColumnOutput& o) {
    const int64_t first_row = unit.partial >= 0
                                  ? int64_t{unit.partial} * kTileRows
                                  : int64_t{unit.first_node} * p.heads + unit.row_begin;
    auto* const to = static_cast<std::byte*>(unit.partial >= 0 ? p.workspace.partial_out : p.out) +
                     2 * (first_row * kMlaLatent + column + lane / 4 * 2);
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
        const int32_t row = i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (row >= unit.rows) continue;
        const int32_t at = i / 2 * 4 + i % 2;
#pragma unroll
        for (int32_t block = 0; block < 4; ++block)
            *reinterpret_cast<uint32_t*>(to + 2 * (row * kMlaLatent + block * 64)) =
                ptx::pack_bf16(o[block][at] * inverse[i], o[block][at + 2] * inverse[i]);
    }
}

/// `half`: which 256 columns.
template <kdt_kv_format kFormat>
__device__ __forceinline__ void accumulate_fp8(const AttnVerifyMlaParams& p,
                                               const std::byte* memory, uint32_t shared,
                                               int32_t thread, int32_t half) {
    using Plan = Fp8Plan<kFormat>;
    const int32_t lane = thread % 32;
    const int32_t column = half * 256 + thread / 32 * 16;
    const auto floats = [&](int32_t offset) {
        return reinterpret_cast<const volatile float*>(memory + offset) + lane % 4 * 2;
    };
    const auto* const flags =
        reinterpret_cast<const volatile int32_t*>(memory + Plan::kRescaleFlag);

    WorkUnit unit = p.workspace.units[blockIdx.x];
    const int32_t units = p.workspace.header->units;
    ptx::grid_dependency_wait();  // the partials may still be read by the step before
    Turn<kFp8Stages> turn{0};
    uint32_t unit_parity = 0;
    for (int32_t index = first_unit(p.workspace); index < units;
         index = next_unit(unit, index), unit_parity ^= 1) {
        if (index != blockIdx.x) unit = p.workspace.units[index];
        ColumnOutput o;
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kFp8Keys, ++turn.count) {
            const bool first = key == unit.key_begin;
            const uint32_t p_turn = turn.count & 1;
            ptx::mbarrier_wait(shared + Plan::kFull + 8 * turn.stage(), turn.parity());
            ptx::mbarrier_wait(shared + Plan::kPFull + 8 * p_turn, turn.count >> 1 & 1);
            if (!first && (flags[2 * p_turn] | flags[2 * p_turn + 1])) {
                const volatile float* const factors = floats(Plan::kFactor + p_turn * 64 * 4);
#pragma unroll
                for (int32_t i = 0; i < 16; ++i) {
                    const float factor = factors[i / 2 * 8 + i % 2];
#pragma unroll
                    for (int32_t block = 0; block < 4; ++block) {
                        o[block][i / 2 * 4 + i % 2] *= factor;
                        o[block][i / 2 * 4 + i % 2 + 2] *= factor;
                    }
                }
            }
            const uint32_t stage = shared + Plan::kKv + turn.stage() * Plan::kStageBytes;
            multiply_values<kFormat>(
                stage + column, stage + kFp8Scales + half * 8,
                shared + Plan::kP + p_turn * Plan::kPBytes, lane, first, o, [&] {
                    __syncwarp();
                    if (lane == 0) ptx::mbarrier_arrive(shared + Plan::kEmpty + 8 * turn.stage());
                });
            if (lane == 0) ptx::mbarrier_arrive(shared + Plan::kPEmpty + 8 * p_turn);
        }
        ptx::mbarrier_wait(shared + Plan::kFinal, unit_parity);
        OfRows inverse;
#pragma unroll
        for (int32_t i = 0; i < 16; ++i) inverse[i] = floats(Plan::kInverse)[i / 2 * 8 + i % 2];
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(shared + Plan::kTaken);
        store_columns(p, unit, column, lane, inverse, o);
    }
}

/// threadIdx.x % 128, read anew: were it one value for all roles, the compiler would spill it.
__device__ __forceinline__ int32_t thread_of_role() {
    int32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread & 127;
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: at most one block a multiprocessor, persistent. Block: kThreads.
template <kdt_kv_format kFormat>
__global__ void __launch_bounds__(kThreads, 1)
    attn_verify_mla_wgmma_fp8_kernel(const __grid_constant__ AttnVerifyMlaParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Plan = Fp8Plan<kFormat>;
    extern __shared__ std::byte raw_memory[];
    const uint32_t raw = ptx::smem_address(raw_memory);
    const uint32_t shared = (raw + 1023) & ~uint32_t{1023};
    std::byte* const memory = raw_memory + (shared - raw);
    if (threadIdx.x == 0) {
        for (int32_t stage = 0; stage < kFp8Stages; ++stage) {
            ptx::mbarrier_init(shared + Plan::kFull + 8 * stage, 128);
            ptx::mbarrier_init(shared + Plan::kEmpty + 8 * stage, 12);
        }
        for (int32_t turn = 0; turn < 2; ++turn) {
            ptx::mbarrier_init(shared + Plan::kPFull + 8 * turn, 4);
            ptx::mbarrier_init(shared + Plan::kPEmpty + 8 * turn, 8);
        }
        ptx::mbarrier_init(shared + Plan::kFinal, 4);
        ptx::mbarrier_init(shared + Plan::kTaken, 8);
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    // One if for the roles: the compiler gives each branch the registers it asks for.
    const int32_t role = threadIdx.x / 128;
    if (role == 0) {
        ptx::setmaxnreg_decrease<kFp8LoadRegisters>();
        load_fp8<kFormat>(p, shared, thread_of_role());
    } else if (role == 1) {
        ptx::setmaxnreg_decrease<kFp8ScoreRegisters>();
        Fp8ScoreRole<kFormat>(p, shared, thread_of_role()).run();
    } else {
        ptx::setmaxnreg_increase<kFp8AccumulateRegisters>();
        accumulate_fp8<kFormat>(p, memory, shared, thread_of_role(), role - 2);
    }
#endif
}

template <kdt_kv_format kFormat>
cudaError_t launch(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                   cudaStream_t stream) {
    return launch_overlapped(attn_verify_mla_wgmma_fp8_kernel<kFormat>, multiprocessors, kThreads,
                             Fp8Plan<kFormat>::kRequestBytes, stream, params);
}

}  // namespace kd::mla_wgmma
