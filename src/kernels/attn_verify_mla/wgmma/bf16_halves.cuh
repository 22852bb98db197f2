// The sm_90a main loop of attn_verify_mla for steps of few rows in deterministic mode, which leave
// multiprocessors idle (attn_shares_units): a cluster's two blocks take each unit together. Block
// 2c, low, has one half of the latent to score and to accumulate, block 2c + 1, high, the other,
// and each loads nothing else:
//
//              low                                high
//   load       chunks 0 to 3                      chunks 4 to 8
//   products   adds its chunks to high's sums  <- the scores' sums over its chunks
//   softmax    P                                  (idle)
//   accumulate columns 0 to 255, passes P on   -> columns 256 to 511
//
// A row's sums, reference and P are those of a block that has the whole unit
// (attn_verify_mla_wgmma.cuh), to the bit: the order of every addition is the same. Four warpgroups
// in a row pass a tile on, so that a tile takes as long as the slowest of them, not as all
// together.
//
// Everything that a tile passes through, its stage, its sums, its P, has as many places as there
// are stages and goes by the tile's number. Nobody asks whether a place is free: a stage is only
// full again when its block has accumulated the tile that was there, for which low had made P from
// its scores; and high's sums of a tile say that the same is so in high.
#pragma once

#include "kernels/attn_verify_mla/wgmma/bf16_load.cuh"
#include "kernels/attn_verify_mla/wgmma/bf16_results.cuh"
#include "kernels/attn_verify_mla/wgmma/bf16_softmax.cuh"

namespace kd::mla_wgmma {

inline constexpr int32_t kHalfPlaces = 5;
inline constexpr int32_t kLowChunks = 4;
inline constexpr int32_t kHighChunks = kChunks - kLowChunks;
inline constexpr int32_t kHighRegisterChunks = kHighChunks - kSharedChunks;  // of Q
inline constexpr int32_t kSumsBytes = kTileRows * kKeys * 4;
inline constexpr int32_t kWarpSumsBytes = kSumsBytes / 4;
/// What a warp of the accumulation needs to know of its 16 rows beside P: RowFacts, then two int32,
/// whether some factor of the first or the last 8 may not be 1.
struct RowFacts {
    float factor;   // of what was accumulated before the tile
    float inverse;  // with a unit's last tile: 1 / sum, 0 of a row that saw nothing
};
inline constexpr int32_t kWarpFlags = 16 * sizeof(RowFacts);
inline constexpr int32_t kWarpFactsBytes = kWarpFlags + 16;

// Byte offsets as in bf16_config.cuh. The two blocks have P at the same place, and all behind it.
inline constexpr int32_t kHalfSums = 0;  // low: float4 [kHalfPlaces][kKeys / 8][128], by thread
inline constexpr int32_t kLowKv = kHalfPlaces * kSumsBytes;
inline constexpr int32_t kHalfQ = 0;  // high: [kSharedChunks]
inline constexpr int32_t kHighKv = kSharedChunks * kQChunkBytes;
inline constexpr int32_t kHalfP = kHighKv + kHalfPlaces * kHighChunks * kChunkBytes;
inline constexpr int32_t kHalfFacts = kHalfP + kHalfPlaces * kPBytes;  // [kHalfPlaces][4 warps]
inline constexpr int32_t kHalfBarriers = kHalfFacts + kHalfPlaces * 4 * kWarpFactsBytes;
inline constexpr int32_t kHalfFull = kHalfBarriers;                 // 128 copies
inline constexpr int32_t kHalfEmpty = kHalfFull + 8 * kHalfPlaces;  // 4 warps
inline constexpr int32_t kHalfSumsFull =
    kHalfEmpty + 8 * kHalfPlaces;  // low: 4 warps, high's bytes
inline constexpr int32_t kHalfScoresFull = kHalfSumsFull + 8 * kHalfPlaces;  // low: 4 warps
inline constexpr int32_t kHalfPFull = kHalfScoresFull + 8 * kHalfPlaces;     // 4 warps; high: bytes
inline constexpr int32_t kHalfUnits = (kHalfPFull + 8 * kHalfPlaces + 15) / 16 * 16;
inline constexpr int32_t kHalfTilesLookedUp = 4;
inline constexpr int32_t kHalfUnitPlaces = 12;  // see kUnitPlaces
static_assert(kHalfUnitPlaces > kHalfPlaces + kHalfTilesLookedUp + 1);
inline constexpr int32_t kHalfSharedRequestBytes =
    kHalfUnits + kHalfUnitPlaces * sizeof(WorkUnit) + 1024;  // for the alignment
static_assert(kHalfSharedRequestBytes >= kSharedRequestBytes && kHalfSharedRequestBytes <= 232448);
static_assert(kLowKv + kHalfPlaces * kLowChunks * kChunkBytes <= kHalfP);
static_assert(kLowKv % 1024 == 0 && kHighKv % 1024 == 0 && kHalfP % 1024 == 0);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <bool kHigh>
struct HalfRing {
    static constexpr int32_t kStages = kHalfPlaces;
    static constexpr int32_t kFirstChunk = kHigh ? kLowChunks : 0;
    static constexpr int32_t kChunkCount = kHigh ? kHighChunks : kLowChunks;
    static constexpr int32_t kTileBytes = kChunkCount * kChunkBytes;
    static constexpr int32_t kKv = kHigh ? kHighKv : kLowKv;
    static constexpr int32_t kBarrierFull = kHalfFull;
    static constexpr int32_t kBarrierEmpty = kHalfEmpty;
    __device__ static constexpr int32_t unit_place(uint32_t number) {
        return kHalfUnits + static_cast<int32_t>(number % kHalfUnitPlaces * sizeof(WorkUnit));
    }
};

/// The next two tiles of a walk, and of one of them the row that this lane looks up for its warp:
/// lanes 0 to 15 for the first.
struct TilePair {
    enum class Tile : int32_t {
        none,  // the block's units have no more
        settled,
        fresh,  // the kernel before this may still be writing some of its rows
    };
    Tile tile[2] = {};
    TileRow row;
};

/// What a thread looks up: a row of its warp's of one of two tiles.
struct LookUp {
    static constexpr int32_t kWarpRows = kKeys / 4;
    static_assert(kWarpRows <= 16 && kHalfTilesLookedUp * kKeys <= kFirstSlots);
    int32_t tile;
    int32_t row;  // of the tile
    bool any;

