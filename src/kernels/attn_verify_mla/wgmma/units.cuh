// What the sm_90a loops of all cache formats share: the walk over a block's tiles of keys, its rows
// of Q, the ring of stages, where a row's log-sum-exp goes.
#pragma once

#include "kernels/attn_plan/attn_batch.cuh"
#include "kernels/attn_verify_mla/attn_verify_mla.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace kd::mla_wgmma {

inline constexpr int32_t kThreads = 512;
inline constexpr int32_t kQChunkBytes = kTileRows * 128;
inline constexpr int32_t kChunks = kMlaHeadDim / 64;
// Named barriers.
inline constexpr int32_t kScoreBarrier = 1;  // the score warpgroup
inline constexpr int32_t kQueryBarrier = 2;  // it has asked for Q of the first unit; load goes on
inline constexpr float kLazyRescale = 8.0f;

/// Launches on one block a multiprocessor. One definition a format, in the instance files.
template <kdt_kv_format kFormat>
cudaError_t launch(const AttnVerifyMlaParams& params, int32_t multiprocessors, cudaStream_t stream);
template <>
cudaError_t launch<KDT_KV_BF16>(const AttnVerifyMlaParams& params, int32_t multiprocessors,
                                cudaStream_t stream);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// threadIdx.x % 128, read anew: were it one value for all roles, the compiler would spill it.
__device__ __forceinline__ int32_t thread_of_role() {
    int32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread & 127;
}

/// The first address from `address` on where tiles that wgmma reads with the 128-byte swizzle may
/// begin.
__device__ __forceinline__ uint32_t swizzle_aligned(uint32_t address) {
    return (address + 1023) & ~uint32_t{1023};
}

/// Where thread `thread` of a warpgroup copies of a tile of kRows rows: 4 rows a warp and step, 8
/// threads a 128-byte piece.
template <int32_t kRows>
__device__ __forceinline__ int32_t copy_row(int32_t thread, int32_t step) {
    return thread / 32 * (kRows / 4) + step * 4 + thread % 32 / 8;
}
__device__ __forceinline__ uint32_t copy_offset(int32_t row, int32_t unit) {
    return row * 128 + ((unit ^ (row & 7)) << 4);
}

/// Walks the tiles of this block's units in order.
template <int32_t kKeys>
struct TileWalk {
    const AttnVerifyMlaParams& params;
    WorkUnit unit;
    int32_t units;
    int32_t unit_index;
    int32_t key;  // first key of the tile

    __device__ explicit TileWalk(const AttnVerifyMlaParams& p)
        : params(p),
          unit(p.workspace.units[blockIdx.x]),
          units(p.workspace.header->units),
          unit_index(first_unit(p.workspace)),
          key(unit.key_begin) {}
    __device__ bool valid() const { return unit_index < units; }
    __device__ void next() {
        key += kKeys;
        if (key >= unit.key_end) next_unit_of_block();
    }
    __device__ void next_unit_of_block() {
        unit_index = next_unit(unit, unit_index);
        if (!valid()) return;
        unit = params.workspace.units[unit_index];
        key = unit.key_begin;
    }
};

/// Whether two units have the same rows, and so Q and visibility.
__device__ __forceinline__ bool same_rows(const WorkUnit& a, const WorkUnit& b) {
    return a.first_node == b.first_node && a.row_begin == b.row_begin && a.rows == b.rows;
}

/// Where the row is that this lane looks up for its warp, one of the warp's kKeys / 4.
/// `page` is in flight until it is used, so that looking up costs nothing two tiles ahead.
struct TileRow {
    enum class Tile : int32_t {
        none,  // the block's units have no more
        settled,
        fresh,  // the kernel before this may still be writing some of its rows
    };
    Tile tile = Tile::none;
    int32_t page = 0;
    int32_t within = kNoKey;  // the page

    static constexpr int32_t kNoKey = -1;
    static constexpr int32_t kSlot = -2;  // `page` is the slot itself
    __device__ int32_t slot(int32_t page_shift) const {
        if (within == kNoKey) return -1;
        return within == kSlot ? page : (page << page_shift) + within;
    }
    __device__ bool live() const { return tile != Tile::none; }
    __device__ bool fresh() const { return tile == Tile::fresh; }
    /// Of a tile of the unit that ends before `end`.
    __device__ static Tile kind(const WorkUnit& unit, int32_t end) {
        return unit.path_node >= 0 || end > unit.context ? Tile::fresh : Tile::settled;
    }
    /// Says what `key` of the unit is, one of its own; returns where its page stands.
    __device__ const int32_t* find(const AttnVerifyMlaParams& params, const WorkUnit& unit,
                                   int32_t key) {
        const AttnBatchView& batch = params.batch;
        within = kSlot;
        if (unit.path_node >= 0) {
            const AttnWorkspace& workspace = params.workspace;
            return workspace.path_slots +
                   int64_t{unit.first_node + unit.path_node} * workspace.path_keys + key;
        }
        if (key >= unit.context) return batch.tail_slots + unit.first_node + (key - unit.context);
        within = key & ((1 << batch.page_shift) - 1);
        return batch.pages + unit.pages_begin + (key >> batch.page_shift);
    }
};

