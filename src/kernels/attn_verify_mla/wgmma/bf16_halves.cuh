// The sm_90a main loop of attn_verify_mla for steps of few rows in deterministic mode, which leave
// multiprocessors idle (attn_shares_units): a cluster's two blocks take each unit together. Block
// 2c, low, has one half of the latent to score and to accumulate, block 2c + 1, high, the other,
// and each loads nothing else:
//
//              low                               high
//   load       chunks 0 to 3                     chunks 4 to 8
//   products   their sum of the scores      <->  theirs
//   softmax    P, of both sums               ->  the same P
//   accumulate columns 0 to 255                  columns 256 to 511
//
// A row's sums, reference and P are those of a block that has the whole unit
// (attn_verify_mla_wgmma.cuh), to the bit: the order of every addition is the same. Up to 32 rows
// both blocks make P of all, which takes less time than to send it; of more rows each makes half
// and sends it to the other.
//
// A stage is only full again when the tile that was there is accumulated. What a tile passes
// through on the way there has fewer places, one tile after the other.
#pragma once

#include "kernels/attn_verify_mla/wgmma/bf16_load.cuh"
#include "kernels/attn_verify_mla/wgmma/bf16_results.cuh"
#include "kernels/attn_verify_mla/wgmma/bf16_softmax.cuh"

