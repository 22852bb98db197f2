#include <bit>
#include <cmath>
#include <utility>

#include "kernels/attn_combine/attn_combine.h"
#include "kernels/attn_plan/attn_merge.h"
#include "kernels/attn_plan/quad_layout.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/node_of_row.h"
#include "kernels/cuda/ptx.cuh"

namespace kd {

namespace {

constexpr int32_t kLanes =
    8;  // of a team: 8 columns each, so a load of a team is one 128-byte line
constexpr int32_t kColumns = 8 * kLanes;
constexpr int32_t kThreads = kMergeTeams * kLanes;
/// Blocks of a multiprocessor. MLA: two, by their shared memory. Blocks go to the multiprocessors
/// that are free first, and where four fit those get four that work and others none; all then wait
/// for them, because a multiprocessor reads no more than some 64 bytes a nanosecond.
template <int32_t kDim>
constexpr int32_t kBlocksAtOnce = kDim == 512 ? 2 : 4;
constexpr uint32_t kWholeWarp = 0xffffffff;
constexpr float kLn2 = 0.693147180559945309f;
static_assert(kMergeChunk == kLanes, "lane i of a team weighs place i of a chunk");

/// What the kernel reads of AttnCombineParams.
struct CombineArgs {
    const PlanHeader* header;
    const MergeItem* items;
    const float* partial_lse;
    const uint16_t* partial_out;
    uint16_t* out;
    float* lse;
    int32_t heads;
    int32_t kv_heads;
    int32_t group;
    NodeOfRow node_of;
    int32_t path_blocks;  // ceil(group / kTileRows)
};

__device__ __forceinline__ float minus_infinity() {
    return __int_as_float(0xff800000);
}

/// One chunk of one row merged: sum of 2^(lse_s - largest) out_s, and the sum of the weights. A
/// lane has 8 columns. An empty one changes a row's sums by the sign of a zero at most, and rows
/// are stored without it (scaled_pair).
struct Merged {
    float largest = minus_infinity();
    float weights = 0;
    float values[8] = {};
};

/// What is subtracted from exponents: `largest`, or 0 where nothing was seen.
__device__ __forceinline__ float reference_of(float largest) {
    return largest == minus_infinity() ? 0.0f : largest;
}

/// A MergeItem as it is kept from one item to the next: its bytes would each take a register.
struct ItemWords {
    uint4 low, high;
};
__device__ __forceinline__ ItemWords load_item(const MergeItem* item) {
    const auto* words = reinterpret_cast<const uint4*>(item);
    return {words[0], words[1]};
}

/// The values that this lane loads of place kPlace, through L2; undefined where bit kPlace of
/// `places` is 0. What has been read makes room in L2 before what is still to be read. Volatile, or
/// the compiler moves one such load or another behind the wait for the log-sum-exp.
template <int32_t kPlace, int32_t kPlaceBytes>
__device__ __forceinline__ uint4 load_place(const uint16_t* out, uint32_t places, uint64_t policy) {
    uint4 row;
    asm volatile(
        "{\n"
        ".reg .pred valid;\n"
        ".reg .b32 bit;\n"
        "and.b32 bit, %5, %6;\n"
        "setp.ne.u32 valid, bit, 0;\n"
        "@valid ld.global.cg.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4 + %7], %8;\n"
        "}\n"
        : "=r"(row.x), "=r"(row.y), "=r"(row.z), "=r"(row.w)
        : "l"(out), "r"(places), "n"(1 << kPlace), "n"(kPlace * kPlaceBytes), "l"(policy)
        : "memory");
    return row;
}
template <int32_t kPlaceBytes, int32_t... kPlace>
__device__ __forceinline__ void load_places(uint4 (&rows)[sizeof...(kPlace)], const uint16_t* out,
                                            uint32_t places,
                                            std::integer_sequence<int32_t, kPlace...>) {
    const uint64_t policy = ptx::evict_first_policy();
    ((rows[kPlace] = load_place<kPlace, kPlaceBytes>(out, places, policy)), ...);
}

__device__ __forceinline__ uint32_t load_pair(const uint16_t* values) {
    return __ldcg(reinterpret_cast<const uint32_t*>(values));
}

/// A row's partial of its path, where it has one: its log-sum-exp, 4 columns.
struct PathColumns {
    float lse = minus_infinity();
    uint2 columns = {0, 0};
};

/// Adds `weight` times the two bf16 of a word.
__device__ __forceinline__ void merge_words(float& low, float& high, float weight, uint32_t word) {
    low = fmaf(weight, __uint_as_float(word << 16), low);
    high = fmaf(weight, __uint_as_float(word & 0xffff0000u), high);
}

/// Two columns of the output as bf16; a zero is +0.
__device__ __forceinline__ uint32_t scaled_pair(float a, float b, float inverse) {
    return ptx::pack_bf16(fmaf(a, inverse, 0.0f), fmaf(b, inverse, 0.0f));
}

/// Of 32 columns, from those that each thread of a quad has to 8 in a row.
__device__ __forceinline__ void columns_of_threads(Merged& merged, int32_t lane) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
        uint32_t words[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) words[i] = __float_as_uint(merged.values[2 * i + half]);
        ptx::quad_transpose(words, lane);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) merged.values[2 * i + half] = __uint_as_float(words[i]);
    }
}

