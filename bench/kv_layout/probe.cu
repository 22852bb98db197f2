#include <stdexcept>
#include <string>

#include "attn_verify/device.h"
#include "kernels/cuda/ptx.cuh"
#include "kv_layout/probe.h"

namespace kd::kv_layout {

namespace {

using bench::check;

constexpr int32_t kLoadThreads = 256;
constexpr int32_t kLoadBlocksPerSm = 4;
constexpr int32_t kUnroll = 8;  // 16-byte loads of a thread in flight

constexpr int32_t kConsumerWarps = 4;  // and one that issues the copies
constexpr int32_t kBulkThreads = (kConsumerWarps + 1) * 32;
constexpr int32_t kMostStages = 8;
constexpr int32_t kMostTileRows = 64;
constexpr int32_t kStaticSharedBytes = 1024;  // the barriers, and what the driver keeps

/// kRowBytes of a row in one plane.
template <int32_t kRowBytesOf, int32_t kPlanesOf>
struct Rows {
    static constexpr int32_t kRowBytes = kRowBytesOf;
    static constexpr int32_t kPlanes = kPlanesOf;
    static constexpr int32_t kWords = kRowBytes / 16;
    static_assert(kRowBytes % 16 == 0);
};
using MlaBf16 = Rows<1152, 1>;
using MlaFp8 = Rows<656, 1>;
using GqaBf16 = Rows<256, 2>;

/// Word `at` counts over token, plane, 16 bytes; odd factors, so that no word drops out.
__device__ __forceinline__ uint32_t digest_of(uint4 word, int32_t at) {
    return (word.x ^ word.y ^ word.z ^ word.w) * (2 * static_cast<uint32_t>(at) + 1);
}

__device__ __forceinline__ void write_digest(uint32_t own, uint32_t* digest, int32_t warps) {
    const uint32_t sum = __reduce_add_sync(~0u, own);
    if (threadIdx.x % 32 == 0) digest[blockIdx.x * warps + threadIdx.x / 32] = sum;
}

__device__ __forceinline__ uint4 load_once(const std::byte* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

/// Any grid: blocks take turns of kLoadThreads * kUnroll words; neighbours in a warp read
/// neighbouring words.
template <class R>
__global__ void __launch_bounds__(kLoadThreads, kLoadBlocksPerSm) loads_kernel(ProbeInputs in) {
    constexpr int32_t kTokenWords = R::kPlanes * R::kWords;
    constexpr int32_t kTurn = kLoadThreads * kUnroll;
    const int32_t words = in.tokens * kTokenWords;
    uint32_t seen = 0;
    for (int64_t begin = int64_t{blockIdx.x} * kTurn; begin < words;
         begin += int64_t{gridDim.x} * kTurn) {
        const std::byte* from[kUnroll];
        const int32_t first = static_cast<int32_t>(begin) + static_cast<int32_t>(threadIdx.x);
#pragma unroll
        for (int32_t u = 0; u < kUnroll; ++u) {
            const int32_t at = first + u * kLoadThreads;
            const int32_t token = at / kTokenWords;
            const int32_t in_token = at % kTokenWords;
            from[u] = nullptr;
            if (at >= words) continue;
            const int64_t row = int64_t{__ldg(in.slots + token)} * R::kRowBytes;
            // A choice, not an index: that would put the pointers into local memory.
            const std::byte* plane =
                R::kPlanes == 1 || in_token < R::kWords ? in.plane[0] : in.plane[1];
            from[u] = plane + row + in_token % R::kWords * 16;
        }
        uint4 word[kUnroll];
#pragma unroll
        for (int32_t u = 0; u < kUnroll; ++u) {
            word[u] = from[u] ? load_once(from[u]) : uint4{};
        }
#pragma unroll
        for (int32_t u = 0; u < kUnroll; ++u) seen += digest_of(word[u], first + u * kLoadThreads);
    }
    write_digest(seen, in.digest, kLoadThreads / 32);
}

/// A lane's slots of a tile: tokens `lane` and `lane` + 32 of it; -1 beyond its last.
struct LaneSlots {
    int32_t low, high;
};

__device__ __forceinline__ LaneSlots lane_slots(const ProbeInputs& in, int32_t first,
                                                int32_t rows) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    return {lane < rows ? __ldg(in.slots + first + lane) : -1,
            lane + 32 < rows ? __ldg(in.slots + first + lane + 32) : -1};
}

/// Copies token `at` of a tile and those behind it up to the next run, if a run starts there.
template <class R>
__device__ __forceinline__ void copy_run(const ProbeInputs& in, uint64_t starts, int32_t at,
                                         int32_t slot, int32_t rows, int32_t tile_rows,
                                         uint32_t stage, uint32_t barrier) {
    if ((starts >> at & 1) == 0) return;
    const uint64_t later = at == 63 ? 0 : starts >> (at + 1);
    const int32_t end = later == 0 ? rows : at + __ffsll(static_cast<long long>(later));
    const auto bytes = static_cast<uint32_t>((end - at) * R::kRowBytes);
#pragma unroll
    for (int32_t plane = 0; plane < R::kPlanes; ++plane) {
        const uint32_t to = stage + (plane * tile_rows + at) * R::kRowBytes;
        ptx::copy_bulk(to, in.plane[plane] + int64_t{slot} * R::kRowBytes, bytes, barrier);
    }
}

/// The last warp: one copy a run into the ring. `s_full` and `s_empty` count its stages.
template <class R>
__device__ void produce(const ProbeInputs& in, int32_t tile_rows, int32_t stages, uint32_t s_ring,
                        uint32_t s_full, uint32_t s_empty) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const auto step = static_cast<int32_t>(gridDim.x) * tile_rows;
    int32_t first = static_cast<int32_t>(blockIdx.x) * tile_rows;
    int32_t rows = min(tile_rows, in.tokens - first);
    LaneSlots slots = lane_slots(in, first, rows);
    for (int32_t turn = 0; first < in.tokens; ++turn) {
        const int32_t next_rows = min(tile_rows, in.tokens - first - step);
        const LaneSlots next = lane_slots(in, first + step, next_rows);
        const int32_t before_low = __shfl_up_sync(~0u, slots.low, 1);
        const int32_t last_low = __shfl_sync(~0u, slots.low, 31);
        const int32_t shifted = __shfl_up_sync(~0u, slots.high, 1);
        const int32_t before_high = lane == 0 ? last_low : shifted;
        const bool low_starts = lane < rows && (lane == 0 || slots.low != before_low + 1);
        const bool high_starts = lane + 32 < rows && slots.high != before_high + 1;
        const uint64_t starts =
            uint64_t{__ballot_sync(~0u, high_starts)} << 32 | __ballot_sync(~0u, low_starts);

        const int32_t stage = turn % stages;
        const uint32_t full = s_full + 8 * stage;
        ptx::mbarrier_wait(s_empty + 8 * stage, (turn / stages & 1) ^ 1);
        if (lane == 0) {
            ptx::mbarrier_arrive_expect_bytes(full, rows * R::kPlanes * R::kRowBytes);
        }
        __syncwarp();
        const uint32_t at = s_ring + stage * tile_rows * R::kPlanes * R::kRowBytes;
        copy_run<R>(in, starts, lane, slots.low, rows, tile_rows, at, full);
        copy_run<R>(in, starts, lane + 32, slots.high, rows, tile_rows, at, full);
        first += step;
        rows = next_rows;
        slots = next;
    }
}

/// One block a multiprocessor; block b takes the tiles b, b + grid, ...
template <class R>
__global__ void __launch_bounds__(kBulkThreads, 1)
    bulk_kernel(ProbeInputs in, int32_t tile_rows, int32_t stages) {
    extern __shared__ __align__(128) uint8_t s_bytes[];
    __shared__ uint64_t s_barriers[2 * kMostStages];
    const uint32_t s_ring = ptx::smem_address(s_bytes);
    const uint32_t s_full = ptx::smem_address(s_barriers);
    const uint32_t s_empty = s_full + 8 * kMostStages;
    if (threadIdx.x == 0) {
        for (int32_t stage = 0; stage < stages; ++stage) {
            ptx::mbarrier_init(s_full + 8 * stage, 1);
            ptx::mbarrier_init(s_empty + 8 * stage, kConsumerWarps);
        }
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x / 32 == kConsumerWarps) {
        produce<R>(in, tile_rows, stages, s_ring, s_full, s_empty);
        return;
    }

    const auto thread = static_cast<int32_t>(threadIdx.x);
    const auto step = static_cast<int32_t>(gridDim.x) * tile_rows;
    uint32_t seen = 0;
    int32_t turn = 0;
    for (int32_t first = static_cast<int32_t>(blockIdx.x) * tile_rows; first < in.tokens;
         first += step, ++turn) {
        const int32_t words = min(tile_rows, in.tokens - first) * R::kWords;
        const int32_t stage = turn % stages;
        ptx::mbarrier_wait(s_full + 8 * stage, turn / stages & 1);
#pragma unroll
        for (int32_t plane = 0; plane < R::kPlanes; ++plane) {
            const uint32_t from = s_ring + (stage * R::kPlanes + plane) * tile_rows * R::kRowBytes;
#pragma unroll 4
            for (int32_t i = thread; i < words; i += kConsumerWarps * 32) {
                const int32_t token = first + i / R::kWords;
                const int32_t at = (token * R::kPlanes + plane) * R::kWords + i % R::kWords;
                seen += digest_of(ptx::load_shared_128(from + 16 * i), at);
            }
        }
        __syncwarp();
        if (thread % 32 == 0) ptx::mbarrier_arrive(s_empty + 8 * stage);
    }
    write_digest(seen, in.digest, kConsumerWarps);
}

template <class R>
void launch_probe(const ProbeLaunch& launch, const ProbeInputs& inputs, cudaStream_t stream) {
    if (launch.loader == Loader::loads) {
        loads_kernel<R><<<launch.blocks, kLoadThreads, 0, stream>>>(inputs);
    } else {
        const int32_t bytes = launch.stages * launch.tile_rows * R::kPlanes * R::kRowBytes;
        check(cudaFuncSetAttribute(bulk_kernel<R>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   bytes),
              "shared memory of the probe");
        bulk_kernel<R><<<launch.blocks, kBulkThreads, bytes, stream>>>(inputs, launch.tile_rows,
                                                                       launch.stages);
    }
    check(cudaGetLastError(), "probe");
}

/// Grid: blocks take turns of words.
__global__ void place_kernel(const uint4* from, uint4* to, const int32_t* slots, int64_t total,
                             int32_t row_words) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t row = i / row_words;
        to[int64_t{slots[row]} * row_words + (i - row * row_words)] = from[i];
    }
}

