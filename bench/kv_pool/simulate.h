// One load on one pool, round by round, with the calls that the engine makes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kv/fragmentation.h"
#include "kv_pool/load.h"

namespace kd {

/// What is done against fragmentation; each with all that stands above it but unsorted and sorted.
enum class Tier : uint8_t { none, sorted, best_fit, extents, relocate };

inline constexpr std::string_view kTierNames[] = {"none", "sorted", "bestfit", "bestfit+extents",
                                                  "relocate"};

struct SimulationSettings {
    Tier tier = Tier::extents;
    bool tree = true;  // else plain decoding
    bool prefix_tree = true;
    double evict_batch = 0.1;
    int32_t page = 1;
    int32_t concurrency = 16;  // most sessions that run at once
    int32_t pool_tokens = 0;
    int32_t extent = 64;            // tokens: tables grow to multiples of it
    int32_t headroom = 1024;        // most tokens behind a prompt, asked for with it
    int32_t depth = 8;              // of trees; a round accepts 1 to `depth` tokens
    int32_t chunk = 2048;           // prompt tokens a round
    int32_t relocate_tokens = 256;  // most that are moved between two rounds
    uint64_t seed = 0;
    bool check = false;  // the books after every event, not at the end alone
};

/// Sums over the sampled rounds.
struct SimulationSums {
    int64_t rounds = 0;  // in which a session ran
    double occupancy = 0;
    double free_runs = 0;
    Fragmentation fragmentation;  // of the running sessions, after each round
    int64_t asked = 0;            // prompt tokens, at a session's first admission
    int64_t reused = 0;
    int64_t emitted = 0;
    int64_t allocated = 0;  // tokens by extend()
    int64_t evicted = 0;    // tokens
    int64_t moved = 0;      // tokens
    int64_t retractions = 0;
    double alloc_s = 0;  // processor time in extend(), evicting and trimming included, and clear()
    double index_s = 0;  // processor time in reuse() and publish()
    double relocate_s = 0;  // in plan_moves() and rename(); copies no bytes
};

struct SimulationResult {
    SimulationSums sums;
    int32_t pool_tokens = 0;     // whole pages
    int64_t rounds = 0;          // sampled or not
    int64_t evicted_before = 0;  // tokens, before sampling began
    int64_t ignored_events = 0;  // for sessions that had ended by themselves
    // Slots of the rows of all that ran in a round halfway through the sampled ones.
    std::vector<std::vector<int32_t>> tables;
    double seconds = 0;
};

/// The load fits (check_fits). Aborts if the books do not balance.
SimulationResult simulate(const Load& load, const SimulationSettings& settings);

}  // namespace kd
