#include "core/budget.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "base/check.h"
#include "base/error.h"
#include "core/tree.h"

namespace kd {

namespace {

// How far one observation moves a correction: this share of the logarithm of measured / predicted,
constexpr double kGain = 0.1;
// and at most a factor exp(+-0.01) when the two are more than a factor kOutlier apart.
constexpr double kOutlier = 2.0;
constexpr double kOutlierStep = 0.01;
// The share of a step that moves all points alike. What disturbs a machine (another program on its
// memory, its clock) slows every row count; if the point in use followed alone, the relation of the
// points would tilt by whatever was chosen while the machine was slow. The rest is enough to learn
// within some hundred rounds what the table has wrong.
constexpr double kCommonShare = 0.95;
// Of what sets a point apart from the others, forgotten with each observation: a point marked as
// dear is not chosen, and so nothing else would ever clear it.
constexpr double kForgotten = 0.0002;
constexpr double kMinSeconds = 1e-9, kMaxSeconds = 1e6;
constexpr double kMinCorrection = 1e-3, kMaxCorrection = 1e3;

// Where a value lies between two points: point[low] + share * (point[high] - point[low]).
struct Bracket {
    size_t low;
    size_t high;
    double share;  // 0..1 between the points, > 1 beyond the last, 0 below the first

    double capped_share() const { return std::min(share, 1.0); }
};

Bracket bracket(const std::vector<int32_t>& points, double value) {
    if (points.size() == 1 || value <= points.front()) return {.low = 0, .high = 0, .share = 0.0};
    const auto above = std::lower_bound(points.begin() + 1, points.end() - 1, value);
    const size_t high = static_cast<size_t>(above - points.begin());
    const double left = points[high - 1];
    return {.low = high - 1, .high = high, .share = (value - left) / (points[high] - left)};
}

// Linear; beyond the last point a falling pair counts as flat: it is noise of the measurement, and
// would end below zero.
double blend(double low, double high, double share) {
    if (share > 1.0) return high + std::max(high - low, 0.0) * (share - 1.0);
    return low + (high - low) * share;
}

// The next node of one session in the merge.
struct Head {
    float log_score;
    int32_t session;
    int32_t node;
};

// Heap order: heaviest first, ties to the earlier session. Within a session nodes keep their order.
bool taken_after(const Head& a, const Head& b) {
    if (a.log_score != b.log_score) return a.log_score < b.log_score;
    return a.session > b.session;
}

// All non-root nodes of all sessions in non-increasing weight.
class Merge {
  public:
    explicit Merge(std::span<const BudgetTree> trees) : trees_(trees) {
        for (size_t s = 0; s < trees.size(); ++s) push(static_cast<int32_t>(s), 1);
    }

    bool empty() const { return count_ == 0; }

    Head take() {
        std::pop_heap(heads_.begin(), heads_.begin() + count_, taken_after);
        const Head head = heads_[static_cast<size_t>(--count_)];
        push(head.session, head.node + 1);
        return head;
    }

  private:
    void push(int32_t session, int32_t node) {
        const TreeView& tree = trees_[static_cast<size_t>(session)].tree;
        if (node >= *tree.count) return;
        heads_[static_cast<size_t>(count_++)] = {tree.log_score[node], session, node};
        std::push_heap(heads_.begin(), heads_.begin() + count_, taken_after);
    }

