#include "policy/measure.h"

#include <chrono>
#include <cmath>

#include "base/check.h"

namespace kd {

double Answer::seconds() const {
    double sum = 0;
    for (const TimedRound& round : rounds) sum += round.seconds;
    return sum;
}

double Answer::expected() const {
    double sum = 0;
    for (const TimedRound& round : rounds) sum += round.expected;
    return sum;
}

PolicySubject::PolicySubject(const Config& config) : engine_(config), table_(engine_.cost()) {}

Answer PolicySubject::answer(Request request, const Speculation& speculation, Learnt& learnt) {
    request.speculation = speculation;
    engine_.set_cost(learnt.cost);
    engine_.last_batch().lessons = learnt.lessons;
    const RequestId id = engine_.submit(std::move(request));
    Answer answer;
    for (;;) {
        const CostTable before = engine_.cost();
        const auto begin = std::chrono::steady_clock::now();
        const RoundStats* stats = engine_.step();
        const auto end = std::chrono::steady_clock::now();
        if (stats == nullptr) break;
        if (stats->prefill_rows > 0) continue;
        Batch& batch = engine_.last_batch();
        const TreeView tree = batch.trees[0].view();
        const int32_t context = batch.entries[0].context;
        TimedRound round = {.rows = *tree.count,
                            .seconds = std::chrono::duration<double>(end - begin).count(),
                            .verify_s = stats->verify_s,
                            .table_s = table_.predict(*tree.count, context),
                            .predicted_s = before.predict(*tree.count, context)};
        for (int32_t node = 0; node < *tree.count; ++node) {
            round.expected += std::exp(double{tree.log_score[node]});
        }
        answer.rounds.push_back(round);
    }
    learnt = {.cost = engine_.cost(), .lessons = engine_.last_batch().lessons};
    answer.ids = engine_.poll(id).ids;
    KD_CHECK(!answer.rounds.empty(), "an answer without rounds");
    return answer;
}

}  // namespace kd
