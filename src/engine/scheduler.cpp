// Which sessions take part in a round, with how many rows; and what becomes of its results. Their
// slots: slots.cpp.
#include <algorithm>

#include "base/check.h"
#include "core/softmax.h"
#include "engine/engine.h"

namespace kd {

/// Tokens, prompt included, at which the session ends.
int32_t Engine::token_limit(const Session& session) const {
    const int32_t room = std::min(config_.context_length, pool_->total());
    const int32_t max_tokens = session.request.max_tokens;
    if (max_tokens == 0) return room;
    return std::min(room, session.stats.prompt_tokens + std::min(max_tokens, room));
}

void Engine::admit() {
    for (size_t number = 0; number < running_.size() && !waiting_.empty();) {
        if (running_[number] != nullptr) {
            ++number;
            continue;
        }
        Session& session = *waiting_.front();
        if (session.request.prompt_only && !session.prefilling()) {
            waiting_.pop_front();  // a prompt of one token: there is nothing to score
            finish(session, FinishReason::length);
            continue;
        }
        // Whoever would be retracted at once had better wait; somebody must run.
        const auto tokens = static_cast<int32_t>(session.tokens.size());
        if (running() > 0 &&
            pool_->available() + pool_->locked_prefix(reusable_tokens(session)) <= tokens)
            return;
        waiting_.pop_front();
        session.number = static_cast<int32_t>(number);
        session.admission = next_admission_++;
        running_[number] = &session;
    }
}

void Engine::plan_prefill(Session& session, int32_t& rows_left) {
    const int32_t missing = static_cast<int32_t>(session.tokens.size()) - 1 - session.committed;
    const int32_t rows = std::min(missing, rows_left);
    if (rows == 0 || !reserve(session, session.committed + rows)) return;
    rows_left -= rows;
    // Row r of the chunk scores the prompt's token behind it, unless that happened before a
    // retraction. The answer's tokens were scored when they were emitted.
    const int32_t prompt_top = std::min(session.request.prompt_logprobs, batch_->limits.vocabulary);
    int32_t first_scored = 0, scored_rows = 0;
    if (prompt_top >= 0) {
        first_scored = std::max(session.scored - 1 - session.committed, 0);
        const int32_t end = std::min(rows, session.stats.prompt_tokens - 1 - session.committed);
        scored_rows = std::max(end - first_scored, 0);
    }
    batch_->entries.push_back({.session = session.number,
                               .tokens = session.tokens,
                               .context = session.committed,
                               .prefill_rows = rows,
                               .first_scored = first_scored,
                               .scored_rows = scored_rows,
                               .table = session.table.slots(),
                               .top_logprobs = prompt_top});
    planned_.push_back(&session);
}

void Engine::plan_decode(Session& session) {
    const auto tokens = static_cast<int32_t>(session.tokens.size());
    const Speculation& wish = session.request.speculation;
    const BatchLimits& limits = batch_->limits;
    int32_t max_depth = 0;
    if (wish.shape != DraftShape::plain) {
        const int32_t nodes = wish.nodes > 0 ? wish.nodes : limits.nodes;
        max_depth = std::min({token_limit(session) - tokens - 1, nodes - 1, limits.depth_capacity});
        // Drafts take what nobody needs; only the row of the root may push others out.
        if (session.committed + max_depth + 1 > session.table.tokens()) {
            const int32_t within_reach = pool_->reach(session.table) - session.committed - 1;
            max_depth = std::clamp(within_reach, 0, max_depth);
        }
    }
    const int32_t need = session.committed + max_depth + 1;
    if (!reserve(session, need)) return;
    const Request& request = session.request;
    if (session.counts.empty() && has_penalties(request.sampling)) {
        // The prompt's tokens matter to the repetition penalty alone.
        const bool repetition = request.sampling.repetition_penalty != 1.0f;
        session.counts =
            TokenCounts(limits.vocabulary, repetition ? std::span<const int32_t>(request.prompt)
                                                      : std::span<const int32_t>());
    }
    const auto first_tail = static_cast<size_t>(session.number) * static_cast<size_t>(limits.nodes);
    batch_->entries.push_back(
        {.session = session.number,
         .tokens = session.tokens,
         .context = session.committed,
         .table = session.table.slots(),
         .tail = std::span(tail_slots_).subspan(first_tail, static_cast<size_t>(limits.nodes)),
         .speculation = wish,
         .max_depth = max_depth,
         .sampling = request.sampling,
         .known_continuation = std::span(request.known_continuation)
                                   .subspan(std::min(request.known_continuation.size(),
                                                     static_cast<size_t>(session.emitted()))),
         .rules = {.counts = &session.counts,
                   .answer = session.answer(),
                   .bias = request.logit_bias,
                   .stop_ids = tokenizer_->stop_ids(),
                   .mask = &request.logit_mask},
         .top_logprobs = std::min(request.top_logprobs, limits.vocabulary)});
    planned_.push_back(&session);
}

void Engine::plan() {
    batch_->entries.clear();
    planned_.clear();
    reused_rows_ = 0;
    // Oldest first: what a session takes from younger ones was not planned yet.
    oldest_first_.clear();
    for (Session* each : running_) {
        if (each != nullptr) oldest_first_.push_back(each);
    }
    std::sort(oldest_first_.begin(), oldest_first_.end(),
              [](const Session* a, const Session* b) { return a->admission < b->admission; });
    int32_t rows_left = batch_->limits.prefill_rows;
    for (Session* session : oldest_first_) {
        if (session->number < 0) continue;  // retracted a moment ago
        if (session->prefilling()) reuse_prefix(*session);
        if (session->prefilling()) {
            plan_prefill(*session, rows_left);
        } else {
            plan_decode(*session);
        }
    }
}

namespace {

PositionLogprobs position_logprobs(const LogprobsView& logprobs, int64_t position) {
    const std::span<const TokenLogprob> top = logprobs.top_of(position);
    return {.logprob = logprobs.logprob[position], .top = {top.begin(), top.end()}};
}

}  // namespace

void Engine::emit(Session& session, std::span<const int32_t> emitted,
                  const LogprobsView& logprobs) {
    const std::vector<int32_t>& stop_ids = tokenizer_->stop_ids();
    const bool stops = !session.request.sampling.ignore_eos;
    for (size_t i = 0; i < emitted.size(); ++i) {
        const int32_t token = emitted[i];
        session.tokens.push_back(token);
        session.new_ids.push_back(token);
        session.stats.tokens += 1;
        if (!session.counts.empty()) session.counts.push(token);
        if (logprobs.top >= 0) {
            session.new_logprobs.push_back(position_logprobs(logprobs, static_cast<int64_t>(i)));
        }
        if (stops && std::binary_search(stop_ids.begin(), stop_ids.end(), token)) {
            return finish(session, FinishReason::stop);
        }
        session.new_text += session.text.push(token);
        if (session.text.stopped()) return finish(session, FinishReason::stop);
        if (static_cast<int32_t>(session.tokens.size()) >= token_limit(session)) {
            return finish(session, FinishReason::length);
        }
    }
}

void Engine::take_scores(Session& session, const BatchEntry& entry, const LogprobsView& logprobs) {
    for (int32_t row = 0; row < entry.scored_rows; ++row) {
        session.new_prompt_logprobs.push_back(position_logprobs(logprobs, row));
    }
    session.scored += entry.scored_rows;
}

namespace {

/// Whether one of an entry's rows of logits has a NaN.
bool has_nan(const Batch& batch, size_t entry) {
    const auto end = entry + 1 < batch.first_logit.size()
                         ? static_cast<size_t>(batch.first_logit[entry + 1])
                         : batch.logit_rows.size();
    const auto first = static_cast<size_t>(batch.first_logit[entry]);
    const auto vocabulary = static_cast<size_t>(batch.limits.vocabulary);
    return count_nan({batch.logits.data() + first * vocabulary, (end - first) * vocabulary}) > 0;
}

}  // namespace

/// Keeps rows that gave NaN from whoever comes with the same tokens: what a cache hit would hand on
/// is computed anew.
void Engine::discard_rows(Session& session) {
    session.table.clear();
    session.committed = 0;
    pool_->forget(session.tokens);
}

void Engine::apply(const RoundStats& stats) {
    for (size_t i = 0; i < planned_.size(); ++i) {
        Session& session = *planned_[i];
        const BatchEntry& entry = batch_->entries[i];
        const LogprobsView logprobs = batch_->logprobs_of(i);
        session.error = batch_->errors[i];
        const bool failed = !session.error.empty();
        if (entry.prefill_rows > 0) {
            session.committed += entry.prefill_rows;
            session.stats.prefill_rows += entry.prefill_rows;
            session.stats.prefill_s += stats.total_s;
            // At once, so that sessions that run already find it too.
            if (!session.prefilling()) publish(session);
            if (!failed) take_scores(session, entry, logprobs);
            if (!failed && session.request.prompt_only && !session.prefilling()) {
                finish(session, FinishReason::length);
            }
        } else {
            const AcceptedView accepted = batch_->accepted[i].view();
            session.committed += *accepted.count;
            session.stats.rounds += 1;
            session.stats.nodes += *batch_->trees[i].view().count;
            session.stats.decode_s += stats.total_s;
            session.stats.phases += stats;
            emit(session, {accepted.emitted, static_cast<size_t>(*accepted.count)}, logprobs);
        }
        // An end that plain decoding reaches before the failing row comes first.
        if (session.finish != FinishReason::none) {
            session.error.clear();
        } else if (failed) {
            if (has_nan(*batch_, i)) discard_rows(session);
            finish(session, FinishReason::error);
        }
    }
}

void Engine::finish(Session& session, FinishReason reason) {
    session.finish = reason;
    session.new_text += session.text.finish();
    publish(session);
    session.table.clear();
    session.committed = 0;
    session.counts = {};
    if (session.number >= 0) {
        running_[static_cast<size_t>(session.number)] = nullptr;
        session.number = -1;
    }
}

}  // namespace kd
