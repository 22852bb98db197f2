// What the planner believes a work unit costs. The rates stand here and nowhere else;
// bench/attn_verify measures what they are fitted to.
#pragma once

#include <cstdint>

#include "kernels/attn_plan/attn_plan.h"

namespace kd {

/// Which main loop runs, on which class of device.
enum class AttnEngine : int32_t { wgmma_sm90, mma_sync_sm90, mma_sync_sm120 };

/// Rates of one thread block, which has a multiprocessor to itself.
struct AttnRates {
    double flops_per_us;          // full 64-row tiles, keys already in L2
    double bytes_per_us;          // of K/V from memory while every multiprocessor reads
    double lone_bytes_per_us;     // of K/V while few do
    double unit_us;               // queries in, first keys' latency, results out
    double combine_us;            // the combine launch
    double partial_bytes_per_us;  // partial rows, whole device: written once and read once
};

/// [kdt_attn_kind][AttnEngine]. Initial guesses, none fitted yet: the read bandwidths are 4.55 TB/s
/// over 132 multiprocessors and 1.6 TB/s over 188; a 64 x 64 MLA tile of 8.9 MFLOP takes 1.25 us
/// with wgmma, mma.sync reaches 0.6 of that on sm_90 and 1,024 FLOP a clock on sm_120.
inline constexpr AttnRates kAttnRates[2][3] = {
    {{7.1e6, 35e3, 60e3, 3.0, 2.5, 2.5e6},
     {4.0e6, 35e3, 50e3, 3.5, 2.5, 2.5e6},
     {1.6e6, 8.5e3, 20e3, 3.5, 3.0, 2.5e6}},
    {{4.5e6, 35e3, 60e3, 2.5, 2.5, 2.5e6},
     {3.0e6, 35e3, 50e3, 2.5, 2.5, 2.5e6},
     {1.4e6, 8.5e3, 20e3, 2.5, 3.0, 2.5e6}},
};

/// Costs of one step's units. Integers, so that host and device decide alike.
struct AttnCosts {
    int32_t unit_ns;
    int32_t tile_compute_ns;  // kTileRows rows by kTileKeys keys
    int32_t
        tile_memory_ns;    // kTileKeys keys of a K/V head from memory, all multiprocessors reading
    int32_t tile_lone_ns;  // the same while few read
    int32_t combine_ns;
    int32_t partial_row_ps;  // a row's partial result, written and read
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

constexpr AttnCosts attn_costs(const kdt_attn_shape& shape, AttnEngine engine) {
    const AttnRates& rates = kAttnRates[shape.kind][static_cast<int32_t>(engine)];
    const int32_t value_dim = attn_value_dim(shape);
    const double tile_flops = 2.0 * kTileRows * kTileKeys * (shape.head_dim + value_dim);
    const double tile_bytes = 1.0 * kTileKeys * attn_token_bytes(shape);
    return {
        .unit_ns = static_cast<int32_t>(1e3 * rates.unit_us),
        .tile_compute_ns = static_cast<int32_t>(1e3 * tile_flops / rates.flops_per_us),
        .tile_memory_ns = static_cast<int32_t>(1e3 * tile_bytes / rates.bytes_per_us),
        .tile_lone_ns = static_cast<int32_t>(1e3 * tile_bytes / rates.lone_bytes_per_us),
        .combine_ns = static_cast<int32_t>(1e3 * rates.combine_us),
        .partial_row_ps = static_cast<int32_t>(1e6 * 4 * value_dim / rates.partial_bytes_per_us),
    };
}

}  // namespace kd