namespace kd::mla_wgmma {

inline constexpr int32_t kHalfStages = 5;
inline constexpr int32_t kHalfPlaces = 2;            // of sums and of P
inline constexpr int32_t kHalfRows = kTileRows / 2;  // whose P a block makes, at most
inline constexpr int32_t kHighChunks = kChunks - kLowChunks;
inline constexpr int32_t kHighRegisterChunks = kHighChunks - kSharedChunks;  // of Q
inline constexpr int32_t kSumsBytes = kHalfRows * kKeys * 4;
inline constexpr int32_t kWarpSumsBytes = 16 * kKeys * 4;
/// What the accumulation needs to know of a row beside its P, and where: in 16 bytes of P's row
/// that 48 keys leave.
struct alignas(16) RowFacts {
    float factor;   // of what was accumulated before the tile
    float inverse;  // with a unit's last tile: 1 / sum, 0 of a row that saw nothing
    int32_t moves;  // some factor of these eight rows may not be 1
};
inline constexpr int32_t kFactsUnit = kKeys / 8;  // of the eight of 16 bytes in P's row
static_assert(sizeof(RowFacts) == 16 && kFactsUnit < 8);
inline constexpr int32_t kPEightBytes = 8 * 128;  // of eight rows

// Byte offsets as in bf16_config.cuh, the same in both blocks.
inline constexpr int32_t kHalfQ = 0;  // high: [kSharedChunks]
inline constexpr int32_t kHalfKv = kHalfQ + kSharedChunks * kQChunkBytes;
inline constexpr int32_t kHalfP = kHalfKv + kHalfStages * kHighChunks * kChunkBytes;
// float4 [kHalfPlaces][own, the other block's][kKeys / 8][64], by thread of the products
inline constexpr int32_t kHalfSums = kHalfP + kHalfPlaces * kPBytes;
inline constexpr int32_t kHalfBarriers = kHalfSums + kHalfPlaces * 2 * kSumsBytes;
inline constexpr int32_t kHalfFull = kHalfBarriers;                        // 128 copies
inline constexpr int32_t kHalfEmpty = kHalfFull + 8 * kHalfStages;         // 4 warps
inline constexpr int32_t kHalfSumsFull = kHalfEmpty + 8 * kHalfStages;     // 4 warps, bytes
inline constexpr int32_t kHalfSumsRead = kHalfSumsFull + 8 * kHalfPlaces;  // 4 warps of each block
inline constexpr int32_t kHalfPFull = kHalfSumsRead + 8 * kHalfPlaces;     // 4 warps, bytes
inline constexpr int32_t kHalfPRead = kHalfPFull + 8 * kHalfPlaces;  // 4 warps of the other block
inline constexpr int32_t kHalfUnits = (kHalfPRead + 8 * kHalfPlaces + 15) / 16 * 16;
inline constexpr int32_t kHalfTilesLookedUp = 4;
inline constexpr int32_t kHalfUnitPlaces = 12;  // see kUnitPlaces
static_assert(kHalfUnitPlaces > kHalfStages + kHalfTilesLookedUp + 1);
inline constexpr int32_t kHalfSharedRequestBytes =
    kHalfUnits + kHalfUnitPlaces * sizeof(WorkUnit) + 1024;  // for the alignment
static_assert(kHalfSharedRequestBytes <= 232448);
static_assert(kHalfKv % 1024 == 0 && kHalfP % 1024 == 0);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <bool kHigh>
struct HalfRing {
    static constexpr int32_t kStages = kHalfStages;
    static constexpr int32_t kFirstChunk = kHigh ? kLowChunks : 0;
    static constexpr int32_t kChunkCount = kHigh ? kHighChunks : kLowChunks;
    static constexpr int32_t kTileBytes = kChunkCount * kChunkBytes;
    static constexpr int32_t kKv = kHalfKv;
    static constexpr int32_t kBarrierFull = kHalfFull;
    static constexpr int32_t kBarrierEmpty = kHalfEmpty;
    __device__ static constexpr int32_t unit_place(uint32_t number) {
        return kHalfUnits + static_cast<int32_t>(number % kHalfUnitPlaces * sizeof(WorkUnit));
    }
};

/// The row, of its warp's of two tiles, that a thread looks up; lanes 0 to 15 of the first.
/// Negative: none.
__device__ __forceinline__ int32_t row_to_look_up(int32_t thread) {
    constexpr int32_t kWarpRows = kKeys / 4;
    static_assert(kWarpRows <= 16 && kHalfTilesLookedUp * kKeys <= kFirstSlots);
    const int32_t row = thread % 32 / 16 * kKeys + thread / 32 * kWarpRows + thread % 16;
    return thread % 16 < kWarpRows ? row : -1;
}

/// Up to two tiles of a unit, and the row that this lane looks up. row.tile: of both.
struct TilePair {
    int32_t tiles = 0;
    TileRow row;
};

/// Gathers the tiles of this block's units, as load() does. Look-ups are waited for at a loop's
/// end, so two tiles' are asked for at once, before the two tiles ahead of them.
template <class Ring>
__device__ __forceinline__ void load_half(const AttnVerifyMlaParams& p, uint32_t shared,
                                          int32_t thread) {
    const int32_t row = row_to_look_up(thread);
    const int32_t* const in_plan = p.workspace.first_slots + blockIdx.x * kFirstSlots + max(row, 0);
    const int32_t first_slots[2] = {in_plan[0], in_plan[2 * kKeys]};
    const auto* const kv =
        static_cast<const std::byte*>(p.kv) + Ring::kFirstChunk * 128 + thread % 8 * 16;
    TileWalk<kKeys> walk(p);
    uint32_t units = 0;  // that the walk has left behind
    const auto unit_ends = [&] { return walk.key >= walk.unit.key_end; };
    /// The next tiles of the walk's unit, which has some.
    const auto tiles_of_unit = [&] {
        TilePair pair;
        pair.tiles = walk.unit.key_end - walk.key > kKeys ? 2 : 1;
        pair.row.tile = TileRow::kind(walk.unit, walk.key + pair.tiles * kKeys);
        walk.key += 2 * kKeys;
        return pair;
    };
    const auto planned = [&](int32_t slot) {
        TilePair pair = tiles_of_unit();
        pair.row.page = slot;
        pair.row.within = TileRow::kSlot;
        return pair;
    };
    const auto go_on = [&] {
        walk.next_unit_of_block();
        if (walk.valid()) copy_unit<Ring>(p, shared, ++units, walk.unit_index, thread);
    };
    TilePair now;
    TilePair next;
    bool next_known = false;
    if (walk.valid()) {
        now = planned(first_slots[0]);
        next_known = !unit_ends();
        if (next_known) next = planned(first_slots[1]);
    }
    for (uint32_t tile = 0; now.tiles > 0;) {
        if (!next_known) {
            next = {};
            if (unit_ends()) go_on();
            if (walk.valid()) {
                const int32_t key = walk.key + row;
                next = tiles_of_unit();
                if (row >= 0 && key < walk.unit.key_end)
                    next.row.page = *next.row.find(p, walk.unit, key);
            }
        }
        next_known = false;
        const int32_t lane_slot = now.row.slot(p.batch.page_shift);
        if (now.row.fresh()) ptx::grid_dependency_wait();  // again costs less than to remember it
#pragma unroll 1
        for (int32_t lane = 0; lane < now.tiles * 16; lane += 16) {
            copy_tile<Ring>(p, kv, shared, tile, lane_slot, lane, thread);
            // Let Q be asked for behind it, or it would queue behind all stages.
            if (tile == 0) ptx::named_barrier_sync(kQueryBarrier, 256);
            ++tile;
        }
        now = next;
    }
}

/// The walk of a role over the block's units, and the tile it is at.
struct HalfWalk {
    const std::byte* memory;
    uint32_t shared;
    WorkUnit unit;
    int32_t units;  // of the plan
    int32_t index;
    uint32_t tile = 0;
    uint32_t stage = 0;  // the tile's
    uint32_t stage_parity = 0;
    uint32_t unit_count = 0;