    __device__ explicit LookUp(int32_t thread)
        : tile(thread % 32 / 16),
          row(thread / 32 * kWarpRows + thread % 16),
          any(thread % 16 < kWarpRows) {}
};

/// The slots that the plan has written down for the block's first four tiles, so far as they are of
/// its first unit. In flight until used: needs nothing but the block's index.
struct FirstPairs {
    int32_t slot[2] = {};

    __device__ FirstPairs(const AttnWorkspace& workspace, int32_t thread) {
        const LookUp of(thread);
        if (!of.any) return;
        const int32_t* from =
            workspace.first_slots + blockIdx.x * kFirstSlots + of.tile * kKeys + of.row;
        slot[0] = from[0];
        slot[1] = from[2 * kKeys];
    }
};

/// Gathers the tiles of this block's units. Look-ups are waited for at a loop's end, so two tiles'
/// are asked for at once, before the two tiles ahead of them.
template <class Ring>
__device__ __forceinline__ void load_half(const AttnVerifyMlaParams& p, uint32_t shared,
                                          int32_t thread) {
    const FirstPairs first(p.workspace, thread);
    const LookUp own(thread);
    const auto* const kv =
        static_cast<const std::byte*>(p.kv) + Ring::kFirstChunk * 128 + thread % 8 * 16;
    const uint64_t policy = ptx::evict_first_policy();
    TileWalk<kKeys> walk(p);
    uint32_t units = 1;  // that the walk has seen
    const auto following = [&](bool may_be_first, int32_t first_slot) {
        TilePair pair;
        const int32_t* from = nullptr;
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
            if (!walk.valid()) break;
            const WorkUnit& unit = walk.unit;
            pair.tile[i] = unit.path_node >= 0 || walk.key + kKeys > unit.context
                               ? TilePair::Tile::fresh
                               : TilePair::Tile::settled;
            const int32_t key = walk.key + own.row;
            if (own.any && own.tile == i && key < unit.key_end) {
                from = pair.row.find(p, unit, key);
                if (may_be_first && walk.unit_index == blockIdx.x) {
                    from = nullptr;
                    pair.row.within = TileRow::kSlot;
                    pair.row.page = first_slot;
                }
            }
            const int32_t before = walk.unit_index;
            walk.next();
            if (walk.unit_index == before || !walk.valid()) continue;
            copy_unit<Ring>(p, shared, units, walk.unit_index, thread);
            ++units;
        }
        if (from != nullptr) pair.row.page = *from;
        return pair;
    };
    TilePair now = following(true, first.slot[0]);
    uint32_t tile = 0;
    while (now.tile[0] != TilePair::Tile::none) {
        // Asked for first: at the loop's end it is waited for.
        const TilePair next = following(tile == 0, first.slot[1]);
        const int32_t lane_slot = now.row.slot(p.batch.page_shift);
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
            if (now.tile[i] == TilePair::Tile::none) break;
            // Let Q be asked for in between, or it would queue behind all stages.
            if (tile == 1) ptx::named_barrier_sync(kQueryBarrier, 256);
            // Again costs less than to remember it.
            if (now.tile[i] == TilePair::Tile::fresh) ptx::grid_dependency_wait();
            copy_tile<Ring>(p, kv, shared, tile, lane_slot, i * 16, thread, policy);
            ++tile;
        }
        now = next;
    }
    if (tile == 1) ptx::named_barrier_sync(kQueryBarrier, 256);  // somebody has arrived
}

