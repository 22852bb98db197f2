// Lossless acceptance. At each node of the walk the target's token is drawn once; if it is a child
// of the node the walk descends, otherwise it is the bonus token and the walk ends. Every emitted
// token is therefore a draw from the target given its own path, whatever the tree was, as long as
// the tree was built without looking at the draws.
#pragma once

#include <cstdint>
#include <span>

#include "base/sampling_params.h"
#include "base/views.h"
#include "core/sampling.h"

namespace kd {

/// logits [tree count, vocabulary]: row i is the target's prediction after node i.
/// draws [>= deepest depth + 1]: draws[d] in [0, 1) selects the token that follows a node of depth
/// d (the draw of absolute position context + d + 1). Unused when greedy.
void accept_tree(const TreeView& tree, MatrixView<const float> logits, const SamplingParams& params,
                 std::span<const double> draws, SamplerScratch& scratch, AcceptedView out);

/// The child of `node` that carries `token`, or -1.
int32_t find_child(const TreeView& tree, int32_t node, int32_t token);

}  // namespace kd