    __device__ HalfWalk(const AttnVerifyMlaParams& params, const std::byte* shared_memory,
                        uint32_t address)
        : memory(shared_memory),
          shared(address),
          unit(params.workspace.units[blockIdx.x]),
          units(params.workspace.header->units),
          index(first_unit(params.workspace)) {}

    __device__ bool valid() const { return index < units; }
    __device__ uint32_t place() const { return tile % kHalfPlaces; }
    __device__ uint32_t place_parity() const { return tile / kHalfPlaces & 1; }
    __device__ uint32_t empty() const { return shared + kHalfEmpty + 8 * stage; }
    /// The tile's barrier of those that each place has, kHalfSumsFull and the like.
    __device__ uint32_t of_place(int32_t barriers) const { return shared + barriers + 8 * place(); }
    __device__ void wait_for_keys() const {
        ptx::mbarrier_wait(shared + kHalfFull + 8 * stage, stage_parity);
    }
    /// Until the tile is accumulated that had this tile's place of P.
    __device__ void wait_for_place() const {
        const bool same_lap = stage >= kHalfPlaces;  // before the first: parity 1, of no tile
        const uint32_t before = same_lap ? stage - kHalfPlaces : stage + kHalfStages - kHalfPlaces;
        ptx::mbarrier_wait(shared + kHalfEmpty + 8 * before,
                           same_lap ? stage_parity : stage_parity ^ 1);
    }
    __device__ void next_tile() {
        ++tile;
        const bool wraps = stage == kHalfStages - 1;
        stage = wraps ? 0 : stage + 1;
        stage_parity ^= wraps;
    }