/// The walk of a role over the block's units, and the place of the tile it is at.
struct HalfWalk {
    const std::byte* memory;
    uint32_t shared;
    WorkUnit unit;
    int32_t units;  // of the plan
    int32_t index;
    uint32_t place = 0;  // of the tile that the role is at
    uint32_t parity = 0;
    uint32_t unit_count = 0;

    __device__ HalfWalk(const AttnVerifyMlaParams& params, const std::byte* shared_memory,
                        uint32_t address)
        : memory(shared_memory),
          shared(address),
          unit(params.workspace.units[blockIdx.x]),
          units(params.workspace.header->units),
          index(first_unit(params.workspace)) {}

    __device__ bool valid() const { return index < units; }
    __device__ uint32_t barrier(int32_t of_kind) const { return shared + of_kind + 8 * place; }
    __device__ void wait_for_keys() const { ptx::mbarrier_wait(barrier(kHalfFull), parity); }
    __device__ uint32_t next_place() const { return place == kHalfPlaces - 1 ? 0 : place + 1; }
    __device__ void next_tile() {
        place = next_place();
        if (place == 0) parity ^= 1;
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

/// Whether two units have the same rows, and so Q and visibility.
__device__ __forceinline__ bool same_rows(const WorkUnit& a, const WorkUnit& b) {
    return a.first_node == b.first_node && a.row_begin == b.row_begin && a.rows == b.rows;
}

/// Warps whose rows the unit does not have do nothing but arrive.
__device__ __forceinline__ bool warp_has_rows(const WorkUnit& unit, int32_t thread) {
    return thread / 32 * 16 < unit.rows;
}

/// Where a place's sums of thread `thread` are: four of every 8 keys, 2 KB further for the next 8.
__device__ __forceinline__ uint32_t sums_at(uint32_t shared, uint32_t place, int32_t thread) {
    return shared + kHalfSums + place * kSumsBytes + thread * 16;
}

__device__ __forceinline__ void load_sums(uint32_t from, Scores& s) {
#pragma unroll
    for (int32_t i = 0; i < kKeys / 2; i += 4) {
        const float4 sums = ptx::load_shared_float4(from + i * 512);
        s[i] = sums.x;
        s[i + 1] = sums.y;
        s[i + 2] = sums.z;
        s[i + 3] = sums.w;
    }
}

/// High's sums of a tile's scores go to low, low's on top of them to the softmax.
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
    load_q<kFirst, kHigh>(sources, shared + kHalfQ, thread, q,
                          [] { ptx::named_barrier_arrive(kQueryBarrier, 256); });
    const uint32_t low = ptx::map_shared(shared, 0);
    const uint64_t query = wgmma::k_major(__shfl_sync(0xffffffff, shared + kHalfQ, 0));
    constexpr uint32_t kTileUnits = HalfRing<kHigh>::kTileBytes >> 4;
    const uint64_t ring = wgmma::k_major(__shfl_sync(0xffffffff, shared + HalfRing<kHigh>::kKv, 0));
    const auto expect_sums = [&](uint32_t place) {
        ptx::mbarrier_arrive_warp_expect_bytes(
            shared + kHalfSumsFull + 8 * place, thread % 32,
            warp_has_rows(walk.unit, thread) ? kWarpSumsBytes : 0);
    };
    for (;;) {
        if (!kHigh) expect_sums(walk.place);
        for (int32_t key = walk.unit.key_begin; key < walk.unit.key_end; key += kKeys) {
            const uint64_t keys = ring + walk.place * kTileUnits;
            Scores s = {};
            walk.wait_for_keys();
            if (kHigh) {
                wgmma::fence();
                shared_products(query, keys + kHighRegisterChunks * (kChunkBytes >> 4), s);
            } else {
                ptx::mbarrier_wait_cluster(walk.barrier(kHalfSumsFull), walk.parity);
                if (warp_has_rows(walk.unit, thread))
                    load_sums(sums_at(shared, walk.place, thread), s);
                if (key + kKeys < walk.unit.key_end) expect_sums(walk.next_place());
                wgmma::touch(s);
                wgmma::fence();
            }
#pragma unroll
            for (int32_t step = 0; step < kSteps; ++step)
                wgmma::rs_n48(s, q[step], keys + step / 4 * (kChunkBytes >> 4) + step % 4 * 2,
                              true);
            wgmma::commit();
            wgmma::wait<0>();
            wgmma::touch(s);
            if (warp_has_rows(walk.unit, thread)) {
#pragma unroll
                for (int32_t i = 0; i < kKeys / 2; i += 4) {
                    const float4 sums = make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]);
                    if (kHigh)
                        ptx::store_async(sums_at(low, walk.place, thread) + i * 512, sums,
                                         low + kHalfSumsFull + 8 * walk.place);
                    else
                        ptx::store_shared(sums_at(shared, walk.place, thread) + i * 512, sums);
                }
            }
            if (!kHigh) {
                __syncwarp();
                ptx::mbarrier_arrive_warp(walk.barrier(kHalfScoresFull), thread % 32);
            }
            walk.next_tile();
        }
        const WorkUnit before = walk.unit;
        if (!walk.next_unit_of_block()) return;
        if (same_rows(walk.unit, before)) continue;
        // All four warps are through with the Q of the unit before.
        ptx::named_barrier_sync(kScoreBarrier, 128);
        load_q<kFirst, kHigh>(QuerySources(p, walk.unit, thread), shared + kHalfQ, thread, q,
                              [] {});
    }
}

