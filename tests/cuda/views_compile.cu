// Compiled for every architecture, never run: the views that stages pass, and the random numbers,
// have to work inside a kernel, passed by value.
#include <cstdint>
#include <type_traits>

#include "base/rng.h"
#include "base/views.h"

namespace kd {

// Kernel parameters are copied byte by byte.
static_assert(std::is_trivially_copyable_v<LatticeView>);
static_assert(std::is_trivially_copyable_v<TreeView>);
static_assert(std::is_trivially_copyable_v<AcceptedView>);
static_assert(std::is_trivially_copyable_v<MoveList>);
static_assert(std::is_trivially_copyable_v<MatrixView<float>>);

// One thread. A toy of tree_build and tree_accept: enough to touch every view.
__global__ void touch_views(LatticeView lattice, TreeView tree, AcceptedView accepted,
                            MatrixView<const float> logits, uint64_t seed) {
    int32_t nodes = 1;
    for (int32_t depth = 0; depth < *lattice.depths && nodes < tree.capacity; ++depth) {
        if (lattice.state_count[depth] == 0) break;
        const int64_t cell = lattice.at(depth, 0);
        tree.token[nodes] = lattice.token[cell];
        tree.parent[nodes] = nodes - 1;
        tree.depth[nodes] = depth + 1;
        const float edge = depth > 0 && *lattice.has_edges
                               ? lattice.edge[lattice.edge_at(depth, 0, 0)]
                               : lattice.log_prob[cell];
        tree.log_score[nodes] = tree.log_score[nodes - 1] + edge;
        tree.ancestor_words(nodes)[nodes / 64] |= uint64_t{1} << (nodes % 64);
        ++nodes;
    }
    *tree.count = nodes;

    const double draw = uniform(seed, RngStream::sample, static_cast<uint64_t>(nodes));
    accepted.path[0] = 0;
    accepted.emitted[0] = static_cast<int32_t>(draw * static_cast<double>(logits.columns));
    *accepted.count = logits.row(0)[accepted.emitted[0]] > 0.0f ? 1 : 0;
}

}  // namespace kd
