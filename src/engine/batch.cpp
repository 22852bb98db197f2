#include "engine/batch.h"

namespace kd {

Batch::Batch(const BatchLimits& batch_limits)
    : limits(batch_limits),
      logits(int64_t{limits.rows()} * limits.vocabulary),
      features(limits.rows() * limits.feature_columns),
      logprobs(limits.rows()),
      most_likely(int64_t{limits.rows()} * kMaxTopLogprobs),
      errors(static_cast<size_t>(limits.sessions)) {
    const auto sessions = static_cast<size_t>(limits.sessions);
    const auto rows = static_cast<size_t>(limits.rows());
    entries.reserve(sessions);
    draft_contexts.reserve(sessions);
    draft_lattices.reserve(sessions);
    gated.reserve(sessions);
    for (size_t i = 0; i < sessions; ++i) {
        lattices.emplace_back(limits.depth_capacity, limits.state_capacity);
        trees.emplace_back(limits.nodes);
        accepted.emplace_back(limits.nodes);
    }
    for (std::vector<int32_t>* list :
         {&tokens, &positions, &slots, &logit_rows, &move_from, &move_to, &ingest_tokens,
          &ingest_slots, &ingest_feature_rows}) {
        list->reserve(rows);
    }
    budget_trees.reserve(sessions);
    segments.reserve(sessions);
    first_logit.reserve(sessions);
    draws.resize(static_cast<size_t>(limits.nodes) + 1);
    ingest.reserve(sessions);
}

LogprobsView Batch::logprobs_of(size_t entry) {
    const int64_t first = first_logit[entry];
    return {.top = entries[entry].top_logprobs,
            .logprob = logprobs.data() + first,
            .most_likely = most_likely.data() + first * kMaxTopLogprobs,
            .stride = kMaxTopLogprobs};
}

}  // namespace kd
