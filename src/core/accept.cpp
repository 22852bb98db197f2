#include "core/accept.h"

#include <algorithm>

#include "base/check.h"
#include "core/softmax.h"

namespace kd {

namespace {

/// The row of each node of a walk as the request's rules leave it.
class Walk {
  public:
    Walk(const SamplingParams& params, const WalkRules& rules, SamplerScratch& scratch)
        : params_(params),
          rules_(rules),
          scratch_(scratch),
          counted_(rules.counts != nullptr && !rules.counts->empty()),
          masked_(rules.mask != nullptr && *rules.mask) {
        if (masked_) scratch_.answer.assign(rules.answer.begin(), rules.answer.end());
    }
    /// The counts come back as they were, also when the mask throws.
    ~Walk() {
        if (!counted_) return;
        for (size_t i = emitted_.size(); i > 0; --i) rules_.counts->pop(emitted_[i - 1]);
    }
    Walk(const Walk&) = delete;
    Walk& operator=(const Walk&) = delete;

    /// The row to draw from, valid until the next call; `raw` itself where no rule applies.
    std::span<const float> row(std::span<const float> raw) {
        LogitRules node = {.bias = rules_.bias};
        const size_t tokens = rules_.answer.size() + emitted_.size();
        if (tokens < static_cast<size_t>(params_.min_tokens)) node.forbidden = rules_.stop_ids;
        if (!counted_ && !masked_ && node.bias.empty() && node.forbidden.empty()) return raw;
        if (masked_) {
            scratch_.allowed.assign((raw.size() + 31) / 32, ~0u);
            (*rules_.mask)(scratch_.answer, scratch_.allowed);
            node.allowed = scratch_.allowed;
        }
        scratch_.adjusted.assign(raw.begin(), raw.end());
        apply_logit_rules(scratch_.adjusted, params_, counted_ ? *rules_.counts : no_counts_, node);
        return scratch_.adjusted;
    }

    /// emitted: all tokens of the walk so far.
    void descend(std::span<const int32_t> emitted) {
        emitted_ = emitted;
        if (counted_) rules_.counts->push(emitted.back());
        if (masked_) scratch_.answer.push_back(emitted.back());
    }

  private:
    const SamplingParams& params_;
    const WalkRules& rules_;
    SamplerScratch& scratch_;
    const bool counted_;
    const bool masked_;
    const TokenCounts no_counts_;
    std::span<const int32_t> emitted_;
};

}  // namespace

void accept_tree(const TreeView& tree, MatrixView<const float> logits, const SamplingParams& params,
                 std::span<const double> draws, SamplerScratch& scratch, AcceptedView out,
                 const WalkRules& rules) {
    KD_CHECK(*tree.count >= 1 && *tree.count <= logits.rows, "{} rows of logits for {} nodes",
             logits.rows, *tree.count);
    const bool greedy = params.temperature == 0.0f;
    int32_t& accepted = *out.count;
    accepted = 0;
    Walk walk(params, rules, scratch);
    for (int32_t node = 0; node >= 0;) {
        // The walk descends one depth a step, so `accepted` is the depth of `node`.
        const size_t depth = static_cast<size_t>(accepted);
        KD_CHECK(accepted < out.capacity, "a path longer than {}", out.capacity);
        KD_CHECK(greedy || depth < draws.size(), "{} draws for depth {}", draws.size(), depth);
        const std::span<const float> raw = logits.row_span(node);
        expect_numbers(raw);
        const int32_t token =
            sample_token(walk.row(raw), params, greedy ? 0.0 : draws[depth], scratch);
        if (rules.logprobs.top >= 0) {
            write_logprobs(raw, token, rules.logprobs, accepted, scratch.logprob);
        }
        out.path[accepted] = node;
        out.emitted[accepted] = token;
        ++accepted;
        walk.descend({out.emitted, static_cast<size_t>(accepted)});
        node = find_child(tree, node, token);
    }
}

int32_t find_child(const TreeView& tree, int32_t node, int32_t token) {
    // Children stand behind their parents.
    for (int32_t child = node + 1; child < *tree.count; ++child) {
        if (tree.parent[child] == node && tree.token[child] == token) return child;
    }
    return -1;
}

}  // namespace kd