    std::span<const BudgetTree> trees_;
    std::array<Head, kMaxBudgetSessions> heads_;
    int32_t count_ = 0;
};

}  // namespace

double CostTable::predict(int32_t row_count, double mean_context) const {
    KD_CHECK(!empty() && seconds.size() == rows.size() * contexts.size() &&
                 correction.size() == rows.size(),
             "cost table of {} rows, {} contexts, {} times, {} corrections", rows.size(),
             contexts.size(), seconds.size(), correction.size());
    KD_CHECK(row_count >= 1 && mean_context >= 0.0, "{} rows, context {}", row_count, mean_context);
    const Bracket r = bracket(rows, row_count);
    const Bracket c = bracket(contexts, mean_context);
    const auto at_context = [&](size_t context) {
        const double* line = seconds.data() + context * rows.size();
        return blend(line[r.low], line[r.high], r.share);
    };
    const double measured = blend(at_context(c.low), at_context(c.high), c.share);
    return measured * blend(correction[r.low], correction[r.high], r.capped_share());
}

void CostTable::observe(int32_t row_count, double mean_context, double measured_seconds) {
    // A clock that did not move, or a round that was not timed, teaches nothing.
    if (!(measured_seconds > 0.0 && std::isfinite(measured_seconds))) return;
    const double deviation = std::log(measured_seconds / predict(row_count, mean_context));
    const double step = std::abs(deviation) <= std::log(kOutlier)
                            ? kGain * deviation
                            : std::copysign(kOutlierStep, deviation);
    const double own = step * (1.0 - kCommonShare);
    const Bracket r = bracket(rows, row_count);
    correction[r.low] *= std::exp(own * (1.0 - r.capped_share()));
    correction[r.high] *= std::exp(own * r.capped_share());
    double common = 0.0;  // logarithm of the geometric mean
    for (const double each : correction) common += std::log(each);
    common /= static_cast<double>(correction.size());
    for (double& each : correction) {
        const double forgotten = kForgotten * (common - std::log(each));
        each = std::clamp(each * std::exp(step * kCommonShare + forgotten), kMinCorrection,
                          kMaxCorrection);
    }
}

void CostTable::validate() const {
    const auto ascending = [](const std::vector<int32_t>& points) {
        return std::ranges::adjacent_find(points, std::greater_equal<>()) == points.end();
    };
    if (rows.empty() || rows.front() != 1 || !ascending(rows)) {
        KD_THROW(invalid_argument, "cost table: row counts [{}] do not ascend from 1",
                 fmt::join(rows, ", "));
    }
    if (contexts.empty() || contexts.front() < 0 || !ascending(contexts)) {
        KD_THROW(invalid_argument, "cost table: contexts [{}] do not ascend from 0 or more",
                 fmt::join(contexts, ", "));
    }
    if (seconds.size() != rows.size() * contexts.size() || correction.size() != rows.size()) {
        KD_THROW(invalid_argument, "cost table: {} times and {} corrections for {} x {} points",
                 seconds.size(), correction.size(), contexts.size(), rows.size());
    }
    // Within these bounds no product or quotient of predictions overflows.
    for (const double each : seconds) {
        if (!(each >= kMinSeconds && each <= kMaxSeconds)) {
            KD_THROW(invalid_argument, "cost table: {} s is outside {}..{}", each, kMinSeconds,
                     kMaxSeconds);
        }
    }
    for (const double each : correction) {
        if (!(each >= kMinCorrection && each <= kMaxCorrection)) {
            KD_THROW(invalid_argument, "cost table: correction {} is outside {}..{}", each,
                     kMinCorrection, kMaxCorrection);
        }
    }
}

double choose_budget(std::span<const BudgetTree> trees, const CostTable& cost, int32_t fixed_rows,
                     double overhead_seconds, int32_t max_total_rows) {
    KD_CHECK(trees.size() <= static_cast<size_t>(kMaxBudgetSessions), "{} trees in a budget",
             trees.size());
    KD_CHECK(fixed_rows >= 0 && overhead_seconds >= 0.0, "{} fixed rows, overhead {} s", fixed_rows,
             overhead_seconds);
    const int32_t roots = static_cast<int32_t>(trees.size());
    if (fixed_rows + roots == 0) return 0.0;

    // A round emits one token for each root at least: the root's weight is 1. Contexts are averaged
    // over the trees' rows; the fixed rows have none that is known here.
    double tokens = roots;
    double context_sum = 0.0;
    for (const BudgetTree& tree : trees) context_sum += tree.context;
    const auto predicted = [&](int32_t nodes) {
        if (cost.empty()) return 0.0;
        return cost.predict(fixed_rows + nodes, nodes == 0 ? 0.0 : context_sum / nodes);
    };
    const auto rate = [&](double seconds) {
        return cost.empty() ? tokens : tokens / (overhead_seconds + seconds);
    };
    const double plain_seconds = predicted(roots);
    const double plain_rate = rate(plain_seconds);
    double best_seconds = plain_seconds;
    double best_rate = plain_rate;
    int32_t best_nodes = roots;

    // For every total the heaviest nodes are the best choice, so the merged order holds all
    // candidates. All totals are tried: a measured cost has steps, the rate many local maxima.
    Merge candidates(trees);
    for (int32_t nodes = roots + 1; !candidates.empty() && fixed_rows + nodes <= max_total_rows;
         ++nodes) {
        const Head head = candidates.take();
        tokens += std::exp(double{head.log_score});
        context_sum += trees[static_cast<size_t>(head.session)].context;
        const double seconds = predicted(nodes);
        if (rate(seconds) > best_rate) {
            best_seconds = seconds;
            best_rate = rate(seconds);
            best_nodes = nodes;
        }
    }

    if (best_rate < kLeastGain * plain_rate) {
        best_seconds = plain_seconds;
        best_nodes = roots;
    }

    // The same merge again, up to the chosen total, leaves each session's count.
    std::array<int32_t, kMaxBudgetSessions> kept;
    std::fill_n(kept.begin(), roots, 1);
    Merge chosen(trees);
    for (int32_t nodes = roots; nodes < best_nodes; ++nodes) {
        const Head head = chosen.take();
        kept[static_cast<size_t>(head.session)] = head.node + 1;
    }
    for (size_t s = 0; s < trees.size(); ++s) truncate_tree(trees[s].tree, kept[s]);
    return best_seconds;
}

}  // namespace kd
