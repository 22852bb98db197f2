// Which sessions take part in a round, with how many rows; and what becomes of its results.
#include <algorithm>

#include "base/check.h"
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
    for (size_t number = 0; number < running_.size() && !waiting_.empty(); ++number) {
        if (running_[number] != nullptr) continue;
        Session& session = *waiting_.front();
        // Whoever would be retracted at once had better wait; somebody must run.
        const auto tokens = static_cast<int32_t>(session.tokens.size());
        if (running() > 0 && pool_->free() <= tokens) return;
        waiting_.pop_front();
        session.number = static_cast<int32_t>(number);
        session.admission = next_admission_++;
        running_[number] = &session;
    }
}

void Engine::retract(Session& session) {
    session.table.clear();
    session.committed = 0;
    session.stats.retracted += 1;
    running_[static_cast<size_t>(session.number)] = nullptr;
    session.number = -1;
    waiting_.push_front(&session);
}

/// Slots for positions up to `tokens`, taken from sessions admitted later if the pool is short.
/// The session admitted first always succeeds: the pool holds its limit.
bool Engine::reserve(Session& session, int32_t tokens) {
    while (!session.table.extend_to(tokens)) {
        Session* youngest = nullptr;
        for (Session* each : running_) {
            if (each != nullptr && each->admission > session.admission &&
                (youngest == nullptr || each->admission > youngest->admission)) {
                youngest = each;
            }
        }
        if (youngest == nullptr) return false;
        retract(*youngest);
    }
    return true;
}

void Engine::plan_prefill(Session& session, int32_t& rows_left) {
    const int32_t missing = static_cast<int32_t>(session.tokens.size()) - 1 - session.committed;
    const int32_t rows = std::min(missing, rows_left);
    if (rows == 0 || !reserve(session, session.committed + rows)) return;
    rows_left -= rows;
    batch_->entries.push_back({.session = session.number,
                               .tokens = session.tokens,
                               .context = session.committed,
                               .prefill_rows = rows,
                               .table = session.table.slots()});
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
        // Drafts take what is free; only the row of the root may push others out.
        const int32_t available = pool_->free() + session.table.tokens() - session.committed - 1;
        max_depth = std::clamp(available, 0, max_depth);
    }
    if (!reserve(session, session.committed + max_depth + 1)) return;
    const auto first_tail = static_cast<size_t>(session.number) * static_cast<size_t>(limits.nodes);
    batch_->entries.push_back(
        {.session = session.number,
         .tokens = session.tokens,
         .context = session.committed,
         .table = session.table.slots(),
         .tail = std::span(tail_slots_).subspan(first_tail, static_cast<size_t>(limits.nodes)),
         .speculation = wish,
         .max_depth = max_depth,
         .sampling = session.request.sampling,
         .known_continuation = std::span(session.request.known_continuation)
                                   .subspan(std::min(session.request.known_continuation.size(),
                                                     static_cast<size_t>(session.emitted())))});
    planned_.push_back(&session);
}

void Engine::plan() {
    batch_->entries.clear();
    planned_.clear();
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
        if (session->prefilling()) {
            plan_prefill(*session, rows_left);
        } else {
            plan_decode(*session);
        }
    }
}

void Engine::emit(Session& session, std::span<const int32_t> emitted) {
    const std::vector<int32_t>& stop_ids = tokenizer_->stop_ids();
    for (const int32_t token : emitted) {
        session.tokens.push_back(token);
        session.new_ids.push_back(token);
        session.stats.tokens += 1;
        if (std::binary_search(stop_ids.begin(), stop_ids.end(), token)) {
            return finish(session, FinishReason::stop);
        }
        session.new_text += session.text.push(token);
        if (session.text.stopped()) return finish(session, FinishReason::stop);
        if (static_cast<int32_t>(session.tokens.size()) >= token_limit(session)) {
            return finish(session, FinishReason::length);
        }
    }
}

void Engine::apply(const RoundStats& stats) {
    for (size_t i = 0; i < planned_.size(); ++i) {
        Session& session = *planned_[i];
        const BatchEntry& entry = batch_->entries[i];
        if (entry.prefill_rows > 0) {
            session.committed += entry.prefill_rows;
            session.stats.prefill_s += stats.total_s;
            continue;
        }
        const AcceptedView accepted = batch_->accepted[i].view();
        session.committed += *accepted.count;
        session.stats.rounds += 1;
        session.stats.nodes += *batch_->trees[i].view().count;
        session.stats.decode_s += stats.total_s;
        session.stats.phases += stats;
        emit(session, {accepted.emitted, static_cast<size_t>(*accepted.count)});
    }
}

void Engine::finish(Session& session, FinishReason reason) {
    session.finish = reason;
    session.new_text += session.text.finish();
    session.table.clear();
    session.committed = 0;
    if (session.number >= 0) {
        running_[static_cast<size_t>(session.number)] = nullptr;
        session.number = -1;
    }
}

}  // namespace kd
