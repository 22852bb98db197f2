#include "policy/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "support/report.h"

namespace kd {

namespace {

/// Means a round over all answers, except the medians of times, which a disturbance moves least.
struct ModeFigures {
    double rows = 0;
    double emitted = 0;   // tokens a round
    double expected = 0;  // tokens a round
    double ms = 0;        // median
    double other_ms = 0;  // median of what is not the forward
    double tokens_per_s = 0;
};

ModeFigures figures_of(const ModeAnswers& mode) {
    ModeFigures out;
    std::vector<double> ms, other_ms;
    double seconds = 0, tokens = 0;
    for (const Answer& answer : mode.answers) {
        tokens += static_cast<double>(answer.ids.size());
        seconds += answer.seconds();
        out.expected += answer.expected();
        for (const TimedRound& round : answer.rounds) {
            out.rows += round.rows;
            ms.push_back(round.seconds * 1e3);
            other_ms.push_back((round.seconds - round.verify_s) * 1e3);
        }
    }
    const auto rounds = static_cast<double>(ms.size());
    out.rows /= rounds;
    out.expected /= rounds;
    out.emitted = tokens / rounds;
    out.tokens_per_s = tokens / seconds;
    out.ms = median(std::move(ms));
    out.other_ms = median(std::move(other_ms));
    return out;
}

std::string title_of(const ModeAnswers& mode) {
    return mode.budget > 1 ? fmt::format("tree {}", mode.budget) : mode.name;
}

nlohmann::ordered_json mode_row(const ModeAnswers& mode, const ModeAnswers& plain) {
    const ModeFigures f = figures_of(mode);
    const Interval ratio = median_interval(ratios(rates(mode), rates(plain)));
    fmt::print("{:<10}{:>7.2f}{:>8.2f}{:>10.2f}{:>9.2f}{:>9.3f}{:>10.1f}  {}\n", title_of(mode),
               f.rows, f.emitted, f.expected, f.ms, f.other_ms, f.tokens_per_s,
               interval_text(ratio, 3));
    return {{"mode", mode.name},
            {"budget", mode.budget},
            {"mean_rows", f.rows},
            {"acceptance_length", f.emitted},
            {"expected_length", f.expected},
            {"ms_per_round", f.ms},
            {"other_ms", f.other_ms},
            {"tokens_per_s", f.tokens_per_s},
            {"ratio_to_plain", interval_json(ratio)}};
}

/// Forward times by row count: the table's, the corrected one's, the measured ones.
struct Prediction {
    std::vector<double> table, corrected, measured;
};

nlohmann::ordered_json prediction_rows(const std::map<int32_t, Prediction>& by_rows) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    fmt::print("\n{:>5}{:>8}{:>13}{:>10}{:>11}{:>10}{:>12}\n", "T", "rounds", "measured ms",
               "table ms", "error", "corrected", "error");
    for (const auto& [count, each] : by_rows) {
        const double measured = median(each.measured) * 1e3;
        const double table = median(each.table) * 1e3;
        const double corrected = median(each.corrected) * 1e3;
        const double table_error = table / measured - 1;
        const double error = corrected / measured - 1;
        fmt::print("{:>5}{:>8}{:>13.2f}{:>10.2f}{:>10.1f}%{:>10.2f}{:>11.1f}%\n", count,
                   each.measured.size(), measured, table, 100 * table_error, corrected,
                   100 * error);
        rows.push_back({{"rows", count},
                        {"rounds", each.measured.size()},
                        {"measured_ms", measured},
                        {"table_ms", table},
                        {"table_error", table_error},
                        {"predicted_ms", corrected},
                        {"error", error}});
    }
    return rows;
}

double mean_error(const nlohmann::ordered_json& rows, const char* key) {
    double sum = 0;
    for (const auto& row : rows) sum += std::abs(row[key].get<double>());
    return sum / static_cast<double>(rows.size());
}

/// Row counts met less often are left out: their median says nothing.
constexpr size_t kLeastRounds = 20;

std::map<int32_t, Prediction> predictions_of(const std::vector<const ModeAnswers*>& modes) {
    std::map<int32_t, Prediction> by_rows;
    for (const ModeAnswers* mode : modes) {
        for (const Answer& answer : mode->answers) {
            for (const TimedRound& round : answer.rounds) {
                Prediction& of = by_rows[round.rows];
                of.table.push_back(round.table_s);
                of.corrected.push_back(round.predicted_s);
                of.measured.push_back(round.verify_s);
            }
        }
    }
    std::erase_if(by_rows,
                  [](const auto& each) { return each.second.measured.size() < kLeastRounds; });
    return by_rows;
}

/// Of an engine's rounds: the table and the means of its errors.
nlohmann::ordered_json prediction(const std::vector<const ModeAnswers*>& modes) {
    nlohmann::ordered_json rows = prediction_rows(predictions_of(modes));
    if (rows.empty()) return nullptr;
    const double table = mean_error(rows, "table_error");
    const double corrected = mean_error(rows, "error");
    fmt::print("mean error over T: table {:.1f} %, corrected {:.1f} %\n", 100 * table,
               100 * corrected);
    return {{"rows", rows}, {"mean_table_error", table}, {"mean_error", corrected}};
}

}  // namespace

std::vector<double> rates(const ModeAnswers& mode) {
    std::vector<double> out;
    for (const Answer& answer : mode.answers) out.push_back(answer.expected() / answer.seconds());
    return out;
}

nlohmann::ordered_json report_policy(const std::vector<ModeAnswers>& fixed,
                                     const ModeAnswers& policy) {
    fmt::print("{:<10}{:>7}{:>8}{:>10}{:>9}{:>9}{:>10}  {}\n", "mode", "rows", "length", "expected",
               "ms", "other", "tokens/s", "ratio to plain");
    nlohmann::ordered_json modes = nlohmann::ordered_json::array();
    std::vector<const ModeAnswers*> all_fixed;
    const ModeAnswers* best = nullptr;
    for (const ModeAnswers& mode : fixed) {
        modes.push_back(mode_row(mode, fixed.front()));
        if (best == nullptr || median(rates(mode)) > median(rates(*best))) best = &mode;
        all_fixed.push_back(&mode);
    }
    modes.push_back(mode_row(policy, fixed.front()));
    const Interval against_best = median_interval(ratios(rates(policy), rates(*best)));
    fmt::print("policy by the best fixed budget ({}): {}\n", title_of(*best),
               interval_text(against_best, 3));
    fmt::print("\nForwards of the fixed budgets: ");
    nlohmann::ordered_json of_fixed = prediction(all_fixed);
    fmt::print("\nForwards of the policy: ");
    nlohmann::ordered_json of_policy = prediction({&policy});
    return {{"modes", modes},
            {"best_fixed_budget", best->budget},
            {"policy_by_best_fixed", interval_json(against_best)},
            {"prediction_fixed", of_fixed},
            {"prediction_policy", of_policy}};
}

}  // namespace kd
