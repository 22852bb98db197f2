#include "engine/round.h"

#include <chrono>

#include "base/check.h"
#include "engine/stages.h"

namespace kd {

namespace {

using Clock = std::chrono::steady_clock;

/// Seconds since the last call, or since construction.
class Lap {
  public:
    double operator()() {
        const Clock::time_point now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - last_).count();
        last_ = now;
        return seconds;
    }

  private:
    Clock::time_point last_ = Clock::now();
};

void count(const Batch& batch, RoundStats& stats) {
    stats.sessions = static_cast<int32_t>(batch.entries.size());
    stats.nodes = static_cast<int32_t>(batch.logit_rows.size());
    for (const BatchEntry& entry : batch.entries) {
        stats.prefill_rows += entry.prefill_rows;
        stats.decoding += entry.prefill_rows == 0 ? 1 : 0;
        stats.nodes -= entry.scored_rows;
    }
    stats.emitted = static_cast<int32_t>(batch.move_to.size());
}

}  // namespace

RoundStats& RoundStats::operator+=(const RoundStats& other) {
    sessions += other.sessions;
    decoding += other.decoding;
    prefill_rows += other.prefill_rows;
    reused_rows += other.reused_rows;
    nodes += other.nodes;
    emitted += other.emitted;
    draft_s += other.draft_s;
    tree_s += other.tree_s;
    verify_s += other.verify_s;
    accept_s += other.accept_s;
    commit_s += other.commit_s;
    total_s += other.total_s;
    predicted_verify_s += other.predicted_verify_s;
    predicted_plain_s += other.predicted_plain_s;
    fragmentation += other.fragmentation;
    free_runs += other.free_runs;
    return *this;
}

RoundStats run_round(Batch& batch, const RoundContext& context) {
    KD_CHECK(!batch.entries.empty(), "a round without sessions");
    RoundStats stats;
    Lap total;
    Lap lap;
    draft_stage(batch, context.drafter);
    stats.draft_s = lap();
    const PredictedForward predicted = tree_stage(batch, *context.cost);
    stats.predicted_verify_s = predicted.seconds;
    stats.predicted_plain_s = predicted.plain_seconds;
    pack_stage(batch);
    stats.tree_s = lap();
    verify_stage(batch, context);
    stats.verify_s = lap();
    accept_stage(batch);
    stats.accept_s = lap();
    commit_stage(batch, context);
    stats.commit_s = lap();
    stats.total_s = total();
    count(batch, stats);
    return stats;
}

}  // namespace kd
