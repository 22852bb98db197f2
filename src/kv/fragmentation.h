// How contiguous page tables are: what gather loads, bulk copies and transfers see.
#pragma once

#include <cstdint>

namespace kd {

/// Keys of one tile of the attention kernels, at absolute multiples of it.
inline constexpr int32_t kTileTokens = 64;

/// Sums over sessions. A run is a maximal stretch of positions whose slots are neighbours; a tile
/// is whole if its 64 positions lie in one run.
struct Fragmentation {
    int32_t sessions = 0;  // with at least one slot
    int64_t tokens = 0;
    int64_t runs = 0;
    int64_t tiles = 0;
    int64_t whole_tiles = 0;

    double runs_per_session() const {
        return sessions > 0 ? static_cast<double>(runs) / sessions : 0;
    }
    /// Tokens.
    double mean_run() const {
        return runs > 0 ? static_cast<double>(tokens) / static_cast<double>(runs) : 0;
    }
    /// 0 to 1; 1 where there is no full tile.
    double contiguous_tiles() const {
        return tiles > 0 ? static_cast<double>(whole_tiles) / static_cast<double>(tiles) : 1;
    }

    Fragmentation& operator+=(const Fragmentation& other) {
        sessions += other.sessions;
        tokens += other.tokens;
        runs += other.runs;
        tiles += other.tiles;
        whole_tiles += other.whole_tiles;
        return *this;
    }
};

}  // namespace kd
