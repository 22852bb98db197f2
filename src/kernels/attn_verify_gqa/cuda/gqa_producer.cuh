// Which units a block works off, and the producer warpgroup, which gathers their K and V rows into
// the ring of stages.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda.h"
#include "kernels/attn_verify_gqa/cuda/gqa_config.cuh"
#include "kernels/cuda/ptx.cuh"

namespace kd::gqa {

/// The units of this block: first, then next() of each. Pairs: also the one after each.
struct UnitWalk {
    int32_t units;
    int32_t first;
    bool planned;  // deterministic mode: units say which is next
    bool pairs;

    /// Pairs in deterministic mode.
    template <class Config>
    __device__ static bool planned_pairs(const AttnVerifyGqaCudaParams& params) {
        return Config::kPairs && params.workspace.path_keys > 0;
    }
    /// Where this block's first unit is if it has one, but for pairs in fast mode: what is there
    /// may be asked for before more is known.
    template <class Config>
    __device__ static int32_t likely_first(const AttnVerifyGqaCudaParams& params) {
        const auto block = static_cast<int32_t>(blockIdx.x);
        return planned_pairs<Config>(params) ? 2 * block : block;
    }

    /// Pairs in deterministic mode, whose plan consists of them; in fast mode where units outnumber
    /// blocks and every request has an even number of row tiles: the plan has those of the same
    /// keys side by side.
    template <class Config>
    __device__ static UnitWalk of(const AttnVerifyGqaCudaParams& params) {
        const auto blocks = static_cast<int32_t>(gridDim.x);
        const bool planned = params.workspace.path_keys > 0;
        UnitWalk walk{params.workspace.header->units, first_unit(params.workspace), planned, false};
        if constexpr (Config::kPairs) {
            if (walk.first == kLastUnit || (!planned && walk.units <= blocks)) return walk;
            if (!planned) {
                const int32_t group = params.heads / params.kv_heads;
                bool odd = false;
                for (int32_t r = static_cast<int32_t>(threadIdx.x) % 32; r < params.batch.requests;
                     r += 32) {
                    const int32_t nodes =
                        params.batch.node_start[r + 1] - params.batch.node_start[r];
                    odd |= (nodes * group + kTileRows - 1) / kTileRows % 2 != 0;
                }
                if (__any_sync(~0u, odd)) return walk;
            }
            walk.first *= 2;
            walk.pairs = true;
        }
        return walk;
    }

    /// What this block takes after `unit`, its number `index`.
    __device__ int32_t next(const WorkUnit& unit, int32_t index) const {
        if (planned) return unit.next;
        return index + static_cast<int32_t>(gridDim.x) * (pairs ? 2 : 1);
    }
};

/// Whether the consumers of a pair take the same tiles.
__device__ __forceinline__ bool same_keys(const WorkUnit& a, const WorkUnit& b) {
    return a.path_node < 0 && a.key_begin == b.key_begin && a.key_end == b.key_end;
}

template <class Config>
__device__ __forceinline__ int32_t unit_tiles(const WorkUnit& unit) {
    return (unit.key_end - unit.key_begin + Config::kKeys - 1) / Config::kKeys;
}

/// Place in the ring; tile n of the block lies in stage n % stages.
struct RingPosition {
    int32_t stage;
    uint32_t parity;

    __device__ RingPosition(uint32_t tile, int32_t stages)
        : stage(static_cast<int32_t>(tile % stages)), parity(tile / stages & 1) {}
    __device__ void advance(int32_t tiles, int32_t stages) {  // tiles <= stages
        stage += tiles;
        if (stage >= stages) {
            stage -= stages;
            parity ^= 1;
        }
    }
};

/// Tiles whose rows a producer warp looks up at a time, a quarter of each tile's: lane l row l %
/// kWarpRows of tile l / kWarpRows.
template <class Config>
inline constexpr int32_t kWarpRows = Config::kKeys / 4;
template <class Config>
inline constexpr int32_t kLookUpTiles = 32 / kWarpRows<Config>;

/// One such look-up. `page` is in flight until it is used.
struct LookUp {
    int32_t page;
    int32_t shift;
    int32_t within;        // -1: no such key, or no row sees it: zeros
    int64_t first_head;    // bytes from a slot to the K/V head of the first tile
    int64_t another_head;  // the same of the others
    int32_t tiles;         // 0: the block's units have no more

