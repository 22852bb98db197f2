#include "engine/api/api_result.h"

#include <memory>

namespace kd::api {

namespace {

struct ResultOwner : kdtree_result {
    std::vector<int32_t> ids_kept;
    std::string text_kept;
};

/// Positions and their top tokens, which lie in one array.
struct LogprobsOwner {
    std::vector<kdtree_position_logprobs> positions;
    std::vector<kdtree_token_logprob> tokens;

    explicit LogprobsOwner(const std::vector<PositionLogprobs>& given) {
        size_t count = 0;
        for (const PositionLogprobs& each : given) count += each.top.size();
        tokens.reserve(count);
        positions.reserve(given.size());
        for (const PositionLogprobs& each : given) {
            const kdtree_token_logprob* top = tokens.data() + tokens.size();
            for (const TokenLogprob& one : each.top) tokens.push_back({one.token, one.logprob});
            positions.push_back({.logprob = each.logprob,
                                 .top_count = static_cast<int32_t>(each.top.size()),
                                 .top = top});
        }
    }
    int64_t count() const { return static_cast<int64_t>(positions.size()); }
};

struct DeltaOwner : kdtree_delta {
    explicit DeltaOwner(Delta&& given)
        : kdtree_delta{},
          delta(std::move(given)),
          of_answer(delta.logprobs),
          of_prompt(delta.prompt_logprobs) {}

    Delta delta;
    LogprobsOwner of_answer;
    LogprobsOwner of_prompt;
};

int32_t finish_reason_of(FinishReason reason) {
    switch (reason) {
        case FinishReason::none:
            return KDTREE_FINISH_NONE;
        case FinishReason::stop:
            return KDTREE_FINISH_STOP;
        case FinishReason::length:
            return KDTREE_FINISH_LENGTH;
        case FinishReason::abort:
            return KDTREE_FINISH_ABORT;
        case FinishReason::error:
            return KDTREE_FINISH_ERROR;
    }
    return KDTREE_FINISH_ERROR;
}

kdtree_request_stats request_stats_of(const SessionStats& stats) {
    return {.prompt_tokens = stats.prompt_tokens,
            .tokens = stats.tokens,
            .rounds = stats.rounds,
            .nodes = stats.nodes,
            .retracted = stats.retracted,
            .reused_tokens = stats.reused_tokens,
            .prefill_s = stats.prefill_s,
            .decode_s = stats.decode_s};
}

/// Not null for an empty vector, so that C may always add 0 to it.
template <class T>
const T* data_of(const std::vector<T>& values) {
    static const T kNothing{};
    return values.empty() ? &kNothing : values.data();
}

}  // namespace

kdtree_result* new_result(std::vector<int32_t> ids, std::string text) {
    auto owner = std::make_unique<ResultOwner>();
    owner->ids_kept = std::move(ids);
    owner->text_kept = std::move(text);
    kdtree_result& shown = *owner;
    shown = {.id_count = static_cast<int64_t>(owner->ids_kept.size()),
             .ids = data_of(owner->ids_kept),
             .text_bytes = static_cast<int64_t>(owner->text_kept.size()),
             .text = owner->text_kept.c_str()};
    return owner.release();
}

kdtree_delta* new_delta(Delta&& delta) {
    auto owner = std::make_unique<DeltaOwner>(std::move(delta));
    const Delta& kept = owner->delta;
    kdtree_delta& shown = *owner;
    shown = {.finish_reason = finish_reason_of(kept.finish),
             .reserved = 0,
             .id_count = static_cast<int64_t>(kept.ids.size()),
             .ids = data_of(kept.ids),
             .text_bytes = static_cast<int64_t>(kept.text.size()),
             .text = kept.text.c_str(),
             .logprob_count = owner->of_answer.count(),
             .logprobs = data_of(owner->of_answer.positions),
             .prompt_logprob_count = owner->of_prompt.count(),
             .prompt_logprobs = data_of(owner->of_prompt.positions),
             .error = kept.error.c_str(),
             .stats = request_stats_of(kept.stats)};
    return owner.release();
}

kdtree_round_stats round_stats_of(const RoundStats& stats) {
    return {.requests = stats.sessions,
            .decoding = stats.decoding,
            .prefill_rows = stats.prefill_rows,
            .nodes = stats.nodes,
            .emitted = stats.emitted,
            .reused_rows = stats.reused_rows,
            .draft_s = stats.draft_s,
            .tree_s = stats.tree_s,
            .verify_s = stats.verify_s,
            .accept_s = stats.accept_s,
            .commit_s = stats.commit_s,
            .total_s = stats.total_s,
            .predicted_verify_s = stats.predicted_verify_s};
}

}  // namespace kd::api

void kdtree_result_free(kdtree_result* result) {
    delete static_cast<kd::api::ResultOwner*>(result);
}

void kdtree_delta_free(kdtree_delta* delta) {
    delete static_cast<kd::api::DeltaOwner*>(delta);
}
