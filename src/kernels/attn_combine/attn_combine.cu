#include <cmath>

#include "kernels/attn_combine/attn_combine.h"
#include "kernels/attn_plan/attn_merge.h"
#include "kernels/cuda/ptx.cuh"

namespace kd {

namespace {

constexpr int32_t kThreads = 384;
constexpr int32_t kChunkTeams = 12;  // most teams that share a row
constexpr float kLn2 = 0.693147180559945309f;

__device__ __forceinline__ float minus_infinity() {
    return __int_as_float(0xff800000);
}

/// Some partials of one row merged: sum of 2^(lse_s - largest) out_s over them, and the sum of the
/// weights. A lane has 8 columns.
struct Merged {
    float largest = minus_infinity();
    float weights = 0;
    float values[8] = {};
};

/// Adds `weight` times the two bf16 of a word.
__device__ __forceinline__ void merge_words(float& low, float& high, float weight, uint32_t word) {
    low = fmaf(weight, __uint_as_float(word << 16), low);
    high = fmaf(weight, __uint_as_float(word & 0xffff0000u), high);
}

/// Where the partials of a row are: log-sum-exp and this lane's 8 columns.
struct PartialRows {
    const float* lse;
    const uint16_t* out;
    int64_t lse_stride;
    int64_t out_stride;
};

/// Adds the partials [0, count), count <= kMergeChunk, after those merged before. All loads go out
/// before the first is used; through L2 only, because the attention kernel wrote these while this
/// kernel was already resident. Partials of lse -inf change no bit, whatever their rows hold.
__device__ __forceinline__ void merge_partials(Merged& merged, const PartialRows& from,
                                               int32_t count, bool has_columns) {
    float lse[kMergeChunk];
    uint4 rows[kMergeChunk];
#pragma unroll
    for (int32_t i = 0; i < kMergeChunk; ++i) {
        lse[i] = minus_infinity();
        rows[i] = make_uint4(0, 0, 0, 0);
        if (i < count) {
            lse[i] = __ldcg(from.lse + i * from.lse_stride);
            if (has_columns) {
                rows[i] = __ldcg(reinterpret_cast<const uint4*>(from.out + i * from.out_stride));
            }
        }
    }
    float largest = merged.largest;
#pragma unroll
    for (int32_t i = 0; i < kMergeChunk; ++i) largest = fmaxf(largest, lse[i]);
    if (largest == minus_infinity()) return;
    const float rescale = ptx::exp2_approx(merged.largest - largest);
    merged.largest = largest;
    merged.weights *= rescale;
#pragma unroll
    for (float& value : merged.values) value *= rescale;
#pragma unroll
    for (int32_t i = 0; i < kMergeChunk; ++i) {
        if (lse[i] != minus_infinity()) {
            const float weight = ptx::exp2_approx(lse[i] - largest);
            merged.weights += weight;
            merge_words(merged.values[0], merged.values[1], weight, rows[i].x);
            merge_words(merged.values[2], merged.values[3], weight, rows[i].y);
            merge_words(merged.values[4], merged.values[5], weight, rows[i].z);
            merge_words(merged.values[6], merged.values[7], weight, rows[i].w);
        }
    }
}

/// How a block of this value dimension works: teams of kLanes lanes of 8 columns; a slice of the
/// values is what a team covers.
template <int32_t kDim>
struct CombineShape {
    static constexpr int32_t kLanes = kDim >= 256 ? 32 : kDim > 64 ? 16 : 8;
    static constexpr int32_t kSlices = (kDim + 255) / 256;
    static constexpr int32_t kTeams = kThreads / kLanes;
    // Chunks that a block's rows have between them: at most kTeams with up to 12 chunks a row;
    // beyond, kTeams / 12 rows of up to kMostPathChunks.
    static constexpr int32_t kSlots = kTeams / kChunkTeams * kMostPathChunks;
    static_assert(kTeams % kChunkTeams == 0 && kSlots >= kTeams);
    static_assert(kTileRows >= kTeams / kChunkTeams);
};

// Work items: (row tile, slice of the values, a few rows). Each row of an item has min(most chunks
// of the step, 12) teams; team j merges chunks j, j + 12, ...: one after the other into one result
// (fast mode), or each into its own slot (deterministic mode). Then the first two teams of the row
// merge the slots in ascending order. Grid: as many blocks as can run at once, looping over items.
template <int32_t kDim>
__global__ void __launch_bounds__(kThreads) attn_combine_kernel(AttnCombineParams params) {
    using Shape = CombineShape<kDim>;
    constexpr int32_t kLanes = Shape::kLanes;
    __shared__ float4 s_values[Shape::kSlots][2][kLanes];  // a lane's columns 0-3, 4-7
    __shared__ float2 s_sums[Shape::kSlots];               // largest lse, sum of weights

    const AttnWorkspace& workspace = params.workspace;
    // The plan is complete: the attention kernel lets this one start only after its own wait.
    const int32_t row_tiles = workspace.header->row_tiles;
    const int32_t most_chunks = workspace.header->most_chunks;
    const int32_t teams = max(1, min(most_chunks, kChunkTeams));  // of a row
    const int32_t item_rows = Shape::kTeams / teams;
    const int32_t tile_items = (kTileRows + item_rows - 1) / item_rows * Shape::kSlices;
    const int32_t items = row_tiles * tile_items;

    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t lane = thread % kLanes;
    const int32_t item_row = thread / kLanes / teams;
    const int32_t team = thread / kLanes % teams;
    const bool has_columns = 8 * lane < kDim;
    const int32_t group = params.heads / params.kv_heads;
    const int32_t path_blocks = (group + kTileRows - 1) / kTileRows;
    const auto* partial_out = static_cast<const uint16_t*>(workspace.partial_out);
    auto* out = static_cast<uint16_t*>(params.out);

    int32_t item = static_cast<int32_t>(blockIdx.x);
    RowTile tile = item < items ? workspace.row_tiles[item / tile_items] : RowTile{};
    int32_t first_node = params.batch.node_start[tile.request];

    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    while (item < items) {
        const int32_t slice = item % Shape::kSlices;
        const int32_t first_row = item % tile_items / Shape::kSlices * item_rows;
        const int32_t row = first_row + item_row;
        const bool active = item_row < item_rows && row < tile.rows;

        const bool deterministic = tile.path_partial >= 0;
        const int32_t node = (tile.row_begin + row) / group;
        const int32_t group_head = (tile.row_begin + row) % group;
        const int32_t column = slice * 256 + 8 * lane;
        const int32_t prefix_chunks = merge_chunks(tile);
        const int32_t chunks = prefix_chunks + (deterministic ? 1 : 0);
        const int32_t slots = deterministic ? chunks : min(chunks, teams);
        const int32_t first_slot = item_row * max(teams, deterministic ? most_chunks : 0);

        // Adds chunk `chunk` of this team's row.
        auto merge_one = [&](Merged& merged, int32_t chunk) {
            int64_t partial;
            int32_t partial_row;
            int32_t count = 1;
            if (chunk < prefix_chunks) {
                const PartialRange range = merge_chunk(tile, chunk);
                partial = int64_t{tile.first_partial} + range.begin;
                partial_row = row;
                count = range.end - range.begin;
            } else {
                partial = int64_t{tile.path_partial} +
                          (node * params.kv_heads + tile.kv_head) * path_blocks +
                          group_head / kTileRows;
                partial_row = group_head % kTileRows;
            }
            const int64_t at = partial * kTileRows + partial_row;
            merge_partials(merged,
                           {.lse = workspace.partial_lse + at,
                            .out = partial_out + at * kDim + column,
                            .lse_stride = kTileRows,
                            .out_stride = kTileRows * kDim},
                           count, has_columns);
        };
        auto put_slot = [&](const Merged& merged, int32_t slot) {
            s_values[first_slot + slot][0][lane] =
                make_float4(merged.values[0], merged.values[1], merged.values[2], merged.values[3]);
            s_values[first_slot + slot][1][lane] =
                make_float4(merged.values[4], merged.values[5], merged.values[6], merged.values[7]);
            if (lane == 0) {
                s_sums[first_slot + slot] = make_float2(merged.largest, merged.weights);
            }
        };
        if (active && team < slots) {
            Merged merged;
            for (int32_t chunk = team; chunk < chunks; chunk += teams) {
                merge_one(merged, chunk);
                if (deterministic) {
                    put_slot(merged, chunk);
                    merged = {};
                }
            }
            if (!deterministic) put_slot(merged, team);
        }
        __syncthreads();

        // Quads of columns: half 0 and 1 of a lane, one each for the first two teams of a row, both
        // for a team that is alone.
        for (int32_t half = team; active && half < 2; half += teams) {
            float largest = minus_infinity();
            for (int32_t s = 0; s < slots; ++s) {
                largest = fmaxf(largest, s_sums[first_slot + s].x);
            }
            float weights = 0;
            float4 sum = make_float4(0, 0, 0, 0);
            for (int32_t s = 0; s < slots; ++s) {
                const float2 slot = s_sums[first_slot + s];
                if (slot.x == minus_infinity()) continue;
                const float scale = ptx::exp2_approx(slot.x - largest);
                const float4 values = s_values[first_slot + s][half][lane];
                weights = fmaf(scale, slot.y, weights);
                sum.x = fmaf(scale, values.x, sum.x);
                sum.y = fmaf(scale, values.y, sum.y);
                sum.z = fmaf(scale, values.z, sum.z);
                sum.w = fmaf(scale, values.w, sum.w);
            }
            const float inverse = weights > 0 ? 1 / weights : 0.0f;
            const int64_t at =
                int64_t{first_node + node} * params.heads + tile.kv_head * group + group_head;
            if (has_columns) {
                const uint2 words = make_uint2(ptx::pack_bf16(sum.x * inverse, sum.y * inverse),
                                               ptx::pack_bf16(sum.z * inverse, sum.w * inverse));
                *reinterpret_cast<uint2*>(out + at * kDim + column + 4 * half) = words;
            }
            if (params.lse != nullptr && lane == 0 && half == 0 && slice == 0) {
                params.lse[at] = weights > 0 ? (largest + log2f(weights)) * kLn2 : minus_infinity();
            }
        }

        item += static_cast<int32_t>(gridDim.x);
        if (item < items) {
            tile = workspace.row_tiles[item / tile_items];
            first_node = params.batch.node_start[tile.request];
        }
        __syncthreads();  // the slots are free again
    }
}

template <int32_t kDim>
cudaError_t launch(const AttnCombineParams& params, cudaStream_t stream) {
    const int64_t most_items =
        int64_t{params.workspace.row_tile_capacity} * kTileRows * CombineShape<kDim>::kSlices;
    const int64_t at_once = params.multiprocessors;  // the registers of 12 rows a lane fill one
    if (most_items == 0) return cudaSuccess;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<uint32_t>(most_items < at_once ? most_items : at_once));
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, attn_combine_kernel<kDim>, params);
}

}  // namespace

cudaError_t attn_combine(const AttnCombineParams& params, cudaStream_t stream) {
    switch (params.value_dim) {
        case 64:
            return launch<64>(params, stream);
        case 96:
            return launch<96>(params, stream);
        case 128:
            return launch<128>(params, stream);
        case 256:
            return launch<256>(params, stream);
        case 512:
            return launch<512>(params, stream);
        default:
            return cudaErrorNotSupported;
    }
}

}  // namespace kd