    /// On to the next unit, when its first tile has landed. False: there is none.
    __device__ bool next_unit_of_block() {
        index = next_unit(unit, index);
        if (!valid()) return false;
        wait_for_keys();
        ++unit_count;
        unit = *reinterpret_cast<const WorkUnit*>(memory + HalfRing<false>::unit_place(unit_count));
        return true;
    }
};

/// Whether each block makes P of half of the rows: where one cannot make all.
__device__ __forceinline__ bool halves_split(const AttnVerifyMlaParams& p) {
    return p.most_shared_rows > kHalfRows;
}

/// Warps whose rows the unit does not have do nothing but arrive.
__device__ __forceinline__ bool warp_has_rows(const WorkUnit& unit, int32_t thread) {
    return thread / 32 * 16 < unit.rows;
}

/// Where a place's sums of thread `thread` of the products are: four of every 8 keys, 1 KB further
/// for the next 8; kSumsBytes further the other block's.
__device__ __forceinline__ uint32_t sums_at(uint32_t shared, uint32_t place, int32_t thread) {
    return shared + kHalfSums + place * 2 * kSumsBytes + thread % (4 * kHalfRows / 2) * 16;
}

/// A block's sums of a tile's scores go to its softmax and to the other block's, wherever their P
/// is made.
template <bool kHigh>
__device__ __forceinline__ void half_products(const AttnVerifyMlaParams& p, const std::byte* memory,
                                              uint32_t shared, int32_t thread) {
    HalfWalk walk(p, memory, shared);
    QuerySources sources;
    if (walk.valid()) sources = QuerySources(p, walk.unit, thread);
    sources.hold();
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    if (!walk.valid()) return;
    constexpr int32_t kSteps = 4 * (kHigh ? kHighRegisterChunks : kLowChunks);
    constexpr int32_t kFirst = kHigh ? kLowChunks : 0;
    uint32_t q[kSteps][4];
    // High's other chunks, by way of shared memory. Multiplied from there they would cost every
    // tile 32 KB of its bandwidth: 53.4 us instead of 51.4 with 8 nodes at 128k.
    uint32_t copied[kHigh ? kSharedChunks * 4 : 1][4];
    const auto load = [&](const QuerySources& from, const auto& started) {
        load_q<kFirst, kHigh>(from, shared + kHalfQ, thread, q, started);
        if constexpr (kHigh) {
#pragma unroll
            for (int32_t step = 0; step < kSharedChunks * 4; ++step)
                ptx::load_matrices(copied[step], shared + kHalfQ + step / 4 * kQChunkBytes +
                                                     copy_offset(thread / 32 * 16 + thread % 16,
                                                                 step % 4 * 2 + thread % 32 / 16));
        }
    };
    load(sources, [] { ptx::named_barrier_arrive(kQueryBarrier, 256); });
    const uint32_t peer = ptx::map_shared(shared, kHigh ? 0 : 1);
    constexpr uint32_t kTileUnits = HalfRing<kHigh>::kTileBytes >> 4;
    const uint64_t ring = wgmma::k_major(__shfl_sync(0xffffffff, shared + kHalfKv, 0));
    // Whose softmax has this warp's rows.
    const bool of_high = thread >= 64;
    const bool splits = halves_split(p);
    const bool own = splits ? of_high == kHigh : !of_high;
    const bool sent = splits ? of_high != kHigh : !of_high;
    for (;;) {
        const bool has_rows = warp_has_rows(walk.unit, thread);
        for (int32_t key = walk.unit.key_begin; key < walk.unit.key_end; key += kKeys) {
            const uint64_t keys = ring + walk.stage * kTileUnits;
            Scores s;
            walk.wait_for_keys();
            wgmma::fence();
            if constexpr (kHigh) {
#pragma unroll
                for (int32_t step = 0; step < kSharedChunks * 4; ++step)
                    wgmma::rs_n48(
                        s, copied[step],
                        keys + (kHighRegisterChunks + step / 4) * (kChunkBytes >> 4) + step % 4 * 2,
                        step > 0);
            }
#pragma unroll
            for (int32_t step = 0; step < kSteps; ++step)
                wgmma::rs_n48(s, q[step], keys + step / 4 * (kChunkBytes >> 4) + step % 4 * 2,
                              kHigh || step > 0);
            wgmma::commit();
            wgmma::wait<0>();
            wgmma::touch(s);
            // By both blocks.
            ptx::mbarrier_wait_relaxed_cluster(walk.of_place(kHalfSumsRead),
                                               walk.place_parity() ^ 1);
            const uint32_t place = walk.place();
            if (has_rows && sent) {
#pragma unroll
                for (int32_t i = 0; i < kKeys / 2; i += 4)
                    ptx::store_async(sums_at(peer, place, thread) + kSumsBytes + i * 256,
                                     make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]),
                                     peer + kHalfSumsFull + 8 * place);
            }
            if (has_rows && own) {
#pragma unroll
                for (int32_t i = 0; i < kKeys / 2; i += 4)
                    ptx::store_shared(sums_at(shared, place, thread) + i * 256,
                                      make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]));
            }
            __syncwarp();
            ptx::mbarrier_arrive_warp_expect_bytes(walk.of_place(kHalfSumsFull), thread % 32,
                                                   has_rows && own ? kWarpSumsBytes : 0);
            walk.next_tile();
        }
        const WorkUnit before = walk.unit;
        if (!walk.next_unit_of_block()) return;
        if (same_rows(walk.unit, before)) continue;
        // All four warps are through with the Q of the unit before.
        ptx::named_barrier_sync(kScoreBarrier, 128);
        load(QuerySources(p, walk.unit, thread), [] {});
    }
}