/// Merges the places of a chunk that `places` has a bit for; the whole warp calls it, each team
/// with its own chunk. `lse` and `out` are where place 0 is: a row's log-sum-exp, the values that
/// this lane loads. All loads go out before the first is used; through L2 only, because the
/// attention kernel wrote these while this kernel was perhaps already resident. Places without a
/// partial and partials of lse -inf have weight 0 and change no bit, whatever their rows hold.
template <int32_t kDim, PartialLayout kLayout>
__device__ __forceinline__ Merged merge_places(const float* lse, const uint16_t* out,
                                               uint32_t places, int32_t lane, bool has_columns) {
    float own = minus_infinity();
    if ((places >> lane & 1) != 0) own = __ldcg(lse + lane * kTileRows);
    uint4 rows[kMergeChunk];
    load_places<2 * kTileRows * kDim>(rows, out, has_columns ? places : 0,
                                      std::make_integer_sequence<int32_t, kMergeChunk>());
    Merged merged = {.largest = own};
#pragma unroll
    for (int32_t step = kLanes / 2; step > 0; step /= 2) {
        merged.largest = fmaxf(merged.largest, __shfl_xor_sync(kWholeWarp, merged.largest, step));
    }
    const float own_weight = ptx::exp2_approx(own - reference_of(merged.largest));
#pragma unroll
    for (int32_t i = 0; i < kMergeChunk; ++i) {
        const float weight = __shfl_sync(kWholeWarp, own_weight, i, kLanes);
        const auto word = [weight](uint32_t bits) { return weight != 0 ? bits : 0u; };
        merged.weights += weight;
        merge_words(merged.values[0], merged.values[1], weight, word(rows[i].x));
        merge_words(merged.values[2], merged.values[3], weight, word(rows[i].y));
        merge_words(merged.values[4], merged.values[5], weight, word(rows[i].z));
        merge_words(merged.values[6], merged.values[7], weight, word(rows[i].w));
    }
    if (kLayout == PartialLayout::quads) columns_of_threads(merged, lane);
    return merged;
}

