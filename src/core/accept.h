// Lossless acceptance. At each node of the walk the target's token is drawn once; if it is a child
// of the node the walk descends, otherwise it is the bonus token and the walk ends. Every emitted
// token is therefore a draw from the target given its own path, whatever the tree was, as long as
// the tree was built without looking at the draws. Penalties, bias, minimum length and masks do not
// change the argument: they turn a node's row into another row by looking at the node's own path
// only (the tokens the walk has emitted so far), so plain decoding would have changed the same row
// in the same way.
#pragma once

#include <cstdint>
#include <span>

#include "base/sampling_params.h"
#include "base/views.h"
#include "core/logit_rules.h"
#include "core/logprobs.h"
#include "core/sampling.h"

namespace kd {

/// What a walk obeys and records beside the draws. All empty: the raw logits, nothing recorded.
struct WalkRules {
    TokenCounts* counts = nullptr;      // of prompt and answer up to the root; null or empty: no
                                        // penalties. Moves with the walk and comes back as it was
    std::span<const int32_t> answer;    // emitted tokens up to the root
    std::span<const LogitBias> bias;    // distinct tokens
    std::span<const int32_t> stop_ids;  // forbidden while fewer than params.min_tokens tokens of
                                        // the answer stand on the path, also with ignore_eos
    const LogitMask* mask = nullptr;    // null or empty: none
    LogprobsView logprobs;              // [>= deepest depth + 1] positions: one an emitted token
};

/// logits [tree count, vocabulary]: row i is the target's prediction after node i.
/// draws [>= deepest depth + 1]: draws[d] in [0, 1) selects the token that follows a node of depth
/// d (the draw of absolute position context + d + 1). Unused when greedy.
/// Throws what the mask throws, and kd::Error for a row of the walk with a NaN or one that is left
/// without a finite logit; *out.count (then possibly 0) says how many tokens were accepted before,
/// and they are good. Rows off the walk are not read.
void accept_tree(const TreeView& tree, MatrixView<const float> logits, const SamplingParams& params,
                 std::span<const double> draws, SamplerScratch& scratch, AcceptedView out,
                 const WalkRules& rules = {});

/// The child of `node` that carries `token`, or -1.
int32_t find_child(const TreeView& tree, int32_t node, int32_t token);

}  // namespace kd
