#include "core/accept.h"

#include "base/check.h"

namespace kd {

void accept_tree(const TreeView& tree, MatrixView<const float> logits, const SamplingParams& params,
                 std::span<const double> draws, SamplerScratch& scratch, AcceptedView out) {
    KD_CHECK(*tree.count >= 1 && *tree.count <= logits.rows, "{} rows of logits for {} nodes",
             logits.rows, *tree.count);
    const bool greedy = params.temperature == 0.0f;
    int32_t accepted = 0;
    for (int32_t node = 0; node >= 0;) {
        // The walk descends one depth a step, so `accepted` is the depth of `node`.
        const size_t depth = static_cast<size_t>(accepted);
        KD_CHECK(accepted < out.capacity, "a path longer than {}", out.capacity);
        KD_CHECK(greedy || depth < draws.size(), "{} draws for depth {}", draws.size(), depth);
        const int32_t token =
            sample_token(logits.row_span(node), params, greedy ? 0.0 : draws[depth], scratch);
        out.path[accepted] = node;
        out.emitted[accepted] = token;
        ++accepted;
        node = find_child(tree, node, token);
    }
    *out.count = accepted;
}

int32_t find_child(const TreeView& tree, int32_t node, int32_t token) {
    // Children stand behind their parents.
    for (int32_t child = node + 1; child < *tree.count; ++child) {
        if (tree.parent[child] == node && tree.token[child] == token) return child;
    }
    return -1;
}

}  // namespace kd