// A block works on one merge item and one slice of 64 columns: kMergeTeams teams of 8 lanes,
// equally many for each row of the item, neighbours in different rows. Team j of a row merges chunk
// j into its slot; then the first two teams of the row merge the slots in ascending order, and the
// path last.
//
// What costs time here is the chain of dependent loads, so there are two links: the header and the
// block's item, then everything of the partials.
//
// Grid: a multiple of the slices, as many blocks as can run at once, looping over items.
template <int32_t kDim, PartialLayout kLayout>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<kDim>)
    attn_combine_kernel(CombineArgs args) {
    constexpr uint32_t kSlices = (kDim + kColumns - 1) / kColumns;
    constexpr bool kQuads = kLayout == PartialLayout::quads;
    static_assert(!kQuads || kDim == kQuadDim);
    __shared__ float4 s_values[kMergeTeams][2][kLanes];  // a lane's columns 0-3, 4-7
    __shared__ float2 s_sums[kMergeTeams];               // largest lse, sum of weights

    const int32_t slice = static_cast<int32_t>(blockIdx.x % kSlices);
    const int32_t item_stride = static_cast<int32_t>(gridDim.x / kSlices);
    int32_t index = static_cast<int32_t>(blockIdx.x / kSlices);
    // The plan is complete: the attention kernel lets this one start only after its own wait. The
    // grid is no larger than the list's capacity, so the first item may be read before it is known
    // to exist.
    ItemWords words = load_item(args.items + index);
    int32_t items = args.header->merge_items;

    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t lane = thread % kLanes;
    const int32_t team = thread / kLanes;
    const int32_t column = slice * kColumns + 8 * lane;
    const bool has_columns = kDim % kColumns == 0 || column < kDim;

    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    while (index < items) {
        const auto item = std::bit_cast<MergeItem>(words);
        const int32_t rows_log2 = kMergeTeamsLog2 - item.teams_log2;
        const int32_t item_rows = 1 << rows_log2;
        const int32_t item_row = team & (item_rows - 1);
        const int32_t chunk = team >> rows_log2;
        const bool active = item_row < item.rows;
        const int32_t row = item.row_begin + item_row;
        const int32_t node = args.node_of(row);
        const int32_t group_head = row - node * args.group;

        // Of the output, -1: none. Made before the loads, so that little else stays in registers.
        const int32_t out_row =
            active ? (item.first_node + node) * args.heads + item.kv_head * args.group + group_head
                   : -1;

        const MergeRange range = merge_chunk(item, chunk);
        const int32_t at = (item.first_partial + range.origin) * kTileRows + row % kTileRows;
        uint32_t places = 0;
        if (active && chunk < item.chunks) places = (1u << range.end) - (1u << range.begin);
        // Slots up to a multiple of 4: those of teams without a chunk are empty.
        const int32_t slots = (item.chunks + 3) / 4 * 4 << rows_log2;
        const bool alone = item.teams_log2 == 0;
        // The path, for the teams that end the row: their half of this lane's columns.
        PathColumns path;
        if (item.path_partial >= 0 && active && chunk < 2) {
            const int32_t unit = (node >> item.path_nodes_log2) * args.kv_heads + item.kv_head;
            const int32_t partial =
                item.path_partial + unit * args.path_blocks + group_head / kTileRows;
            const int32_t unit_node = node & ((1 << item.path_nodes_log2) - 1);
            const int32_t path_row =
                partial * kTileRows + unit_node * args.group + group_head % kTileRows;
            path.lse = __ldcg(args.partial_lse + path_row);
            const uint16_t* const values = args.partial_out + int64_t{path_row} * kDim;
            const int32_t own = column + 4 * chunk;
            if (kQuads) {
                path.columns = {load_pair(values + quad_pair_at(0, own)),
                                load_pair(values + quad_pair_at(0, own + 2))};
            } else if (has_columns) {
                path.columns = __ldcg(reinterpret_cast<const uint2*>(values + own));
            }
        }
        Merged merged;
        if (__any_sync(kWholeWarp, places != 0)) {
            const int32_t loaded =
                kQuads ? quad_values_at(0, column / kQuadColumns, lane % 4) : column;
            merged = merge_places<kDim, kLayout>(args.partial_lse + at,
                                                 args.partial_out + int64_t{at} * kDim + loaded,
                                                 places, lane, has_columns);
        }

        uint16_t* out = args.out + int64_t{out_row} * kDim + column;
        const float* v = merged.values;
        float largest = merged.largest;
        float weights = merged.weights;
        if (alone) {  // one chunk a row: no slots
            if (out_row >= 0 && has_columns) {
                const float inverse = weights != 0 ? __fdividef(1, weights) : 0.0f;
                *reinterpret_cast<uint4*>(out) =
                    make_uint4(scaled_pair(v[0], v[1], inverse), scaled_pair(v[2], v[3], inverse),
                               scaled_pair(v[4], v[5], inverse), scaled_pair(v[6], v[7], inverse));
            }
        } else {
            s_values[team][0][lane] = make_float4(v[0], v[1], v[2], v[3]);
            s_values[team][1][lane] = make_float4(v[4], v[5], v[6], v[7]);
            if (lane == 0) s_sums[team] = make_float2(largest, weights);
            __syncthreads();
            if (out_row >= 0 && chunk < 2) {  // columns 0-3 of each lane, or 4-7
                largest = path.lse;
                for (int32_t first = item_row; first < slots; first += 4 * item_rows) {
#pragma unroll
                    for (int32_t s = 0; s < 4; ++s) {
                        largest = fmaxf(largest, s_sums[first + s * item_rows].x);
                    }
                }
                const float reference = reference_of(largest);
                weights = 0;
                float4 sum = make_float4(0, 0, 0, 0);
                for (int32_t first = item_row; first < slots; first += 4 * item_rows) {
                    float2 slot[4];
                    float4 values[4];
#pragma unroll
                    for (int32_t s = 0; s < 4; ++s) {
                        slot[s] = s_sums[first + s * item_rows];
                        values[s] = s_values[first + s * item_rows][chunk][lane];
                    }
#pragma unroll
                    for (int32_t s = 0; s < 4; ++s) {
                        const float scale = ptx::exp2_approx(slot[s].x - reference);
                        weights = fmaf(scale, slot[s].y, weights);
                        sum.x = fmaf(scale, values[s].x, sum.x);
                        sum.y = fmaf(scale, values[s].y, sum.y);
                        sum.z = fmaf(scale, values[s].z, sum.z);
                        sum.w = fmaf(scale, values[s].w, sum.w);
                    }
                }
                const float scale = ptx::exp2_approx(path.lse - reference);
                weights += scale;
                merge_words(sum.x, sum.y, scale, scale != 0 ? path.columns.x : 0u);
                merge_words(sum.z, sum.w, scale, scale != 0 ? path.columns.y : 0u);
                if (has_columns) {
                    const float inverse = weights != 0 ? __fdividef(1, weights) : 0.0f;
                    *reinterpret_cast<uint2*>(out + 4 * chunk) = make_uint2(
                        scaled_pair(sum.x, sum.y, inverse), scaled_pair(sum.z, sum.w, inverse));
                }
            }
        }
        if (args.lse != nullptr && out_row >= 0 && chunk == 0 && lane == 0 && slice == 0) {
            args.lse[out_row] =
                weights != 0 ? (largest + __log2f(weights)) * kLn2 : minus_infinity();
        }

        index += item_stride;
        items = args.header->merge_items;  // from L1, rather than a register
        if (index < items) {
            words = load_item(args.items + index);
            __syncthreads();  // the slots are free again
        }
    }
}