__global__ void compare_kernel(const uint4* buffer, const int32_t* from, const int32_t* to,
                               int64_t total, int32_t row_words, uint32_t* different) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t row = i / row_words;
        const int64_t in_row = i - row * row_words;
        const uint4 a = buffer[int64_t{from[row]} * row_words + in_row];
        const uint4 b = buffer[int64_t{to[row]} * row_words + in_row];
        if (a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w) atomicAdd(different, 1u);
    }
}

constexpr uint32_t kCopyBlocks = 2048;

int32_t attribute(cudaDeviceAttr which) {
    int device = 0;
    int value = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&value, which, device), "device attribute");
    return value;
}

}  // namespace

const char* row_shape_name(RowShape shape) {
    switch (shape) {
        case RowShape::mla_bf16:
            return "bf16";
        case RowShape::mla_fp8_656:
            return "fp8_mla656";
        case RowShape::gqa_bf16:
            return "gqa_bf16";
    }
    return "?";
}

int32_t row_bytes_of(RowShape shape) {
    switch (shape) {
        case RowShape::mla_bf16:
            return MlaBf16::kRowBytes;
        case RowShape::mla_fp8_656:
            return MlaFp8::kRowBytes;
        case RowShape::gqa_bf16:
            return GqaBf16::kRowBytes;
    }
    return 0;
}

