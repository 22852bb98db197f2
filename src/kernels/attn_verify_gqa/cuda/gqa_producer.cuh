// The producer warpgroup: gathers K and V rows of the block's units into the ring of stages.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda.h"
#include "kernels/attn_verify_gqa/cuda/gqa_config.cuh"
#include "kernels/cuda/ptx.cuh"

namespace kd::gqa {

/// Keys of a unit, and which of them exist and can be seen by some row; the others are zero-filled
/// and their slots are never looked up.
struct KeyRange {
    int32_t begin;
    int32_t end;
    int32_t first_seen;

    __device__ KeyRange(const AttnVerifyGqaCudaParams& params, const WorkUnit& unit,
                        const AttnRequest& request)
        : begin(unit.key_begin),
          end(unit.path_node >= 0 ? unit.key_end : min(unit.key_end, request.keys())),
          first_seen(params.batch.sliding_window > 0
                         ? max(0, request.context - params.batch.sliding_window + 1)
                         : 0) {}

    template <class Config>
    __device__ int32_t tiles() const {
        return max(0, end - begin + Config::kKeys - 1) / Config::kKeys;
    }
};

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

inline constexpr int32_t kSlotRegisters = 8;
inline constexpr int32_t kBatchKeys = 32 * kSlotRegisters;
inline constexpr uint32_t kNoSlot = 0xFFFFFFFF;

/// Slots of keys [key_begin, key_begin + kBatchKeys): key 32 i + lane in slots[i] of each warp.
__device__ __forceinline__ void load_slots(uint32_t (&slots)[kSlotRegisters],
                                           const AttnVerifyGqaCudaParams& params,
                                           const WorkUnit& unit, const AttnRequest& request,
                                           const KeyRange& range, int32_t key_begin) {
    // The tree's rows and their slots may come from the kernel before this one.
    const int32_t key_end = min(key_begin + kBatchKeys, range.end);
    if (key_begin < key_end && (unit.path_node >= 0 || key_end > request.context))
        ptx::grid_dependency_wait();
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int32_t i = 0; i < kSlotRegisters; ++i) {
        const int32_t key = key_begin + 32 * i + lane;
        slots[i] = kNoSlot;
        if (key < range.end && key >= range.first_seen)
            slots[i] = static_cast<uint32_t>(unit_slot(unit, request, params.workspace, key));
    }
}

/// Rows of tile `tile` of the batch of keys whose slots these are, K or V, into shared memory.
template <class Config>
__device__ __forceinline__ void copy_tile(uint32_t to, const char* from, int64_t slot_bytes,
                                          const uint32_t (&slots)[kSlotRegisters], int32_t tile) {
    constexpr int32_t kChunkLanes =
        static_cast<int32_t>(std::bit_ceil(uint32_t{Config::kRowChunks}));
    constexpr int32_t kPassRows = kProducers / kChunkLanes;
    static_assert(kPassRows <= 32 && Config::kKeys % kPassRows == 0);
    const int32_t thread = threadIdx.x - kConsumers;
    const int32_t chunk = thread % kChunkLanes;
    const int32_t first_row = thread / kChunkLanes;
#pragma unroll
    for (int32_t i = 0; i < Config::kKeys / kPassRows; ++i) {
        const int32_t row = first_row + i * kPassRows;
        const uint32_t slot =
            __shfl_sync(~0u, slots[(tile * Config::kKeys + i * kPassRows) / 32], row % 32);
        const bool valid = slot != kNoSlot;
        const int64_t offset = valid ? slot * slot_bytes : 0;
        const uint32_t place = Config::kFp8 ? raw_offset(Config::kHeadDim, row, chunk)
                                            : half_offset(Config::kKeys, row, chunk);
        if (chunk < Config::kRowChunks)
            ptx::copy_async_16(to + place, from + offset + chunk * 16, valid);
    }
}

template <class Config>
__device__ __forceinline__ void produce(const AttnVerifyGqaCudaParams& params, int32_t stages,
                                        uint32_t ring, Barriers& barriers) {
    constexpr int32_t kBatchTiles = kBatchKeys / Config::kKeys;
    const int32_t units = params.workspace.header->units;
    RingPosition place(0, stages);
    for (int32_t u = blockIdx.x; u < units; u += gridDim.x) {
        const WorkUnit unit = params.workspace.units[u];
        const AttnRequest request(params.batch, unit);
        const KeyRange range(params, unit, request);
        const int32_t tiles = range.tiles<Config>();
        const int64_t head = unit.kv_head * params.kv_head_bytes;
        const char* k = static_cast<const char*>(params.k) + head;
        const char* v = static_cast<const char*>(params.v) + head;

        uint32_t slots[kSlotRegisters];
        load_slots(slots, params, unit, request, range, range.begin);
        for (int32_t first = 0; first < tiles; first += kBatchTiles) {
            // Ahead of the copies, so that the page table's latency is hidden behind them.
            uint32_t next[kSlotRegisters];
            load_slots(next, params, unit, request, range,
                       range.begin + (first + kBatchTiles) * Config::kKeys);
#pragma unroll
            for (int32_t i = 0; i < kBatchTiles; ++i) {
                if (first + i >= tiles) break;
                const uint32_t stage = ring + place.stage * Config::kStageBytes;
                ptx::mbarrier_wait(ptx::smem_address(&barriers.k_empty[place.stage]),
                                   place.parity ^ 1);
                copy_tile<Config>(stage, k, params.kv_slot_bytes, slots, i);
                ptx::mbarrier_arrive_on_copies(ptx::smem_address(&barriers.k_full[place.stage]));
                ptx::mbarrier_wait(ptx::smem_address(&barriers.v_empty[place.stage]),
                                   place.parity ^ 1);
                copy_tile<Config>(stage + Config::kMatrixBytes, v, params.kv_slot_bytes, slots, i);
                ptx::mbarrier_arrive_on_copies(ptx::smem_address(&barriers.v_full[place.stage]));
                place.advance(1, stages);
            }
#pragma unroll
            for (int32_t i = 0; i < kSlotRegisters; ++i) slots[i] = next[i];
        }
    }
}

}  // namespace kd::gqa
