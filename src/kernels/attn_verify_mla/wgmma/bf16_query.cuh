// How the score warpgroup of the bf16 loop gets a unit's Q.
#pragma once

#include "kernels/attn_verify_mla/wgmma/bf16_config.cuh"
#include "kernels/cuda/mma.cuh"

namespace kd::mla_wgmma {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Operand A of the products with Q's first kRegisterChunks chunks: [chunk, 16 columns].
using QueryRegisters = uint32_t[kRegisterChunks * 4][4];

/// Where this thread's part of a unit's Q is; what it takes to know that does not wait for Q. Rows
/// that the unit lacks are zeros: their scores move no reference.
struct QuerySources {
    const std::byte* fragment[2];             // rows of its operand registers
    const std::byte* latent[kTileRows / 16];  // rows that it copies
    const std::byte* rope[kTileRows / 16];
    int32_t rows = 0;  // of the unit

    __device__ QuerySources() {}
    /// Each lane finds one of its warp's rows for all: a division by the number of heads is long.
    __device__ QuerySources(const AttnVerifyMlaParams& p, const WorkUnit& unit, int32_t thread)
        : rows(unit.rows) {
        const QueryRows query{p, unit};
        const int32_t lane = thread % 32;
        const int32_t row = thread / 32 * 16 + lane % 16;
        const auto latent_row = reinterpret_cast<uint64_t>(query.latent(row));
        const auto rope_row = reinterpret_cast<uint64_t>(query.rope(row));
        const auto of_lane = [](uint64_t address, int32_t from, int32_t offset) {
            return reinterpret_cast<const std::byte*>(__shfl_sync(0xffffffff, address, from)) +
                   offset;
        };
#pragma unroll
        for (int32_t half = 0; half < 2; ++half)
            fragment[half] = of_lane(latent_row, lane / 4 + 8 * half, lane % 4 * 16);
#pragma unroll
        for (int32_t step = 0; step < kTileRows / 16; ++step) {
            const int32_t from = copy_row<kTileRows>(lane, step);
            latent[step] = of_lane(latent_row, from, lane % 8 * 16 + kRegisterChunks * 128);
            rope[step] = of_lane(rope_row, from, lane % 8 * 16);
        }
    }
    /// Keeps the compiler from computing the addresses where they are used.
    __device__ void hold() {
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) asm volatile("" : "+l"(fragment[half]));
#pragma unroll
        for (int32_t step = 0; step < kTileRows / 16; ++step)
            asm volatile("" : "+l"(latent[step]), "+l"(rope[step]));
    }
};

/// Q of a unit: chunks [kFirst, kFirst + kSteps / 4) to registers, with kCopies the last
/// kSharedChunks to shared memory at `to` in the async proxy's sight. `started` is called when all
/// of it has been asked for.
template <int32_t kFirst, bool kCopies, int32_t kSteps, class Started>
__device__ __forceinline__ void load_q(const QuerySources& sources, uint32_t to, int32_t thread,
                                       uint32_t (&q)[kSteps][4], const Started& started) {
    const int32_t lane = thread % 32;
    constexpr int32_t kPairs = kSteps / 2;  // of 16 columns
    uint4 loaded[2][kPairs];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
#pragma unroll
        for (int32_t pair = 0; pair < kPairs; ++pair)
            loaded[half][pair] = thread / 32 * 16 + lane / 4 + 8 * half < sources.rows
                                     ? *reinterpret_cast<const uint4*>(sources.fragment[half] +
                                                                       kFirst * 128 + pair * 64)
                                     : uint4{};
    }
    if (kCopies) {
#pragma unroll
        for (int32_t step = 0; step < kTileRows / 16; ++step) {
            const int32_t number = copy_row<kTileRows>(thread, step);
            const bool row = number < sources.rows;
            const uint32_t at = to + copy_offset(number, thread % 8);
#pragma unroll
            for (int32_t chunk = 0; chunk < kSharedChunks - 1; ++chunk)
                ptx::copy_async_16(at + chunk * kQChunkBytes, sources.latent[step] + chunk * 128,
                                   row);
            ptx::copy_async_16(at + (kSharedChunks - 1) * kQChunkBytes, sources.rope[step], row);
        }
        ptx::copy_async_commit();
    }
    started();

#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
#pragma unroll
        for (int32_t pair = 0; pair < kPairs; ++pair) {
            const uint4 row = loaded[half][pair];
            uint32_t words[4] = {row.x, row.y, row.z, row.w};
            ptx::quad_transpose(words, lane);
            q[2 * pair][half] = words[0];
            q[2 * pair][half + 2] = words[1];
            q[2 * pair + 1][half] = words[2];
            q[2 * pair + 1][half + 2] = words[3];
        }
    }
    if (kCopies) {
        ptx::copy_async_wait<0>();
        ptx::fence_async_proxy();
        ptx::named_barrier_sync(kScoreBarrier, 128);
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