/// The softmax, in both blocks: a warp has 8 rows, a thread one.
__device__ __forceinline__ void half_softmax(const AttnVerifyMlaParams& p, const std::byte* memory,
                                             uint32_t shared, int32_t thread) {
    const int32_t lane = thread % 32;
    const int32_t rank = blockIdx.x % 2;
    const bool splits = halves_split(p);
    const int32_t own_eight = thread / 32;  // of the block's; in the unit:
    const int32_t eight = own_eight + (splits ? 4 * rank : 0);
    const int32_t row = eight * 8 + lane / 4;
    const float to_log2 = score_factor(p, p.scale);
    // Lane l addresses row l % 8 of 8 keys of matrix l / 8.
    const uint32_t p_row = shared + kHalfP + copy_offset(eight * 8 + lane % 8, lane / 8);
    const uint32_t peer = ptx::map_shared(shared, rank ^ 1);
    HalfWalk walk(p, memory, shared);
    ptx::grid_dependency_wait();
    if (!walk.valid()) return;
    SeenKeys<1> seen(p, walk.unit, row);
    float2 own[kKeys / 8];
    float2 other[kKeys / 8];
    const auto ask_for_scores = [&] {
        const uint32_t from =
            sums_at(shared, walk.place(), own_eight / 2 * 32 + lane) + own_eight % 2 * 8;
#pragma unroll
        for (int32_t j = 0; j < kKeys / 8; ++j) {
            own[j] = ptx::load_shared_float2(from + j * 1024);
            other[j] = ptx::load_shared_float2(from + kSumsBytes + j * 1024);
        }
    };
    float s[kKeys / 4];
    // When all have come: loads from shared memory come back in order.
    const auto take_scores = [&] {
        ptx::hold_until(__float_as_uint(other[kKeys / 8 - 1].x) |
                        __float_as_uint(other[kKeys / 8 - 1].y));
#pragma unroll
        for (int32_t j = 0; j < kKeys / 8; ++j) {
            s[2 * j] = own[j].x + other[j].x;
            s[2 * j + 1] = own[j].y + other[j].y;
        }
    };
    // Both blocks may write the place whose scores have been taken. Told once P is on its way, if
    // they were asked for ahead of it.
    const auto free_sums = [&] {
        __syncwarp();
        ptx::mbarrier_arrive_warp(walk.of_place(kHalfSumsRead), lane);
        ptx::mbarrier_arrive_warp_of_peer(peer + kHalfSumsRead + 8 * walk.place(), lane);
    };
    // Until the other block has sent its arrivals for the last tiles, this one may not leave.
    const auto wait_for_peer = [&] {
        for (uint32_t back = 1; back <= kHalfPlaces && back <= walk.tile; ++back) {
            const uint32_t tile = walk.tile - back;
            const uint32_t barriers = shared + 8 * (tile % kHalfPlaces);
            ptx::mbarrier_wait_relaxed_cluster(barriers + kHalfSumsRead, tile / kHalfPlaces & 1);
            if (splits)
                ptx::mbarrier_wait_relaxed_cluster(barriers + kHalfPRead, tile / kHalfPlaces & 1);
        }
    };
    for (;;) {
        const WorkUnit& unit = walk.unit;
        const bool has_rows = eight * 8 < unit.rows;
        // Bytes that the same warp of the other block sends.
        const uint32_t received =
            splits && (own_eight + 4 * (rank ^ 1)) * 8 < unit.rows ? kPEightBytes : 0;
        RowState rows[1];
        bool loaded = false;
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kKeys) {
            if (!loaded) {
                ptx::mbarrier_wait_cluster(walk.of_place(kHalfSumsFull), walk.place_parity());
                if (has_rows) {
                    ask_for_scores();
                    take_scores();
                }
                free_sums();
            }
            const uint32_t place = walk.place();
            const uint32_t place_parity = walk.place_parity();
            const uint32_t p_full = walk.of_place(kHalfPFull);
            if (!has_rows) {
                walk.wait_for_place();
                ptx::mbarrier_arrive_warp_expect_bytes(p_full, lane, received);
                walk.next_tile();
                continue;
            }
            if (p.logit_cap > 0.0f) cap_scores(p, s);
            if (key + kKeys > unit.seen_end) seen.mask(p, unit, key, s);
            const auto tile = soften<1>(s, to_log2, thread, key == unit.key_begin, rows);
            float inverse = 0.0f;
            const bool last = key + kKeys >= unit.key_end;
            if (last) {
                rows[0].sum = quad_sum(rows[0].sum);
                inverse = rows[0].sum == 0.0f ? 0.0f : 1.0f / rows[0].sum;
            }
            walk.wait_for_place();
            if (splits)
                ptx::mbarrier_wait_relaxed_cluster(walk.of_place(kHalfPRead), place_parity ^ 1);
            walk.next_tile();
            // Asked for here, they come while P is stored.
            loaded = __all_sync(0xffffffff,
                                !last && ptx::mbarrier_done_cluster(walk.of_place(kHalfSumsFull),
                                                                    walk.place_parity()));
            if (loaded) ask_for_scores();
            const uint32_t to = p_row + place * kPBytes;
            static_assert(kKeys / 8 == 6);
            ptx::store_matrices(to, tile.p[0][0], tile.p[1][0], tile.p[2][0], tile.p[3][0]);
            ptx::store_matrix_pair(to ^ (4 << 4), tile.p[4][0], tile.p[5][0]);
            if (lane % 4 == 0)
                ptx::store_shared(shared + kHalfP + place * kPBytes + copy_offset(row, kFactsUnit),
                                  make_uint4(__float_as_uint(tile.factor[0]),
                                             __float_as_uint(inverse), uint32_t{tile.rescale}, 0));
            if (splits) ptx::fence_async_proxy();
            __syncwarp();
            if (splits && lane == 0) {
                const uint32_t values = kHalfP + place * kPBytes + eight * kPEightBytes;
                const uint32_t peer_full = peer + kHalfPFull + 8 * place;
                ptx::copy_bulk_to_peer(peer + values, shared + values, kPEightBytes, peer_full);
            }
            ptx::mbarrier_arrive_warp_expect_bytes(p_full, lane, received);
            if (loaded) {
                take_scores();
                free_sums();
            }
            if (last && lane % 4 == 0 && (splits || rank == 0))
                store_lse(p, unit, row, row_lse(rows[0].maximum, rows[0].sum));
        }
        const WorkUnit before = walk.unit;
        if (!walk.next_unit_of_block()) return wait_for_peer();
        if (!same_rows(walk.unit, before)) seen = SeenKeys<1>(p, walk.unit, row);
    }
}

