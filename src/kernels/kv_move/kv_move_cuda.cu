#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/kv_move/kv_move_cuda.h"

namespace kd {

namespace {

constexpr int32_t kVectorBytes = 16;
constexpr int32_t kSliceVectors = 8;  // columns of a block: one 128-byte line of each row
constexpr int32_t kThreads = 256;     // at most
constexpr int32_t kPasses = 8;        // vectors that a thread holds between reads and writes
constexpr int32_t kMaxCluster = kKvMoveLimit * kSliceVectors / (kThreads * kPasses);
static_assert(kMaxCluster == 4, "every move has its place in the registers of one cluster");
static_assert(kPasses == kSliceVectors, "a row's lanes look up one pass each");
constexpr uint32_t kAllLanes = 0xffffffff;

/// All reads of the cluster's blocks are done before any of their later writes. Counts blocks that
/// have exited as arrived. Release and acquire by default.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// A cluster of `cluster` blocks owns one 128-byte column slice of one buffer for all moves: it
// reads its columns of every `from` row into registers, meets at a barrier, then writes, so a slot
// may stand in both lists. Eight lanes take a row's slice. The rows go round the blocks in groups
// of one pass, so a block is idle (and leaves at once) only where the others have one pass or none.
//
// Grid: buffers x slices x cluster, slices of one row next to each other. No shared memory.
__global__ __launch_bounds__(kThreads, 4) void kv_move_kernel(
    const __grid_constant__ kdt_kv_move_params params, int32_t slices, int32_t cluster) {
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();

    const int32_t owner = static_cast<int32_t>(blockIdx.x) / cluster;
    const int32_t rank = static_cast<int32_t>(blockIdx.x) % cluster;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kSliceVectors;
    const int32_t column = (owner % slices * kSliceVectors + lane) * kVectorBytes;
    const int32_t pass_rows = static_cast<int32_t>(blockDim.x) / kSliceVectors;
    // This thread's rows: first, first + stride, ...
    const int32_t first = rank * pass_rows + static_cast<int32_t>(threadIdx.x) / kSliceVectors;
    const int32_t stride = cluster * pass_rows;

    // Of a row's eight lanes each looks up the slots of one pass. The lists are max_moves long
    // whatever the count, so nothing waits for the count here.
    char* const base = static_cast<char*>(params.buffer[owner / slices]) + column;
    const int32_t mine = first + lane * stride;
    const int32_t my_from = mine < params.max_moves ? params.from[mine] : 0;
    const int32_t my_to = mine < params.max_moves ? params.to[mine] : 0;
    const int32_t count =
        params.move_count == nullptr ? params.max_moves : min(*params.move_count, params.max_moves);
    // Keeps the look-ups above this branch: all four are then in flight together.
    asm volatile("" ::"l"(base), "r"(my_from), "r"(my_to));
    if (rank * pass_rows >= count) return;

    // Columns beyond the row (its length need not be a multiple of a slice) belong to nobody.
    const int32_t moves = column < params.row_bytes ? count : 0;
    uint4 row[kPasses];
#pragma unroll
    for (int32_t pass = 0; pass < kPasses; ++pass) {
        const int64_t from = __shfl_sync(kAllLanes, my_from, pass, kSliceVectors);
        if (first + pass * stride < moves) {
            row[pass] =
                __ldcg(reinterpret_cast<const uint4*>(base + from * params.slot_stride_bytes));
        }
    }
    if (cluster == 1) {
        __syncthreads();
    } else {
        cluster_barrier();
    }
#pragma unroll
    for (int32_t pass = 0; pass < kPasses; ++pass) {
        const int64_t to = __shfl_sync(kAllLanes, my_to, pass, kSliceVectors);
        if (first + pass * stride < moves) {
            __stcg(reinterpret_cast<uint4*>(base + to * params.slot_stride_bytes), row[pass]);
        }
    }
}

}  // namespace

cudaError_t kv_move_cuda(const kdt_kv_move_params& params, cudaStream_t stream) {
    if (params.max_moves <= 0 || params.buffers <= 0 || params.row_bytes <= 0) return cudaSuccess;
    constexpr int32_t kSliceBytes = kSliceVectors * kVectorBytes;
    const int32_t slices = (params.row_bytes + kSliceBytes - 1) / kSliceBytes;
    const int32_t vectors = params.max_moves * kSliceVectors;
    const int32_t threads = std::min(kThreads, (vectors + 31) / 32 * 32);
    int32_t cluster = 1;
    while (cluster * kThreads * kPasses < vectors) cluster *= 2;

    return launch_overlapped_clusters(kv_move_kernel, cluster, params.buffers * slices * cluster,
                                      threads, 0, stream, params, slices, cluster);
}

}  // namespace kd