/// The slots that the plan has written down for this lane's rows of the block's first kTiles tiles.
template <int32_t kKeys, int32_t kTiles>
struct FirstSlots {
    static_assert(kKeys * kTiles <= kFirstSlots);
    int32_t slot[kTiles] = {};

    /// In flight until used: needs nothing but the block's index.
    __device__ FirstSlots(const AttnWorkspace& workspace, int32_t thread) {
        constexpr int32_t kWarpRows = kKeys / 4;
        if (thread % 32 >= kWarpRows) return;
        const int32_t* from = workspace.first_slots + blockIdx.x * kFirstSlots +
                              thread / 32 * kWarpRows + thread % 32;
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile) slot[tile] = from[tile * kKeys];
    }
};

/// The row of this lane in the tile that the walk, which is at one, is at.
template <int32_t kKeys>
__device__ __forceinline__ TileRow look_up_tile(const TileWalk<kKeys>& walk, int32_t thread) {
    TileRow row;
    const WorkUnit& unit = walk.unit;
    row.tile = TileRow::kind(unit, walk.key + kKeys);
    constexpr int32_t kWarpRows = kKeys / 4;
    const int32_t key = walk.key + thread / 32 * kWarpRows + thread % 32;
    if (thread % 32 < kWarpRows && key < unit.key_end) row.page = *row.find(walk.params, unit, key);
    return row;
}

/// The same of a tile of the block's first unit, whose slots are in the plan.
template <int32_t kKeys>
__device__ __forceinline__ TileRow planned_tile(const TileWalk<kKeys>& walk, int32_t slot) {
    TileRow row;
    row.tile = TileRow::kind(walk.unit, walk.key + kKeys);
    row.page = slot;
    row.within = TileRow::kSlot;
    return row;
}

/// Q of a unit's rows. What stands for rows beyond unit.rows is the loop's own: they are never
/// stored.
struct QueryRows {
    const AttnVerifyMlaParams& params;
    const WorkUnit& unit;

    __device__ const std::byte* latent(int32_t row) const {
        const int32_t packed = unit.row_begin + row;
        const int64_t node = unit.first_node + packed / params.heads;
        return static_cast<const std::byte*>(params.q_latent) +
               2 * (node * params.q_latent_node_stride +
                    packed % params.heads * params.q_latent_head_stride);
    }
    __device__ const std::byte* rope(int32_t row) const {
        const int32_t packed = unit.row_begin + row;
        const int64_t node = unit.first_node + packed / params.heads;
        return static_cast<const std::byte*>(params.q_rope) +
               2 * (node * params.q_rope_node_stride +
                    packed % params.heads * params.q_rope_head_stride);
    }
};

/// Scores are s * score_factor in powers of two; with a logit cap, of what the cap has made of s,
/// divided by it. `scale`: of s.
__device__ __forceinline__ float score_factor(const AttnVerifyMlaParams& p, float scale) {
    constexpr float kLog2E = 1.4426950408889634f;
    return (p.logit_cap > 0.0f ? p.logit_cap : scale) * kLog2E;
}

__device__ __forceinline__ float row_lse(float maximum, float sum) {
    return sum == 0.0f ? -INFINITY : maximum + __log2f(sum);
}

/// Log-sum-exp of a finished row, to where the unit's results go.
__device__ __forceinline__ void store_lse(const AttnVerifyMlaParams& p, const WorkUnit& unit,
                                          int32_t row, float lse) {
    constexpr float kLn2 = 0.6931471805599453f;
    if (row >= unit.rows) return;
    if (unit.partial >= 0) {
        p.workspace.partial_lse[int64_t{unit.partial} * kTileRows + row] = lse;
    } else if (p.lse) {
        p.lse[int64_t{unit.first_node} * p.heads + unit.row_begin + row] = lse * kLn2;
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace kd::mla_wgmma
