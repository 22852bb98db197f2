// The slots of a session: what it takes from the prefix index and leaves there, what it grows by
// and gives up, and where its rows move to.
#include <algorithm>

#include "base/check.h"
#include "engine/engine.h"
#include "kernels/kv_move/kv_move.h"
#include "kv/relocation.h"

namespace kd {

/// The tokens whose rows a session may take from the cache. Node 0 of its tree computes the last
/// one's; a request that only reads its prompt keeps one to have a round in which it ends.
std::span<const int32_t> Engine::reusable_tokens(const Session& session) const {
    const Request& request = session.request;
    const bool scoring =
        request.prompt_logprobs >= 0 && session.scored < session.stats.prompt_tokens;
    const size_t computed = request.prompt_only ? 2 : 1;
    if (scoring || session.tokens.size() <= computed) return {};
    return std::span(session.tokens).first(session.tokens.size() - computed);
}

/// Lets the session start, or go on, behind its longest cached prefix if that is longer than what
/// it has itself.
void Engine::reuse_prefix(Session& session) {
    const std::span<const int32_t> tokens = reusable_tokens(session);
    if (pool_->cached_prefix(tokens) <= session.committed) return;
    session.table.clear();
    copies_.from.clear();
    copies_.to.clear();
    const int32_t reused = pool_->reuse(session.table, tokens, copies_);
    copy_rows(copies_.view());
    const int32_t found = std::max(reused - session.committed, 0);
    reused_rows_ += found;
    if (session.stats.retracted == 0) session.stats.reused_tokens += found;
    session.committed = reused;
    if (drafter_ == nullptr || reused == 0) return;
    const auto rows = static_cast<size_t>(reused);
    const IngestSegment segment = {.session = session.number,
                                   .tokens = tokens.first(rows),
                                   .slots = session.table.slots().first(rows),
                                   .reused = true};
    drafter_->ingest({&segment, 1});
}

/// Rows of committed tokens, the target's and what the drafter keeps of them.
void Engine::copy_rows(const MoveList& moves) {
    if (moves.from.empty()) return;
    kv_move({.kv = kv_, .moves = moves}, stream_);
    if (drafter_ != nullptr && drafter_->cache().layers > 0) {
        kv_move({.kv = drafter_->cache(), .moves = moves}, stream_);
    }
}

/// Leaves the rows that the session has to whoever comes with the same beginning.
void Engine::publish(Session& session) {
    // Behind a stop token that was accepted there may be rows of tokens that nobody was given.
    const auto rows = std::min(static_cast<size_t>(session.committed), session.tokens.size());
    pool_->publish(session.table, std::span(session.tokens).first(rows));
}

/// Slots for positions up to `need`, and where there is space for all there is to read and
/// the prompt's head-room; taken from sessions admitted later if the pool is short. The session
/// admitted first always succeeds: the pool holds its limit, nobody else holds a page then, and
/// what the index keeps for nobody may go.
bool Engine::reserve(Session& session, int32_t need) {
    const int32_t headroom =
        headroom_of(pool_->total(), config_.max_running_requests, config_.kv_headroom);
    const int32_t want = std::min(std::max(static_cast<int32_t>(session.tokens.size()),
                                           session.stats.prompt_tokens + headroom),
                                  token_limit(session));
    while (!pool_->extend(session.table, need, want)) {
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

void Engine::retract(Session& session) {
    publish(session);  // what is left of it when the session comes back need not be computed anew
    session.table.clear();
    session.committed = 0;
    session.stats.retracted += 1;
    running_[static_cast<size_t>(session.number)] = nullptr;
    session.number = -1;
    waiting_.push_front(&session);
}

int32_t Engine::relocate(int32_t max_tokens) {
    const int32_t page_size = pool_->page_size();
    const PageMoves moves = plan_moves(*pool_, (max_tokens + page_size - 1) / page_size);
    const SlotCopies copies = slots_of(moves, page_size);
    if (copies.from.empty()) return 0;
    copy_rows(copies.view());
    pool_->rename(moves.from, moves.to);
    return static_cast<int32_t>(copies.from.size());
}

void Engine::check_books() const {
    pool_->check_books();
    size_t tables = 0;
    for (const auto& [id, session] : sessions_) {
        tables += session->table.tokens() > 0 ? 1 : 0;
        KD_CHECK(session->number >= 0 || session->table.tokens() == 0,
                 "request {} does not run and holds {} slots", id, session->table.tokens());
        KD_CHECK(session->finish == FinishReason::none || session->number < 0,
                 "request {} is finished and runs", id);
        KD_CHECK(session->committed <= session->table.tokens(), "request {}: {} rows, {} slots", id,
                 session->committed, session->table.tokens());
        // Every emitted token but the last has its row, once the prompt is in.
        KD_CHECK(session->number < 0 || session->prefilling() ||
                     session->committed + 1 == static_cast<int32_t>(session->tokens.size()),
                 "request {}: {} rows for {} tokens", id, session->committed,
                 session->tokens.size());
    }
    KD_CHECK(pool_->tables().size() == tables, "{} tables, {} of sessions", pool_->tables().size(),
             tables);
}

}  // namespace kd