int32_t planes_of(RowShape shape) {
    return shape == RowShape::gqa_bf16 ? GqaBf16::kPlanes : 1;
}

ProbeLaunch probe_launch(RowShape shape, Loader loader) {
    ProbeLaunch launch{.shape = shape, .loader = loader};
    const int32_t multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    if (loader == Loader::loads) {
        launch.blocks = multiprocessors * kLoadBlocksPerSm;
        launch.digests = launch.blocks * (kLoadThreads / 32);
        return launch;
    }
    launch.blocks = multiprocessors;
    launch.digests = launch.blocks * kConsumerWarps;
    const int32_t room = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticSharedBytes;
    for (int32_t rows = kMostTileRows; rows >= 8; rows /= 2) {
        const int32_t stages = room / (rows * planes_of(shape) * row_bytes_of(shape));
        if (stages < 2) continue;
        launch.tile_rows = rows;
        launch.stages = stages < kMostStages ? stages : kMostStages;
        return launch;
    }
    throw std::runtime_error("the bulk probe has no room in " + std::to_string(room) +
                             " bytes of shared memory");
}

void probe(const ProbeLaunch& launch, const ProbeInputs& inputs, cudaStream_t stream) {
    switch (launch.shape) {
        case RowShape::mla_bf16:
            return launch_probe<MlaBf16>(launch, inputs, stream);
        case RowShape::mla_fp8_656:
            return launch_probe<MlaFp8>(launch, inputs, stream);
        case RowShape::gqa_bf16:
            return launch_probe<GqaBf16>(launch, inputs, stream);
    }
}

void place_rows(const std::byte* from, std::byte* to, const int32_t* slots, int32_t count,
                int32_t row_bytes, cudaStream_t stream) {
    place_kernel<<<kCopyBlocks, 256, 0, stream>>>(
        reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), slots,
        int64_t{count} * (row_bytes / 16), row_bytes / 16);
    check(cudaGetLastError(), "placing rows");
}

void compare_rows(const std::byte* buffer, const int32_t* from, const int32_t* to, int32_t count,
                  int32_t row_bytes, uint32_t* different, cudaStream_t stream) {
    compare_kernel<<<kCopyBlocks, 256, 0, stream>>>(reinterpret_cast<const uint4*>(buffer), from,
                                                    to, int64_t{count} * (row_bytes / 16),
                                                    row_bytes / 16, different);
    check(cudaGetLastError(), "comparing rows");
}

}  // namespace kd::kv_layout