    __device__ int32_t slot() const { return within < 0 ? -1 : (page << shift) + within; }
};

/// Looks up the tiles of the block's units, one stretch after the other.
template <class Config>
struct TileWalk {
    static constexpr int32_t kStretch = kLookUpTiles<Config> * Config::kKeys;

    const AttnVerifyGqaCudaParams& params;
    UnitWalk walk;
    int32_t index;
    WorkUnit unit;
    int32_t key;  // first that was not looked up
    // The unit beside it in a pair of different keys, of the same request; else it has no keys.
    int32_t beside_key = 0;
    int32_t beside_end = 0;
    int32_t beside_node = -1;
    int64_t head;  // bytes from a slot to it
    int64_t beside_head = 0;
    bool waited = false;

    __device__ explicit TileWalk(const AttnVerifyGqaCudaParams& p) : params(p) {
        load(UnitWalk::likely_first<Config>(p));
        walk = UnitWalk::of<Config>(p);
        index = walk.first;
        if (walk.pairs && !walk.planned) load(index);
    }

    __device__ __forceinline__ void load(int32_t from) {
        unit = params.workspace.units[from];
        key = unit.key_begin;
        head = unit.kv_head * params.kv_head_bytes;
        if (!UnitWalk::planned_pairs<Config>(params)) return;
        const WorkUnit& beside = params.workspace.units[from + 1];
        beside_end = beside.key_end;
        beside_key = same_keys(unit, beside) ? beside_end : beside.key_begin;
        beside_head = beside.kv_head * params.kv_head_bytes;
        beside_node = beside.path_node;
    }

