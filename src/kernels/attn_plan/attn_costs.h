// What the planner believes a work unit costs. The rates stand here and nowhere else;
// bench/attn_verify measures what they are fitted to.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_plan.h"

namespace kd {

/// Which main loop runs, on which class of device.
enum class AttnEngine : int32_t { wgmma_sm90, mma_sync_sm90, mma_sync_sm120 };
inline constexpr AttnEngine kAttnEngines[] = {AttnEngine::wgmma_sm90, AttnEngine::mma_sync_sm90,
                                              AttnEngine::mma_sync_sm120};

/// Rates of one thread block, which has a multiprocessor to itself, and of the combine.
struct AttnRates {
    double flops_per_us;          // full 64-row tiles, keys already in L2
    double bytes_per_us;          // of K/V from memory while every multiprocessor reads
    double lone_bytes_per_us;     // of K/V while few do
    double unit_us;               // queries in, first keys' latency, results out
    double wave_us;               // fast mode: what a wave beyond the first costs on top; charged
                                  // to every unit, so that one wave's cuts compare as without it
    double combine_us;            // the combine launch
    double partial_bytes_per_us;  // partial rows, whole device: written once and read once
    double merged_bytes_per_us;   // rows that come out of the combine, whole device
};

/// [kdt_attn_kind][AttnEngine]. MLA with wgmma is fitted; the sm_120 rates are guesses from 4.55
/// TB/s over 132 multiprocessors and 1.6 TB/s over 188, mma.sync at 0.6 of wgmma on sm_90 and 1,024
/// FLOP a clock on sm_120, with the combine of their device.
///
/// Fitted to: H200, 132 multiprocessors, 2026-11-29; one request, bf16 cache, 8 to 128 heads, 1 to
/// 128 nodes, contexts 0 to 131,072, one to four forced split counts each, attention and combine
/// timed together and apart. The measured split count nearest to the chosen one is within 2 % of
/// the best in each of the 30 shapes. A 48-key tile takes 1.44 us by arithmetic and 1.56 us by
/// memory. A unit costs 3.3 us beyond its tiles, which is what a second one adds; the launch, 1 to
/// 4 us, is the same for every choice and left out. The combine took 3.4 us, 0.3 ns a partial row
/// and 2.6 ns a merged row; that was before it read everything in two steps, so these are upper
/// bounds. GQA on sm_90: from forced split counts at 65,536 keys, 32 / 8 heads of 128, 1 to
/// 32 nodes; with wgmma again on 2026-11-30: a block reads no faster than 37.5 GB/s also while 112
/// of 132 read (16 parts take 70.6 us where 14 take 74.9, 16 nodes), and a tile takes two row tiles
/// together about 0.7 us of arithmetic. A second wave: at the card's power limit 33 parts in two
/// waves take 212 to 217 us where 16 in one take 210 to 213, though their blocks have less to do
/// (64 nodes of 8 heads, 131,072 keys).
inline constexpr AttnRates kAttnRates[2][3] = {
    {{4.65e6, 35.5e3, 60e3, 3.3, 0.9, 3.4, 6.8e6, 0.39e6},
     {4.0e6, 35e3, 50e3, 3.5, 0, 3.4, 6.8e6, 0.39e6},
     {1.6e6, 8.5e3, 20e3, 3.5, 0, 3.0, 2.5e6, 0.4e6}},
    {{6.0e6, 36e3, 37.5e3, 2.5, 0, 3.4, 6.8e6, 0.39e6},
     {1.9e6, 34e3, 31e3, 2.5, 0, 3.4, 6.8e6, 0.39e6},
     {1.4e6, 8.5e3, 20e3, 2.5, 0, 3.0, 2.5e6, 0.4e6}},
};

/// Deterministic mode: a tile's arithmetic in the loop that takes pairs by the rate above, 1.1 us a
/// tile of two row tiles in bf16 (64k keys, 64 nodes), 1.4 us where V is converted (16k, 32 nodes).
/// In fast mode the cuts that are compared differ in whether they take pairs, and the rate as it is
/// chooses better.
inline constexpr double kPairTile = 1.5;
inline constexpr double kPairTileFp8 = 2.0;

/// Tiles that a unit waits for at the memory's rate before its arithmetic hides the rest: all
/// blocks begin by asking for theirs at once. Without it 132 short parts look better than 88 at 16k
/// keys.
inline constexpr int32_t kFillTiles = 3;

/// Deterministic mode, in us: results of a unit out while the block goes on with the same rows; a
/// path unit beside its tiles. From the attention kernel alone under the profiler, 16 and 32 nodes
/// (MLA), 8 nodes (GQA), H200.
inline constexpr double kSegmentUs = 1.0;
inline constexpr double kPathUs = 5.0;
/// A key tile of a path unit in bf16 MLA on sm_90a: paths of 8 nodes in one unit end 2.8 us after
/// segments of 6 tiles, of 4 nodes 0.8 us after segments of 3 (32k and 16k keys, H200); with 1.75
/// and 64 nodes at 4k keys they would be spread over a wave of their own, 29.1 us instead of 26.9.
inline constexpr double kMlaPathTileUs = 1.65;
/// A shared step (attn_shares_units), of two blocks together, in us: a unit beside its tiles, a key
/// tile's arithmetic, a key tile of a path unit. With 4.0 and 0.6 for the first and the last all
/// paths of 8 nodes stand in one unit at 16k keys, 15.5 us; as it is, or with 4.0 and 0.75, in two,
/// 13.4. At 4k, 32k and 64k keys no difference was seen.
inline constexpr double kSharedUnitUs = 5.5;
inline constexpr double kSharedTileUs = 0.55;
inline constexpr double kSharedPathTileUs = 0.9;
/// A pair of path units beside its tiles, and a key tile of both, which some row sees in part.
/// Blocks that have nothing else end after 3.1 us and 1.5 a tile (4k keys, 32 / 8 heads of 128,
/// H200); the rest of the first is what short runs end before the time predicted of them, with
/// which this is compared. Without it few nodes get units that outlast their runs (8 nodes at
/// 4k 13.0 us, not 11.1).
inline constexpr double kPathPairUs = 4.8;
inline constexpr double kPathPairTileUs = 1.65;
/// A key tile of a path unit in the other GQA loops: a guess between that and its keys' time.
inline constexpr double kPathTileUs = 1.2;

/// Costs of one step's units. Integers, so that host and device decide alike.
struct AttnCosts {
    int32_t unit_ns;
    int32_t segment_ns;       // of one more unit of the same rows
    int32_t path_ns;          // of a path unit, or a pair of them, without its tiles
    int32_t path_tile_ns;     // a key tile of one or both
    int32_t tile_compute_ns;  // kTileRows rows by a key tile
    int32_t tile_memory_ns;   // a key tile of a K/V head from memory, all multiprocessors reading
    int32_t tile_lone_ns;     // the same while few read
    int32_t combine_ns;
    int32_t partial_row_ps;  // a row's partial result, written and read
    int32_t merged_row_ps;   // a row of the result
};

/// Values of one output head.
constexpr int32_t attn_value_dim(const kdt_attn_shape& shape) {
    return shape.kind == KDT_ATTN_MLA ? 512 : shape.head_dim;
}

/// Bytes of one token's keys and values, of one K/V head.
constexpr int32_t attn_token_bytes(const kdt_attn_shape& shape) {
    if (shape.kv_format == KDT_KV_FP8_MLA656) return 656;
    const int32_t values = shape.kind == KDT_ATTN_MLA ? shape.head_dim : 2 * shape.head_dim;
    return shape.kv_format == KDT_KV_BF16 ? 2 * values : values;
}

/// The one main loop whose tiles have 48 keys.
constexpr bool is_mla_wgmma_bf16(const kdt_attn_shape& shape, AttnEngine engine) {
    return shape.kind == KDT_ATTN_MLA && shape.kv_format == KDT_KV_BF16 &&
           engine == AttnEngine::wgmma_sm90;
}

/// Whether the main loop takes two units at a time, one a consumer warpgroup. Fast mode: two row
/// tiles of the same keys, where units outnumber blocks and every request has an even number of row
/// tiles. Deterministic mode: always, and the plan says which; so that a row's arithmetic is the
/// same beside any other unit and alone.
constexpr bool attn_takes_pairs(const kdt_attn_shape& shape, AttnEngine engine) {
    return shape.kind == KDT_ATTN_GQA && engine == AttnEngine::wgmma_sm90 &&
           (shape.head_dim == 96 || shape.head_dim == 128);
}

/// Whether the main loop keeps Q from one unit to the next of the same rows.
constexpr bool attn_keeps_query(const kdt_attn_shape& shape, AttnEngine engine) {
    return (shape.kind == KDT_ATTN_MLA && engine == AttnEngine::wgmma_sm90) ||
           attn_takes_pairs(shape, engine);
}

/// Whether two blocks of a cluster take a unit together, half of the latent each: all units of the
/// step or none, with the same results to the bit. `max_rows`: of the whole step by its capacity,
/// max_nodes * heads. The plan and the launch of the attention both ask.
constexpr bool attn_shares_units(const kdt_attn_shape& shape, AttnEngine engine, int32_t max_rows,
                                 int32_t multiprocessors) {
    return is_mla_wgmma_bf16(shape, engine) && shape.mode == KDT_ATTN_DETERMINISTIC &&
           max_rows <= kTileRows && multiprocessors % 2 == 0;
}

/// Keys of a key tile: units are whole tiles.
constexpr int32_t attn_tile_keys(const kdt_attn_shape& shape, AttnEngine engine) {
    return is_mla_wgmma_bf16(shape, engine) ? kMlaWgmmaTileKeys : kTileKeys;
}

/// The least of them over all engines.
constexpr int32_t least_tile_keys(const kdt_attn_shape& shape) {
    return attn_tile_keys(shape, AttnEngine::wgmma_sm90);
}

/// Deterministic mode: segments of all row tiles of one node, about. They fill the multiprocessors
/// of an H200 and leave a few for paths; half as many do so with two nodes' row tiles.
inline constexpr int32_t kMostSegments = 128;

/// Row tiles of a node, over all K/V heads, and path units of those that share one.
constexpr int32_t node_tiles(int32_t kv_heads, int32_t group) {
    return kv_heads * ((group + kTileRows - 1) / kTileRows);
}
constexpr int32_t node_tiles(const kdt_attn_shape& shape) {
    return node_tiles(shape.kv_heads, shape.heads / shape.kv_heads);
}

/// Deterministic mode: segments of a row, at most, while none is longer than most_tiles; else the
/// next level decides. Of a level, none is shorter than least_tiles.
struct SegmentLevel {
    int32_t most_tiles;
    int32_t segments;
    int32_t least_tiles = 0;
};
inline constexpr int32_t kAnyTiles = INT32_MAX;
struct SegmentLevels {
    SegmentLevel level[4];  // up to the first with kAnyTiles
};

/// MLA: arithmetic is what a tile costs, and the end of a segment what one to two tiles do, so that
/// fewer segments are better while they are short: a single node loses, 16 and more gain, because
/// results are fewer. With bf16 on sm_90a two blocks share a unit where rows are few, so that 64
/// segments and the paths fill an H200, as do those of two row tiles, which a node of more than 64
/// heads has alone; 32 or fewer, which would serve 32 and more nodes better up to 32k keys, leave
/// half of it idle then (plan 0002, "Lengths of segments with shared steps").
/// GQA in pairs: fewer where that leaves blocks for the paths and costs little (4k and 16k, 32
/// nodes: 14.3 us instead of 15.5, 26.7 instead of 28.8); few K/V heads have short steps, in which
/// results count. Where V is converted, one consumer does not keep up with the memory: long
/// segments are twice as many, for both. Other GQA waits for memory.
constexpr SegmentLevels attn_segment_levels(const kdt_attn_shape& shape, AttnEngine engine) {
    // Of all row tiles of a node together.
    const auto of_row = [&shape](SegmentLevels levels) {
        for (SegmentLevel& level : levels.level) {
            const int32_t segments = level.segments / node_tiles(shape);
            level.segments = segments > 1 ? segments : 1;
        }
        return levels;
    };
    const SegmentLevel all = {kAnyTiles, kMostSegments};
    if (is_mla_wgmma_bf16(shape, engine)) return {{{kAnyTiles, 64, 3}}};
    if (shape.kind == KDT_ATTN_MLA) return of_row({{{7, 64}, all}});
    if (!attn_takes_pairs(shape, engine)) return of_row({{all}});
    const SegmentLevel last = {kAnyTiles, shape.kv_format == KDT_KV_BF16 ? 128 : 256};
    if (shape.kv_heads < 4) return of_row({{{2, 32}, {4, 64}, {31, 128}, last}});
    return of_row({{{10, 104}, {20, 120}, {31, 128}, last}});
}
/// Segments of a row of one length, with any engine, at most.
constexpr int32_t most_row_segments(const kdt_attn_shape& shape) {
    int32_t most = 0;
    for (const AttnEngine engine : kAttnEngines) {
        for (const SegmentLevel& level : attn_segment_levels(shape, engine).level) {
            if (level.segments > most) most = level.segments;
        }
    }
    return most;
}

/// Deterministic mode: keys from one node's path to the next one's in the list of a path unit, with
/// any engine. Paths neither share a product of kBoundaryKeys keys nor, in part, a key tile: what
/// is summed together of a row is the same wherever its path stands. Fast mode: 0, whatever
/// max_depth is, which that mode ignores.
constexpr int32_t attn_path_keys(const kdt_attn_shape& shape) {
    if (shape.mode != KDT_ATTN_DETERMINISTIC) return 0;
    const int32_t tile_keys = least_tile_keys(shape);
    const int32_t most = (shape.max_depth + 2 * kBoundaryKeys - 1) / kBoundaryKeys * kBoundaryKeys;
    if (most > tile_keys) return (most + tile_keys - 1) / tile_keys * tile_keys;
    return tile_keys / (tile_keys / most);
}

/// Deterministic mode: nodes that a path unit has at most, as a power of two.
inline constexpr int32_t kMostPathNodesLog2 = 6;
static_assert(1 << kMostPathNodesLog2 == kTileRows);
constexpr int32_t most_path_nodes_log2(const kdt_attn_shape& shape, AttnEngine engine) {
    int32_t log2 = 0;
    if (shape.kind == KDT_ATTN_MLA && !is_mla_wgmma_bf16(shape, engine)) return log2;
    while ((shape.heads / shape.kv_heads << (log2 + 1)) <= kTileRows) ++log2;
    return log2;
}

constexpr AttnCosts attn_costs(const kdt_attn_shape& shape, AttnEngine engine) {
    const AttnRates& rates = kAttnRates[shape.kind][static_cast<int32_t>(engine)];
    const int32_t value_dim = attn_value_dim(shape);
    const int32_t tile_keys = attn_tile_keys(shape, engine);
    const double tile_flops = 2.0 * kTileRows * tile_keys * (shape.head_dim + value_dim);
    const bool pairs = attn_takes_pairs(shape, engine);
    const bool deterministic = shape.mode == KDT_ATTN_DETERMINISTIC;
    const double by_rate = !pairs || !deterministic         ? 1.0
                           : shape.kv_format == KDT_KV_BF16 ? kPairTile
                                                            : kPairTileFp8;
    const double tile_us = by_rate * tile_flops / rates.flops_per_us;
    const double tile_bytes = 1.0 * tile_keys * attn_token_bytes(shape);
    const double path_tile_us = pairs                              ? kPathPairTileUs
                                : shape.kind == KDT_ATTN_GQA       ? kPathTileUs
                                : is_mla_wgmma_bf16(shape, engine) ? kMlaPathTileUs
                                                                   : tile_us;
    return {
        .unit_ns =
            static_cast<int32_t>(1e3 * (rates.unit_us + (deterministic ? 0 : rates.wave_us))),
        .segment_ns = static_cast<int32_t>(
            1e3 * (attn_keeps_query(shape, engine) ? kSegmentUs : rates.unit_us)),
        .path_ns = static_cast<int32_t>(1e3 * (pairs ? kPathPairUs : kPathUs)),
        .path_tile_ns = static_cast<int32_t>(1e3 * path_tile_us),
        .tile_compute_ns = static_cast<int32_t>(1e3 * tile_us),
        .tile_memory_ns = static_cast<int32_t>(1e3 * tile_bytes / rates.bytes_per_us),
        .tile_lone_ns = static_cast<int32_t>(1e3 * tile_bytes / rates.lone_bytes_per_us),
        .combine_ns = static_cast<int32_t>(1e3 * rates.combine_us),
        .partial_row_ps = static_cast<int32_t>(1e6 * 4 * value_dim / rates.partial_bytes_per_us),
        .merged_row_ps = static_cast<int32_t>(1e6 * 2 * value_dim / rates.merged_bytes_per_us),
    };
}

/// Of a shared step, whose blocks are counted two by two.
constexpr AttnCosts attn_shared_costs(const kdt_attn_shape& shape, AttnEngine engine) {
    AttnCosts costs = attn_costs(shape, engine);
    costs.unit_ns = static_cast<int32_t>(1e3 * kSharedUnitUs);
    costs.path_tile_ns = static_cast<int32_t>(1e3 * kSharedPathTileUs);
    costs.tile_compute_ns = static_cast<int32_t>(1e3 * kSharedTileUs);
    costs.tile_memory_ns /= 2;
    costs.tile_lone_ns /= 2;
    return costs;
}

}  // namespace kd
