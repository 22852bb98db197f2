// What a request does to the logits of one node before a token is drawn: penalties, bias, minimum
// length, mask. Each rule depends on the node's own path alone, never on the tree around it.
//
// The order is: repetition penalty, frequency penalty, presence penalty, bias, stop tokens, mask.
// The penalties have the formulas and the order of vLLM. The bias is added behind them, as SGLang
// does, so that a bias is worth the same whatever was said before (vLLM adds it first: that differs
// only for a token with both a bias and a repetition penalty).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling_params.h"

namespace kd {

/// Which tokens stand in prompt and answer, and how often in the answer. Memory by vocabulary, but
/// a row costs its distinct tokens only.
class TokenCounts {
  public:
    /// Counts nothing; push and pop must not be called.
    TokenCounts() = default;
    /// prompt: its tokens, or none where no repetition penalty asks for them.
    TokenCounts(int32_t vocabulary, std::span<const int32_t> prompt);

    bool empty() const { return in_answer_.empty(); }
    /// One more token of the answer.
    void push(int32_t token);
    /// Takes back the last push, which was of `token`.
    void pop(int32_t token);

    /// Tokens that stand in prompt or answer, each once.
    std::span<const int32_t> distinct() const { return distinct_; }
    int32_t in_answer(int32_t token) const { return in_answer_[static_cast<size_t>(token)]; }

  private:
    std::vector<int32_t> in_answer_;  // [vocabulary]
    std::vector<bool> in_prompt_;     // [vocabulary]
    std::vector<int32_t> distinct_;   // the prompt's, then the answer's in order of appearance
};

/// Whether `params` has a penalty that needs counts.
bool has_penalties(const SamplingParams& params);

/// Rules of one node beside the penalties. Views of the caller's values.
struct LogitRules {
    std::span<const LogitBias> bias;
    std::span<const int32_t> forbidden;  // tokens that get -inf
    std::span<const uint32_t> allowed;   // [ceil(vocabulary / 32)] bit words as in LogitMask, or
                                         // none: every token is allowed
};

/// Adjusts one row of logits [vocabulary] in place for a node whose path holds `counts` (empty:
/// no penalties). In float, one rounding an operation:
///   repetition r: token of prompt or answer: logit > 0 ? logit / r : logit * r
///   frequency f, presence p: token n > 0 times in the answer: (logit - f * n) - p
///   bias b: logit + b;  forbidden and not allowed tokens: -inf.
/// Tokens must lie in the vocabulary.
void apply_logit_rules(std::span<float> logits, const SamplingParams& params,
                       const TokenCounts& counts, const LogitRules& rules);

}  // namespace kd
