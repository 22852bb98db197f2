// Answers by fixed budgets and by the cost model's choice, round by round.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/budget.h"
#include "engine/engine.h"

namespace kd {

/// One decoding round.
struct TimedRound {
    int32_t rows = 0;        // verified
    double expected = 0;     // tokens, by the drafter's probabilities; the bonus token included
    double seconds = 0;      // the engine's step, everything included
    double verify_s = 0;     // of it the target's forward
    double table_s = 0;      // the forward as the cost table says it, without its corrections
    double predicted_s = 0;  // as the table with the corrections before this round says it
};

/// One answer by one mode.
struct Answer {
    std::vector<int32_t> ids;
    std::vector<TimedRound> rounds;

    double seconds() const;
    /// Sum of the rounds' expected tokens: what the same rounds emit on average, whatever the
    /// luck of this answer's draws.
    double expected() const;
};

/// What an engine has learnt from rounds.
struct Learnt {
    CostTable cost;
    RoundLessons lessons;
};

/// An engine with an oracle drafter.
class PolicySubject {
  public:
    /// Measures or reads the cost table.
    explicit PolicySubject(const Config& config);

    /// `learnt`: from earlier answers; from this one too afterwards.
    Answer answer(Request request, const Speculation& speculation, Learnt& learnt);

    const Config& config() const { return engine_.config(); }
    int32_t vocabulary() const { return engine_.model_config().vocabulary; }
    /// As measured, without corrections.
    const CostTable& table() const { return table_; }

  private:
    Engine engine_;
    CostTable table_;
};

}  // namespace kd
