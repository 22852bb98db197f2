#include "models/oracle_drafter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace kd {

namespace {

int32_t most_ranks(const OracleProfile& profile) {
    size_t ranks = 0;
    for (const std::vector<float>& row : profile.hit) ranks = std::max(ranks, row.size());
    return static_cast<int32_t>(ranks);
}

/// The rank at which the truth stands, or -1 if none of the candidates is it.
int32_t draw_rank(const std::vector<float>& hit, double draw) {
    double sum = 0;
    for (size_t rank = 0; rank < hit.size(); ++rank) {
        sum += double{hit[rank]};
        if (draw < sum) return static_cast<int32_t>(rank);
    }
    return -1;
}

}  // namespace

OracleDrafter::OracleDrafter(OracleProfile profile, int32_t vocabulary)
    : Drafter(static_cast<int32_t>(profile.hit.size()), most_ranks(profile)),
      profile_(std::move(profile)),
      vocabulary_(vocabulary) {
    KD_CHECK(vocabulary_ > state_capacity, "vocabulary {}", vocabulary_);
}

void OracleDrafter::draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) {
    for (size_t i = 0; i < contexts.size(); ++i) {
        const DraftContext& context = contexts[i];
        const LatticeView& lattice = lattices[i];
        const auto known = static_cast<int32_t>(context.known_continuation.size());
        *lattice.has_edges = false;
        *lattice.depths = std::min({depth_capacity, context.max_depth, known});
        for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
            const std::vector<float>& hit = profile_.hit[static_cast<size_t>(depth)];
            const int32_t truth = context.known_continuation[static_cast<size_t>(depth)];
            const double draw = uniform(context.seed, RngStream::oracle, context.tokens.size(),
                                        static_cast<uint32_t>(depth));
            const int32_t true_rank = draw_rank(hit, draw);
            lattice.state_count[depth] = static_cast<int32_t>(hit.size());
            for (int32_t rank = 0; rank < lattice.state_count[depth]; ++rank) {
                // Wrong candidates: the next ids after the truth, distinct from it and one another.
                lattice.token[lattice.at(depth, rank)] =
                    rank == true_rank ? truth : (truth + 1 + rank) % vocabulary_;
                const float p = hit[static_cast<size_t>(rank)];
                lattice.log_prob[lattice.at(depth, rank)] =
                    p > 0 ? std::log(p) : -std::numeric_limits<float>::infinity();
            }
        }
    }
}

}  // namespace kd
