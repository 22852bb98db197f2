#include "kernels/edge_scores/edge_scores_cases.h"

#include <algorithm>
#include <cmath>

namespace kd {

namespace {

int64_t edges(const EdgeScoresCase& test) {
    int64_t edges = 0;
    for (size_t d = 0; d < test.parents.size(); ++d) edges += test.parents[d] * test.children[d];
    return edges;
}

}  // namespace

std::span<const EdgeScoresCase> edge_scores_cases() {
    static const std::vector<EdgeScoresCase> kCases = {
        {"one", 1, 1, {1}, {1}, 0, 11},
        {"tail", 5, 37, {5, 3, 0}, {5, 1, 2}, 1.5, 12},
        {"prototype", 32, 256, {32, 32, 32, 32, 32, 32}, {32, 32, 32, 32, 32, 31}, 0, 13},
        {"widest", 64, 24, {64, 64}, {64, 63}, 0.7f, 15},
        {"gated 4096", 32, 4096, {32}, {32}, 1.2f, 14}};
    return kCases;
}

double edge_scores_tolerance(const EdgeScoresCase& test) {
    // Inputs within 1, so a sum of `rank` products is about sqrt(rank) / 3 and rarely beyond five
    // times that; logits are within 10. Lanes add up rank / 8 products, each of half a unit in the
    // last place of the sum so far, at worst; the softmax adds a handful of units, a power takes
    // all of it times itself.
    const double sum = 10 + 5 * std::sqrt(static_cast<double>(test.rank)) / 3;
    const double power = std::max(1.0, double{test.power});
    return power * sum * 0x1p-24 * (static_cast<double>(test.rank) / 8 + 16);
}

int64_t edge_scores_bytes(const EdgeScoresCase& test) {
    int64_t factors = 0;
    for (size_t d = 0; d < test.parents.size(); ++d) factors += test.parents[d] + test.children[d];
    return (factors * test.rank + edges(test)) * static_cast<int64_t>(sizeof(float));
}

double edge_scores_flops(const EdgeScoresCase& test) {
    return static_cast<double>(edges(test) * (2 * test.rank + 20));
}

}  // namespace kd