/// O of this block's half of the latent.
template <bool kHigh>
__device__ __forceinline__ void half_accumulate(const AttnVerifyMlaParams& p,
                                                const std::byte* memory, uint32_t shared,
                                                int32_t thread) {
    const int32_t warp = thread / 32;
    const int32_t lane = thread % 32;
    constexpr uint32_t kTileUnits = HalfRing<kHigh>::kTileBytes >> 4;
    // Where this lane points when it loads P of its warp's rows as operand A.
    const uint32_t p_rows = shared + kHalfP + copy_offset(warp * 16 + lane % 16, lane / 16);
    const uint64_t ring =
        wgmma::mn_major(__shfl_sync(0xffffffff, shared + kHalfKv, 0), kChunkBytes);
    const uint32_t peer_read = ptx::map_shared(shared + kHalfPRead, kHigh ? 0 : 1);
    const bool splits = halves_split(p);
    HalfWalk walk(p, memory, shared);
    ptx::grid_dependency_wait();  // the partials may still be read by the step before
    if (!walk.valid()) return;
    do {
        const WorkUnit& unit = walk.unit;
        const bool has_rows = warp_has_rows(unit, thread);
        const bool has_second = warp * 16 + 8 < unit.rows;  // eight of them
        float o[2][64];
        float inverse[2] = {};
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kKeys) {
            const bool first = key == unit.key_begin;
            walk.wait_for_keys();
            ptx::mbarrier_wait_cluster(walk.of_place(kHalfPFull), walk.place_parity());
            const auto of_row = [&](int32_t half) {
                return reinterpret_cast<const volatile RowFacts*>(
                    memory + kHalfP + walk.place() * kPBytes +
                    copy_offset(warp * 16 + half * 8 + lane / 4, kFactsUnit));
            };
            const auto rescales = [&](int32_t half) { return of_row(half)->moves != 0; };
            if (!first && has_rows && (rescales(0) || (has_second && rescales(1)))) {
                const float factor[2] = {of_row(0)->factor, of_row(1)->factor};
#pragma unroll
                for (int32_t i = 0; i < 128; ++i) o[i / 64][i % 64] *= factor[i >> 1 & 1];
            }
            if (key + kKeys >= unit.key_end) {
                inverse[0] = of_row(0)->inverse;
                inverse[1] = of_row(1)->inverse;
                // Read, before the other block hears that it is.
                ptx::hold_until(__float_as_uint(inverse[0]) | __float_as_uint(inverse[1]));
            }
            // Out of shared memory both products of a step would read P, and whoever makes it would
            // have to wait for the async proxy's sight of it.
            uint32_t probs[kKeys / 16][4];
#pragma unroll
            for (int32_t step = 0; step < kKeys / 16; ++step)
                ptx::load_matrices(probs[step], (p_rows + walk.place() * kPBytes) ^ step << 5);
            add_products(ring + walk.stage * kTileUnits, !first, o,
                         [&](float(&d)[64], int32_t step, uint64_t v, bool add) {
                             wgmma::rs_n128_bt<false, 0>(d, probs[step], v, add);
                         });
            // In this order: softmax warps without rows follow "stage free" alone, and must not be
            // further when they get some than "P read" is.
            if (splits) ptx::mbarrier_arrive_warp_of_peer(peer_read + 8 * walk.place(), lane);
            ptx::mbarrier_arrive_warp(walk.empty(), lane);
            walk.next_tile();
        }
        store_partial(p, unit, thread, kHigh ? 1 : 0, inverse, o);
        __syncwarp();
    } while (walk.next_unit_of_block());
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: at most one block a multiprocessor, persistent, in clusters of two. Block: kThreads.
__global__ void __launch_bounds__(kThreads, 1)
    attn_verify_mla_wgmma_halves_kernel(const __grid_constant__ AttnVerifyMlaParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::byte raw_memory[];
    const uint32_t shared = swizzle_aligned(ptx::smem_address(raw_memory));
    std::byte* const memory = raw_memory + (shared - ptx::smem_address(raw_memory));
    if (threadIdx.x == 0) {
        for (int32_t stage = 0; stage < kHalfStages; ++stage) {
            ptx::mbarrier_init(shared + kHalfFull + 8 * stage, 128);
            ptx::mbarrier_init(shared + kHalfEmpty + 8 * stage, 4 * ptx::kWarpArrivals);
        }
        for (int32_t place = 0; place < kHalfPlaces; ++place) {
            const uint32_t barriers = shared + 8 * place;
            ptx::mbarrier_init(barriers + kHalfSumsFull, 4 * ptx::kWarpArrivals);
            ptx::mbarrier_init(barriers + kHalfSumsRead, 8 * ptx::kWarpArrivals);
            ptx::mbarrier_init(barriers + kHalfPFull, 4 * ptx::kWarpArrivals);
            ptx::mbarrier_init(barriers + kHalfPRead, 4 * ptx::kWarpArrivals);
        }
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    ptx::cluster_sync();
    const int32_t role = threadIdx.x / 128;
    const bool high = blockIdx.x % 2 == 1;
    if (role == 0) {
        ptx::setmaxnreg_decrease<48>();
        if (high)
            load_half<HalfRing<true>>(p, shared, thread_of_role());
        else
            load_half<HalfRing<false>>(p, shared, thread_of_role());
    } else if (role == 1) {
        ptx::setmaxnreg_increase<152>();
        if (high)
            half_products<true>(p, memory, shared, thread_of_role());
        else
            half_products<false>(p, memory, shared, thread_of_role());
    } else if (role == 2) {
        ptx::setmaxnreg_increase<144>();
        half_softmax(p, memory, shared, thread_of_role());
    } else {
        ptx::setmaxnreg_increase<168>();
        if (high)
            half_accumulate<true>(p, memory, shared, thread_of_role());
        else
            half_accumulate<false>(p, memory, shared, thread_of_role());
    }
    // Neither leaves while the other may still reach into its shared memory.
    __syncwarp();
    ptx::cluster_sync();
#endif
}

}  // namespace kd::mla_wgmma
