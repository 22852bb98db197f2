// Random lattices for the tree tests: with ties, duplicate tokens, missing, NaN and positive edges.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "base/storage.h"

namespace kd {

struct LatticeRecipe {
    int32_t depths = 4;
    int32_t states = 4;      // at most; the filled count of a depth is random
    int32_t vocabulary = 4;  // small: one token in several states of a depth
    bool edges = true;
    float quantum = 0.0f;  // log-probabilities are multiples of it, so that sums tie; 0: any value
    double odd = 0.0;      // chance of an edge that is -inf, NaN or positive
};

class RandomLattice {
  public:
    explicit RandomLattice(uint64_t seed) : random_(seed) {}

    uint32_t below(uint32_t bound) { return static_cast<uint32_t>(random_() >> 32) % bound; }
    double unit() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

    void fill(const LatticeRecipe& recipe, LatticeView lattice) {
        *lattice.depths = static_cast<int32_t>(below(static_cast<uint32_t>(recipe.depths) + 1));
        *lattice.has_edges = recipe.edges;
        for (int32_t d = 0; d < *lattice.depths; ++d) {
            // Rarely none: the tree must end above such a depth.
            const uint32_t bound = static_cast<uint32_t>(recipe.states);
            lattice.state_count[d] = below(20) == 0 ? 0 : static_cast<int32_t>(1 + below(bound));
            for (int32_t s = 0; s < lattice.state_count[d]; ++s) {
                lattice.token[lattice.at(d, s)] =
                    static_cast<int32_t>(below(static_cast<uint32_t>(recipe.vocabulary)));
                lattice.log_prob[lattice.at(d, s)] = value(recipe);
                if (!recipe.edges) continue;
                for (int32_t p = 0; p < recipe.states; ++p) {
                    lattice.edge[lattice.edge_at(d, p, s)] = value(recipe);
                }
            }
        }
    }

  private:
    float value(const LatticeRecipe& recipe) {
        if (recipe.odd > 0.0 && unit() < recipe.odd) {
            constexpr float kOdd[] = {-std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::quiet_NaN(), 0.25f, 1e-6f, 0.0f};
            return kOdd[below(5)];
        }
        if (recipe.quantum > 0.0f) return -recipe.quantum * static_cast<float>(below(4));
        return static_cast<float>(std::log(unit() + 1e-9));
    }

    std::mt19937_64 random_;
};

}  // namespace kd