template <int32_t kDim, PartialLayout kLayout = PartialLayout::rows>
cudaError_t launch(const AttnCombineParams& params, cudaStream_t stream) {
    constexpr int64_t kSlices = (kDim + kColumns - 1) / kColumns;
    const int64_t capacity = params.workspace.merge_item_capacity;
    if (capacity == 0) return cudaSuccess;
    const int64_t room = int64_t{kBlocksAtOnce<kDim>} * params.multiprocessors / kSlices;
    const int64_t items_at_once = room < 1 ? 1 : room < capacity ? room : capacity;
    const int32_t group = params.heads / params.kv_heads;
    const CombineArgs args = {
        .header = params.workspace.header,
        .items = params.workspace.merge_items,
        .partial_lse = params.workspace.partial_lse,
        .partial_out = static_cast<const uint16_t*>(params.workspace.partial_out),
        .out = static_cast<uint16_t*>(params.out),
        .lse = params.lse,
        .heads = params.heads,
        .kv_heads = params.kv_heads,
        .group = group,
        .node_of = NodeOfRow(group),
        .path_blocks = (group + kTileRows - 1) / kTileRows};
    int device = 0;
    int shared_bytes = 0;  // of a multiprocessor, then asked for to keep others out
    if (kDim == 512) {
        cudaError_t error = cudaGetDevice(&device);
        if (error == cudaSuccess)
            error = cudaDeviceGetAttribute(&shared_bytes,
                                           cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
        if (error != cudaSuccess) return error;
        shared_bytes /= kBlocksAtOnce<kDim> + 1;
    }
    return launch_overlapped(attn_combine_kernel<kDim, kLayout>,
                             static_cast<int32_t>(items_at_once * kSlices), kThreads, shared_bytes,
                             stream, args);
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
            return params.layout == PartialLayout::quads
                       ? launch<512, PartialLayout::quads>(params, stream)
                       : launch<512>(params, stream);
        default:
            return cudaErrorNotSupported;
    }
}

}  // namespace kd