/// Low's, one unit after the other. kRows 2: as the products' threads have the scores. 1, for up to
/// 32 rows: each warp 8 of them, one a thread, for half the time.
template <int32_t kRows>
__device__ __forceinline__ void half_softmax(const AttnVerifyMlaParams& p, const std::byte* memory,
                                             uint32_t shared, int32_t thread) {
    const int32_t lane = thread % 32;
    const int32_t warp = kRows == 2 ? thread / 32 : thread / 64;  // of the products
    const int32_t eight = kRows == 2 ? 0 : thread / 32 % 2;       // of its rows
    const int32_t row = warp * 16 + eight * 8 + lane / 4;         // and row + 8
    const float to_log2 = score_factor(p, p.scale);
    // Lane l addresses row l % 8 of matrix l / 8. kRows 2: rows 0-7 and 8-15 of the first 8 keys,
    // then of the next 8; 1: of 8 keys each.
    const uint32_t p_row = shared + kHalfP +
                           (kRows == 2 ? copy_offset(warp * 16 + lane % 16, lane / 16)
                                       : copy_offset(warp * 16 + eight * 8 + lane % 8, lane / 8));
    HalfWalk walk(p, memory, shared);
    ptx::grid_dependency_wait();
    if (!walk.valid()) return;
    SeenKeys seen(p, walk.unit, row);
    float s[kRows * kKeys / 4];
    const auto load_scores = [&] {
        const uint32_t from = sums_at(shared, walk.place, warp * 32 + lane) + eight * 8;
        if constexpr (kRows == 2) {
            load_sums(from, s);
        } else {
#pragma unroll
            for (int32_t j = 0; j < kKeys / 8; ++j) {
                const uint2 scores = ptx::load_shared_64(from + j * 2048);
                s[2 * j] = __uint_as_float(scores.x);
                s[2 * j + 1] = __uint_as_float(scores.y);
            }
        }
    };
    for (;;) {
        const WorkUnit& unit = walk.unit;
        const bool has_rows = warp * 16 + eight * 8 < unit.rows;
        RowState rows[kRows];
        bool loaded = false;
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kKeys) {
            if (!loaded) {
                ptx::mbarrier_wait(walk.barrier(kHalfScoresFull), walk.parity);
                if (has_rows) load_scores();
            }
            const uint32_t place = walk.place;
            const uint32_t p_full = walk.barrier(kHalfPFull);
            walk.next_tile();
            const uint32_t facts = shared + kHalfFacts + (place * 4 + warp) * kWarpFactsBytes;
            if (!has_rows) {
                // The other eight rows of its 16 may be there, and nothing of these is rescaled.
                if (kRows == 1 && lane == 0)
                    ptx::store_shared(facts + kWarpFlags + 4 * eight, uint32_t{0});
                ptx::fence_async_proxy();
                __syncwarp();
                ptx::mbarrier_arrive_warp(p_full, lane);
                continue;
            }
            if (p.logit_cap > 0.0f) cap_scores(p, s);
            if (key + kKeys > unit.seen_end) seen.mask<kRows>(p, unit, key, s);
            const auto tile = soften<kRows>(s, to_log2, thread, key == unit.key_begin, rows);
            float inverse[kRows] = {};
            const bool last = key + kKeys >= unit.key_end;
            if (last) {
#pragma unroll
                for (int32_t r = 0; r < kRows; ++r) {
                    rows[r].sum = quad_sum(rows[r].sum);
                    inverse[r] = rows[r].sum == 0.0f ? 0.0f : 1.0f / rows[r].sum;
                }
            }
            // Asked for here, they come while P is stored.
            loaded =
                __all_sync(0xffffffff,
                           !last && ptx::mbarrier_done(walk.barrier(kHalfScoresFull), walk.parity));
            if (loaded) load_scores();
            const uint32_t to = p_row + place * kPBytes;
            if constexpr (kRows == 2) {
#pragma unroll
                for (int32_t j = 0; j < kKeys / 8; j += 2)
                    ptx::store_matrices(to ^ (j << 4), tile.p[j][0], tile.p[j][1], tile.p[j + 1][0],
                                        tile.p[j + 1][1]);
            } else {
                static_assert(kKeys / 8 == 6);
                ptx::store_matrices(to, tile.p[0][0], tile.p[1][0], tile.p[2][0], tile.p[3][0]);
                ptx::store_matrix_pair(to ^ (4 << 4), tile.p[4][0], tile.p[5][0]);
            }
            if (lane % 4 == 0) {
#pragma unroll
                for (int32_t r = 0; r < kRows; ++r)
                    ptx::store_shared(
                        facts + (lane / 4 + 8 * (eight + r)) * sizeof(RowFacts),
                        make_uint2(__float_as_uint(tile.factor[r]), __float_as_uint(inverse[r])));
            }
            if (lane == 0) {
#pragma unroll
                for (int32_t r = 0; r < kRows; ++r)
                    ptx::store_shared(facts + kWarpFlags + 4 * (eight + r), uint32_t{tile.rescale});
            }
            ptx::fence_async_proxy();
            __syncwarp();
            ptx::mbarrier_arrive_warp(p_full, lane);
            if (last && lane % 4 == 0) {
#pragma unroll
                for (int32_t r = 0; r < kRows; ++r)
                    store_lse(p, unit, row + 8 * r, row_lse(rows[r].maximum, rows[r].sum));
            }
        }
        const WorkUnit before = walk.unit;
        if (!walk.next_unit_of_block()) return;
        if (!same_rows(walk.unit, before)) seen = SeenKeys(p, walk.unit, row);
    }
}

