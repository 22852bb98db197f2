// Cases of edge_scores, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kd {

struct EdgeScoresCase {
    const char* name;
    int32_t states;
    int64_t rank;
    std::vector<int32_t> parents;   // [depths]
    std::vector<int32_t> children;  // [depths]
    float power;                    // of all depths; 0: none
    uint32_t seed;
};

std::span<const EdgeScoresCase> edge_scores_cases();

/// |fast - exact| <= this.
double edge_scores_tolerance(const EdgeScoresCase& test);
int64_t edge_scores_bytes(const EdgeScoresCase& test);
double edge_scores_flops(const EdgeScoresCase& test);

}  // namespace kd
