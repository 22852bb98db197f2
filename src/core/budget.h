// The budget: how many nodes of each session's tree are verified, from a measured cost table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/views.h"

namespace kd {

/// Predicted time of one target forward by rows and by context tokens a row attends to.
struct CostTable {
    std::vector<int32_t> rows;       // ascending, the first is 1
    std::vector<int32_t> contexts;   // ascending
    std::vector<double> seconds;     // [contexts, rows]
    std::vector<double> correction;  // [rows] online factor on the prediction, 1 at first

    bool empty() const { return rows.empty(); }
    /// Bilinear between the measured points; beyond the last row or context count, linear with the
    /// last two. rows >= 1, mean_context >= 0: context tokens averaged over the rows.
    double predict(int32_t rows, double mean_context) const;
    /// Refines the correction of the points around `rows` by one measured time. Outliers (a factor
    /// 2 off the prediction) move it no more than a small step.
    void observe(int32_t rows, double mean_context, double seconds);
};

/// One session's candidate for the budget.
struct BudgetTree {
    TreeView tree;        // built to its maximum; the first nodes are kept
    int32_t context = 0;  // its committed tokens
};

/// Truncates the trees (shared budget) to the node counts that maximise expected tokens per time,
/// sum over sessions of sum of node weights / predicted time(fixed_rows + kept nodes); every root
/// is kept. `fixed_rows`: rows of prefill chunks in the same forward; `overhead_seconds`: time of
/// the round outside the forward. Returns the predicted time of the forward in seconds.
double choose_budget(std::span<const BudgetTree> trees, const CostTable& cost, int32_t fixed_rows,
                     double overhead_seconds, int32_t max_total_rows);

}  // namespace kd