/// Whether some row of a warp's may have to be rescaled.
__device__ __forceinline__ bool rescales(const std::byte* facts) {
    const auto* const flags = reinterpret_cast<const volatile int32_t*>(facts + kWarpFlags);
    return (flags[0] | flags[1]) != 0;
}

/// Low's accumulation passes P on: of each warp's rows, to the same place in `high`.
__device__ __forceinline__ void forward_p(uint32_t shared, uint32_t high, uint32_t place,
                                          bool has_rows, int32_t warp, int32_t lane) {
    constexpr uint32_t kWarpPBytes = kPBytes / 4;
    const uint32_t p_full = high + kHalfPFull + 8 * place;
    ptx::mbarrier_arrive_warp_of_peer(p_full, lane, has_rows ? kWarpPBytes + kWarpFactsBytes : 0);
    if (lane == 0 && has_rows) {
        const uint32_t values = kHalfP + place * kPBytes + warp * kWarpPBytes;
        const uint32_t facts = kHalfFacts + (place * 4 + warp) * kWarpFactsBytes;
        ptx::copy_bulk_to_peer(high + values, shared + values, kWarpPBytes, p_full);
        ptx::copy_bulk_to_peer(high + facts, shared + facts, kWarpFactsBytes, p_full);
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
    const uint64_t p_tiles = wgmma::k_major(__shfl_sync(0xffffffff, shared + kHalfP, 0));
    const uint64_t ring =
        wgmma::mn_major(__shfl_sync(0xffffffff, shared + HalfRing<kHigh>::kKv, 0), kChunkBytes);
    const uint32_t high = ptx::map_shared(shared, 1);
    HalfWalk walk(p, memory, shared);
    ptx::grid_dependency_wait();  // the partials may still be read by the step before
    if (!walk.valid()) return;
    do {
        const WorkUnit& unit = walk.unit;
        const bool has_rows = warp_has_rows(unit, thread);
        float o[2][64];
        float inverse[2];
        for (int32_t key = unit.key_begin; key < unit.key_end; key += kKeys) {
            const bool first = key == unit.key_begin;
            walk.wait_for_keys();
            ptx::mbarrier_wait_cluster(walk.barrier(kHalfPFull), walk.parity);
            if (!kHigh) forward_p(shared, high, walk.place, has_rows, warp, lane);
            const std::byte* const facts =
                memory + kHalfFacts + (walk.place * 4 + warp) * kWarpFactsBytes;
            const auto* const rows = reinterpret_cast<const volatile RowFacts*>(facts) + lane / 4;
            if (!first && has_rows && rescales(facts)) {
                const float factor[2] = {rows[0].factor, rows[8].factor};
#pragma unroll
                for (int32_t i = 0; i < 128; ++i) o[i / 64][i % 64] *= factor[i >> 1 & 1];
            }
            if (key + kKeys >= unit.key_end) {
                inverse[0] = rows[0].inverse;
                inverse[1] = rows[8].inverse;
            }
            add_products(p_tiles + walk.place * (kPBytes >> 4), ring + walk.place * kTileUnits,
                         !first, o);
            ptx::mbarrier_arrive_warp(walk.barrier(kHalfEmpty), lane);
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
        for (int32_t place = 0; place < kHalfPlaces; ++place) {
            const uint32_t barriers = shared + 8 * place;
            ptx::mbarrier_init(barriers + kHalfFull, 128);
            for (const int32_t kind : {kHalfEmpty, kHalfSumsFull, kHalfScoresFull, kHalfPFull})
                ptx::mbarrier_init(barriers + kind, 4 * ptx::kWarpArrivals);
        }
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    ptx::cluster_sync();
    const int32_t role = threadIdx.x / 128;
    const bool high = blockIdx.x % 2 == 1;
    if (role == 0) {
        ptx::setmaxnreg_decrease<56>();
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
        if (!high && p.most_shared_rows <= kTileRows / 2)
            half_softmax<1>(p, memory, shared, thread_of_role());
        else if (!high)
            half_softmax<2>(p, memory, shared, thread_of_role());
    } else {
        ptx::setmaxnreg_increase<160>();
        if (high)
            half_accumulate<true>(p, memory, shared, thread_of_role());
        else
            half_accumulate<false>(p, memory, shared, thread_of_role());
    }
    // Neither leaves while the other may still reach into its shared memory, or copy from it.
    __syncwarp();
    ptx::cluster_sync();
#endif
}

}  // namespace kd::mla_wgmma
