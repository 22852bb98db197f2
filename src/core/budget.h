// The budget: how many nodes of each session's tree are verified, from a measured cost table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/views.h"

namespace kd {

/// Most sessions that share one budget.
inline constexpr int32_t kMaxBudgetSessions = 1024;

/// Predicted time of one target forward by rows and by context tokens a row attends to.
struct CostTable {
    std::vector<int32_t> rows;       // ascending, the first is 1
    std::vector<int32_t> contexts;   // ascending
    std::vector<double> seconds;     // [contexts, rows]
    std::vector<double> correction;  // [rows] online factor on the prediction, 1 at first

    bool empty() const { return rows.empty(); }
    /// Bilinear between the measured points; beyond the last row or context count, linear with the
    /// last two (flat where those fall); below the first context, as at the first. Times the
    /// correction. Not for an empty table. rows >= 1, mean_context >= 0: context tokens averaged
    /// over the rows.
    double predict(int32_t rows, double mean_context) const;
    /// Refines the corrections by one measured time: nearly all of a step moves all points alike (a
    /// slower machine is slower for every row count), the rest those around `rows`, and that is
    /// forgotten within some thousand observations. Outliers (a factor 2 off the prediction) make a
    /// small step. A time that is not positive and finite is ignored.
    void observe(int32_t rows, double mean_context, double seconds);
    /// Throws kd::Error unless the points ascend from 1 row, all times lie in 1e-9..1e6 s and all
    /// corrections in 1e-3..1e3 and their counts fit. For tables from outside; an empty table does
    /// not pass.
    void validate() const;
};

/// How much more than plain decoding's tokens per time a budget has to promise: predictions are off
/// by some percent, and a tree that wins less than that may as well lose.
inline constexpr double kLeastGain = 1.02;

/// One session's candidate for the budget.
struct BudgetTree {
    TreeView tree;        // built to its maximum; the first nodes are kept
    int32_t context = 0;  // its committed tokens
};

/// Truncates the trees (shared budget) to the node counts that maximise expected tokens per time,
/// sum over sessions of sum of node weights / predicted time(fixed_rows + kept nodes); every root
/// is kept, and beyond the roots the total, fixed rows included, stays within max_total_rows. Equal
/// rates: fewer nodes; less than kLeastGain times the rate of the roots alone: none. `fixed_rows`:
/// rows of prefill chunks in the same forward; `overhead_seconds`: time of the round outside the
/// forward. The context of a prediction is the sessions' average weighted by kept nodes; with equal
/// contexts the result is optimal over all count vectors, else over all totals of the merged
/// weights. An empty table: every row is free. At most kMaxBudgetSessions trees. Returns the
/// predicted time of the forward in seconds (empty table: 0).
double choose_budget(std::span<const BudgetTree> trees, const CostTable& cost, int32_t fixed_rows,
                     double overhead_seconds, int32_t max_total_rows);

}  // namespace kd