    /// The next tiles in the ring's order: one of each unit of a pair while both have keys left,
    /// else all of one.
    __device__ __forceinline__ LookUp next(int32_t thread) {
        LookUp row{0, 0, -1, 0, 0, 0};
        if (index >= walk.units) return row;  // also where `unit` is none of the plan's
        // The unit before the page: waiting for it would be waiting for the page as well.
        if (key >= unit.key_end && beside_key >= beside_end) {
            index = walk.next(unit, index);
            if (index >= walk.units) return row;
            load(index);
        }
        const AttnBatchView& batch = params.batch;
        // Rows of the context were written rounds ago; those of the tail by the kernel before this.
        if (!waited && (unit.path_node >= 0 || min(key + kStretch, unit.key_end) > unit.context)) {
            ptx::grid_dependency_wait();
            waited = true;
        }
        const int32_t lane = thread % 32;
        const int32_t tile = lane / kWarpRows<Config>;
        const int32_t in_tile = thread / 32 * kWarpRows<Config> + lane % kWarpRows<Config>;
        int32_t at = key + tile * Config::kKeys + in_tile;
        int32_t end = unit.key_end;
        int32_t node = unit.path_node;
        int32_t left = unit.key_end - key;
        row.first_head = row.another_head = head;
        if (beside_key >= beside_end) [[likely]] {
            key += kStretch;
        } else {
            const bool both = key < unit.key_end;
            const int32_t beside_at = beside_key + in_tile;
            left = beside_end - beside_key;
            row.another_head = beside_head;
            if (both) {
                left = 2 * Config::kKeys;
                at = key + in_tile;
                key += Config::kKeys;
            } else {
                row.first_head = beside_head;
            }
            if (!both || tile > 0) {
                at = beside_at + (both ? 0 : tile * Config::kKeys);
                end = beside_end;
                node = beside_node;
            }
            beside_key += both ? Config::kKeys : kStretch;
        }
        row.tiles = min(kLookUpTiles<Config>, (left + Config::kKeys - 1) / Config::kKeys);

        const int32_t first_seen =
            batch.sliding_window > 0 && node < 0 ? unit.context - batch.sliding_window + 1 : 0;
        if (at < end && at >= first_seen) {
            const int32_t* from;
            row.within = 0;
            if (node >= 0) {
                const AttnWorkspace& workspace = params.workspace;
                from = workspace.path_slots +
                       int64_t{unit.first_node + node} * workspace.path_keys + at;
            } else if (at >= unit.context) {
                from = batch.tail_slots + unit.first_node + (at - unit.context);
            } else {
                row.shift = batch.page_shift;
                row.within = at & ((1 << row.shift) - 1);
                from = batch.pages + unit.pages_begin + (at >> row.shift);
            }
            row.page = *from;
        }
        return row;
    }
};

/// The rows of one tile, K and V, into a stage; lane first_lane + l has the slot of the warp's row
/// l.
template <class Config>
__device__ __forceinline__ void copy_tile(const AttnVerifyGqaCudaParams& params, uint32_t stage,
                                          int32_t lane_slot, int32_t first_lane, int64_t head,
                                          int32_t thread) {
    constexpr int32_t kChunkLanes =
        static_cast<int32_t>(std::bit_ceil(uint32_t{Config::kRowChunks}));
    constexpr int32_t kStepRows = 32 / kChunkLanes;
    static_assert(kWarpRows<Config> % kStepRows == 0);
    const int32_t chunk = thread % kChunkLanes;
    const int32_t step_row = thread % 32 / kChunkLanes;
    const int64_t column = head + chunk * 16;
    const auto* const k = static_cast<const std::byte*>(params.k) + column;
    const auto* const v = static_cast<const std::byte*>(params.v) + column;
#pragma unroll
    for (int32_t i = 0; i < kWarpRows<Config> / kStepRows; ++i) {
        const int32_t slot = __shfl_sync(~0u, lane_slot, first_lane + i * kStepRows + step_row);
        const bool valid = slot >= 0;
        const int64_t offset = valid ? slot * params.kv_slot_bytes : 0;
        const int32_t row = thread / 32 * kWarpRows<Config> + i * kStepRows + step_row;
        const uint32_t to =
            stage + (Config::kFp8 ? raw_offset(Config::kHeadDim, Config::kKeys, row, chunk)
                                  : half_offset(Config::kKeys, row, chunk));
        if (chunk < Config::kRowChunks) {
            ptx::copy_async_16(to, k + offset, valid);
            ptx::copy_async_16(to + Config::kMatrixBytes, v + offset, valid);
        }
    }
}

template <class Config>
__device__ __forceinline__ void produce(const AttnVerifyGqaCudaParams& params, int32_t stages,
                                        uint32_t ring, Barriers& barriers) {
    const auto thread = static_cast<int32_t>(threadIdx.x) - kConsumers;
    TileWalk<Config> walk(params);
    RingPosition place(0, stages);
    // A look-up ahead: one is used when the next is asked for. Not more than one in flight: loads
    // share a scoreboard, so that using the older would wait for the younger.
    LookUp now = walk.next(thread);
    while (now.tiles > 0) {
        const int32_t lane_slot = now.slot();
        const LookUp next = walk.next(thread);
#pragma unroll 1
        for (int32_t i = 0; i < now.tiles; ++i) {
            ptx::mbarrier_wait(ptx::smem_address(&barriers.empty[place.stage]), place.parity ^ 1);
            const int64_t head = Config::kPairs && i > 0 ? now.another_head : now.first_head;
            copy_tile<Config>(params, ring + place.stage * Config::kStageBytes, lane_slot,
                              i * kWarpRows<Config>, head, thread);
            ptx::mbarrier_arrive_on_copies(ptx::smem_address(&barriers.full[place.stage]));
            place.advance(1, stages);
        }
        now = next;
    }
}

}  // namespace kd::gqa
