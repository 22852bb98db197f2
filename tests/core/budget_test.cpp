#include "core/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/storage.h"

namespace kd {
namespace {

constexpr uint64_t kSeed = 5;

CostTable table(std::vector<int32_t> rows, std::vector<double> seconds) {
    const size_t points = rows.size();
    return {.rows = std::move(rows),
            .contexts = {0},
            .seconds = std::move(seconds),
            .correction = std::vector<double>(points, 1.0)};
}

// Sessions with trees of which only the scores matter.
class Sessions {
  public:
    // scores: log_score of the nodes below the root, non-increasing.
    void add(const std::vector<float>& scores, int32_t context = 0) {
        const int32_t nodes = static_cast<int32_t>(scores.size()) + 1;
        TreeStorage& tree = trees_.emplace_back(nodes);
        *tree.view().count = nodes;
        std::ranges::copy(scores, tree.view().log_score + 1);
        budget_.push_back({.tree = tree.view(), .context = context});
    }
    std::span<const BudgetTree> budget() const { return budget_; }
    std::vector<int32_t> counts() const {
        std::vector<int32_t> counts;
        for (const BudgetTree& tree : budget_) counts.push_back(*tree.tree.count);
        return counts;
    }
    double tokens(const std::vector<int32_t>& counts) const {
        double sum = 0.0;
        for (size_t s = 0; s < budget_.size(); ++s) {
            for (int32_t n = 0; n < counts[s]; ++n) {
                sum += std::exp(double{budget_[s].tree.log_score[n]});
            }
        }
        return sum;
    }

  private:
    std::deque<TreeStorage> trees_;
    std::vector<BudgetTree> budget_;
};

using Counts = std::vector<int32_t>;

TEST(CostTable, InterpolatesInRowsAndContexts) {
    const CostTable cost = {.rows = {1, 4, 8},
                            .contexts = {100, 300},
                            .seconds = {1.0, 4.0, 6.0, 2.0, 8.0, 16.0},
                            .correction = {1.0, 1.0, 1.0}};
    EXPECT_DOUBLE_EQ(cost.predict(1, 100), 1.0);
    EXPECT_DOUBLE_EQ(cost.predict(8, 300), 16.0);
    EXPECT_DOUBLE_EQ(cost.predict(2, 100), 2.0);
    EXPECT_DOUBLE_EQ(cost.predict(6, 200), (5.0 + 12.0) / 2);
    EXPECT_DOUBLE_EQ(cost.predict(10, 100), 7.0);                   // beyond the last row count
    EXPECT_DOUBLE_EQ(cost.predict(1, 500), 3.0);                    // beyond the last context
    EXPECT_DOUBLE_EQ(cost.predict(4, 0), 4.0);                      // below the first
    EXPECT_DOUBLE_EQ(cost.predict(12, 500), 8.0 + 2 * (24 - 8.0));  // beyond both
    EXPECT_DEATH(cost.predict(0, 1), "0 rows");
    EXPECT_DEATH(CostTable().predict(1, 1), "cost table of 0 rows");
}

TEST(CostTable, SmallTables) {
    EXPECT_DOUBLE_EQ(table({1}, {3.0}).predict(50, 7), 3.0);
    // A pair that falls by noise does not lead below zero.
    EXPECT_DOUBLE_EQ(table({1, 2}, {3.0, 1.0}).predict(50, 7), 1.0);
    CostTable corrected = table({1, 3}, {1.0, 3.0});
    corrected.correction = {1.0, 2.0};
    EXPECT_DOUBLE_EQ(corrected.predict(2, 0), 2.0 * 1.5);
    EXPECT_DOUBLE_EQ(corrected.predict(4, 0), 4.0 * 2.0);
}

TEST(CostTable, ObserveConvergesToWhatIsMeasured) {
    CostTable cost = table({1, 8, 16}, {1.0, 2.0, 3.0});
    // The machine is 1.5 times slower at 8 rows and more, as predicted at 1; 12 lies between.
    const auto truth = [](int32_t rows) {
        return rows == 1 ? 1.0 : 1.5 * (1.0 + (rows - 1) / 7.5);
    };
    for (int i = 0; i < 400; ++i) {
        for (const int32_t rows : {1, 8, 12, 16}) cost.observe(rows, 0, truth(rows));
    }
    // Learning a point apart outweighs forgetting by 0.005 / 4 observations to 0.0002: up to a
    // sixth of log(1.5) stays.
    EXPECT_NEAR(cost.predict(1, 0), truth(1), 0.07);
    EXPECT_NEAR(cost.predict(8, 0), truth(8), 0.07 * truth(8));
    EXPECT_NEAR(cost.predict(16, 0), truth(16), 0.07 * truth(16));
    // A point in between alone.
    cost = table({1, 8, 16}, {1.0, 2.0, 3.0});
    for (int i = 0; i < 400; ++i) cost.observe(12, 0, 3.5);
    EXPECT_NEAR(cost.predict(12, 0), 3.5, 0.01);
}

TEST(CostTable, ASlowerMachineIsSlowerForEveryRowCount) {
    // Only one row is ever verified while everything takes 1.6 times as long.
    CostTable cost = table({1, 4, 8}, {1.0, 1.2, 2.0});
    for (int i = 0; i < 400; ++i) cost.observe(1, 0, 1.6);
    EXPECT_NEAR(cost.predict(1, 0), 1.6, 0.01);
    EXPECT_NEAR(cost.predict(4, 0), 1.2 * 1.6, 0.03 * 1.2 * 1.6);
    EXPECT_NEAR(cost.predict(8, 0), 2.0 * 1.6, 0.03 * 2.0 * 1.6);
}

TEST(CostTable, ASlowSpellDoesNotTilt) {
    // The machine is slow while rounds are of one row and fast again when they are of three.
    CostTable cost = table({1, 3, 8}, {1.0, 1.1, 2.0});
    for (int i = 0; i < 100; ++i) cost.observe(1, 0, 1.3);
    for (int i = 0; i < 100; ++i) cost.observe(3, 0, 1.1);
    EXPECT_NEAR(cost.predict(1, 0) / cost.predict(3, 0), 1.0 / 1.1, 0.03);
    // One row, though never seen again, is not held to be dear for good.
    for (int i = 0; i < 20000; ++i) cost.observe(3, 0, 1.1);
    EXPECT_NEAR(cost.predict(1, 0) / cost.predict(3, 0), 1.0 / 1.1, 0.002);
}

TEST(CostTable, ObserveResistsOutliers) {
    CostTable cost = table({1, 8}, {1.0, 2.0});
    for (const double outlier : {1000.0, 1e-6, 4.5}) {
        CostTable disturbed = cost;
        disturbed.observe(8, 0, outlier);
        EXPECT_NEAR(disturbed.predict(8, 0), 2.0, 0.021) << outlier;
        EXPECT_NE(disturbed.predict(8, 0), 2.0);
    }
    // One wild time in five does not keep it from the truth.
    for (int i = 0; i < 500; ++i) cost.observe(8, 0, i % 5 == 0 ? 100.0 : 2.4);
    EXPECT_NEAR(cost.predict(8, 0), 2.4, 0.15);
    // A lasting change beyond the factor is followed, slowly.
    for (int i = 0; i < 1000; ++i) cost.observe(8, 0, 12.0);
    EXPECT_NEAR(cost.predict(8, 0), 12.0, 0.1);
    for (const double nothing : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity()}) {
        const double before = cost.predict(8, 0);
        cost.observe(8, 0, nothing);
        EXPECT_EQ(cost.predict(8, 0), before);
    }
}

TEST(CostTable, ValidateRefusesWhatCannotPredict) {
    EXPECT_NO_THROW(table({1, 4}, {1.0, 2.0}).validate());
    EXPECT_THROW(CostTable().validate(), Error);
    EXPECT_THROW(table({2, 4}, {1.0, 2.0}).validate(), Error);
    EXPECT_THROW(table({1, 4, 4}, {1.0, 2.0, 3.0}).validate(), Error);
    EXPECT_THROW(table({1, 4}, {1.0}).validate(), Error);
    EXPECT_THROW(table({1, 4}, {1.0, -2.0}).validate(), Error);
    EXPECT_THROW(table({1, 4}, {1.0, std::nan("")}).validate(), Error);
    EXPECT_THROW(table({1, 4}, {1.0, 1e7}).validate(), Error);
    EXPECT_THROW(table({1, 4}, {1e-10, 1.0}).validate(), Error);
    CostTable cost = table({1, 4}, {1.0, 2.0});
    for (const double wrong : {0.0, 1e-4, 1e4, std::nan("")}) {
        cost.correction[1] = wrong;
        EXPECT_THROW(cost.validate(), Error) << wrong;
    }
    cost = table({1, 4}, {1.0, 2.0});
    cost.contexts = {3, 2};
    EXPECT_THROW(cost.validate(), Error);
    cost.contexts = {};
    EXPECT_THROW(cost.validate(), Error);
}

TEST(ChooseBudget, EqualsBruteForceOverAllCounts) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    std::mt19937_64 random(kSeed);
    std::uniform_real_distribution<double> unit(0.0, 1.0);
    for (int i = 0; i < 3000; ++i) {
        SCOPED_TRACE(testing::Message() << "case " << i << " of seed " << kSeed);
        Sessions sessions;
        const size_t count = 1 + random() % 3;
        for (size_t s = 0; s < count; ++s) {
            std::vector<float> scores(random() % 6);
            for (float& score : scores) score = static_cast<float>(std::log(unit(random)));
            std::ranges::sort(scores, std::greater<>());
            sessions.add(scores, 500);
        }
        // Any cost whatever: steps up and down.
        std::vector<int32_t> rows(40);
        std::vector<double> seconds(40);
        for (size_t r = 0; r < rows.size(); ++r) {
            rows[r] = static_cast<int32_t>(r) + 1;
            seconds[r] = (r == 0 ? 1.0 : seconds[r - 1]) + 0.6 * unit(random) - 0.1;
        }
        const CostTable cost = table(rows, seconds);
        const int32_t fixed = static_cast<int32_t>(random() % 4);
        const double overhead = random() % 2 == 0 ? 0.0 : 0.5;
        const int32_t most = static_cast<int32_t>(random() % 24);

        const auto roots = static_cast<int32_t>(count);
        const double plain = roots / (overhead + cost.predict(fixed + roots, 0));
        double best = 0.0;
        int32_t best_nodes = 0;
        const Counts full = sessions.counts();
        Counts counts(count, 1);
        const std::function<void(size_t)> search = [&](size_t s) {
            if (s < count) {
                for (counts[s] = 1; counts[s] <= full[s]; ++counts[s]) search(s + 1);
                return;
            }
            int32_t nodes = 0;
            for (const int32_t kept : counts) nodes += kept;
            if (nodes > roots && nodes + fixed > most) return;
            const double rate =
                sessions.tokens(counts) / (overhead + cost.predict(fixed + nodes, 0));
            if (rate > best * (1 + 1e-12) || (rate > best * (1 - 1e-12) && nodes < best_nodes)) {
                best = rate;
                best_nodes = nodes;
            }
        };
        search(0);
        if (best < kLeastGain * plain) {
            best = plain;
            best_nodes = roots;
        }

        const double predicted = choose_budget(sessions.budget(), cost, fixed, overhead, most);
        int32_t nodes = 0;
        for (const int32_t kept : sessions.counts()) {
            ASSERT_GE(kept, 1);
            nodes += kept;
        }
        ASSERT_EQ(nodes, best_nodes);
        ASSERT_DOUBLE_EQ(predicted, cost.predict(fixed + nodes, 0));
        ASSERT_NEAR(sessions.tokens(sessions.counts()) / (overhead + predicted), best,
                    1e-12 * best);
    }
}

TEST(ChooseBudget, PlainDecodingWhenRowsAreDear) {
    Sessions sessions;
    sessions.add({-0.1f, -0.2f, -0.3f});
    EXPECT_EQ(choose_budget(sessions.budget(), table({1, 2}, {1.0, 2.0}), 0, 0.0, 100), 1.0);
    EXPECT_EQ(sessions.counts(), (Counts{1}));
}

TEST(ChooseBudget, PlainDecodingWhereTheGainIsWithinTheErrors) {
    const CostTable cost = table({1, 2}, {1.0, 1.1});
    Sessions little;
    little.add({std::log(0.115f)});  // 1.115 tokens in 1.1
    EXPECT_EQ(choose_budget(little.budget(), cost, 0, 0.0, 100), 1.0);
    EXPECT_EQ(little.counts(), (Counts{1}));
    Sessions enough;
    enough.add({std::log(0.13f)});
    EXPECT_EQ(choose_budget(enough.budget(), cost, 0, 0.0, 100), 1.1);
    EXPECT_EQ(enough.counts(), (Counts{2}));
}

TEST(ChooseBudget, ABadDrafterCostsNothingOnAMachineThatChangesItsSpeed) {
    // Nodes of 0.10 below the root and of 0.02 and less elsewhere: a tree loses at any size. The
    // machine is up to 50 % slower for spells of a hundred rounds, and a round is off by 5 %.
    const std::vector<float> scores = {std::log(0.10f), std::log(0.02f), std::log(0.01f)};
    const CostTable truth = table({1, 2, 3, 4}, {1.0, 1.14, 1.21, 1.28});
    for (uint64_t seed = 0; seed < 20; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        std::mt19937_64 random(seed);
        std::uniform_real_distribution<double> unit(0.0, 1.0);
        CostTable cost = truth;
        double time = 0.0, tokens = 0.0, speed = 1.0;
        for (int round = 0; round < 5000; ++round) {
            if (round % 100 == 0) speed = 1.0 + 0.5 * unit(random);
            Sessions sessions;
            sessions.add(scores);
            choose_budget(sessions.budget(), cost, 0, 0.0, 100);
            const int32_t nodes = sessions.counts()[0];
            const double seconds = truth.predict(nodes, 0);
            cost.observe(nodes, 0, seconds * speed * (0.95 + 0.1 * unit(random)));
            time += seconds;
            tokens += sessions.tokens(sessions.counts());
        }
        EXPECT_GT(tokens / time, 0.995);
    }
}

TEST(ChooseBudget, WholeTreesWhenRowsAreFree) {
    for (const CostTable& cost : {table({1}, {1.0}), CostTable()}) {
        Sessions sessions;
        sessions.add({-0.5f, -3.0f, -9.0f});
        sessions.add({-7.0f, -8.0f});
        choose_budget(sessions.budget(), cost, 3, 0.0, 100);
        EXPECT_EQ(sessions.counts(), (Counts{4, 3}));
    }
}

TEST(ChooseBudget, TheCapTakesTheHeaviestAndLeavesTheRoots) {
    const CostTable free = table({1}, {1.0});
    Sessions sessions;
    sessions.add({-0.5f, -3.0f, -9.0f});
    sessions.add({-0.4f, -2.0f});
    choose_budget(sessions.budget(), free, 2, 0.0, 7);
    EXPECT_EQ(sessions.counts(), (Counts{2, 3}));
    choose_budget(sessions.budget(), free, 2, 0.0, 5);
    EXPECT_EQ(sessions.counts(), (Counts{1, 2}));
    choose_budget(sessions.budget(), free, 2, 0.0, 1);
    EXPECT_EQ(sessions.counts(), (Counts{1, 1}));
}

TEST(ChooseBudget, CrossesTheStepsOfAStaircase) {
    // Rows come in tiles of 8: the next tile costs 10 %, its first rows are not worth it alone.
    const CostTable cost = table({1, 8, 9, 16, 17, 24}, {1.0, 1.0, 1.1, 1.1, 1.2, 1.2});
    const std::vector<float> even(23, std::log(0.05f));  // 0.05 tokens a node
    Sessions sessions;
    sessions.add(even);
    // 1.35 / 1.0 = 1.35 at 8 rows, 1.40 / 1.1 = 1.27 at 9, 1.75 / 1.1 = 1.59 at 16, 1.79 at 24.
    EXPECT_EQ(choose_budget(sessions.budget(), cost, 0, 0.0, 100), 1.2);
    EXPECT_EQ(sessions.counts(), (Counts{24}));

    Sessions capped;
    capped.add(even);
    choose_budget(capped.budget(), cost, 0, 0.0, 12);  // 1.55 / 1.1 = 1.41 still pays
    EXPECT_EQ(capped.counts(), (Counts{12}));
    Sessions tight;
    tight.add(even);
    choose_budget(tight.budget(), cost, 0, 0.0, 10);  // 1.45 / 1.1 = 1.32 does not
    EXPECT_EQ(tight.counts(), (Counts{8}));
}

TEST(ChooseBudget, EqualRatesTakeFewerNodes) {
    // One more node of weight 1 doubles tokens and time.
    Sessions sessions;
    sessions.add({0.0f});
    choose_budget(sessions.budget(), table({1, 2}, {1.0, 2.0}), 0, 0.0, 100);
    EXPECT_EQ(sessions.counts(), (Counts{1}));
    // Nodes without weight are not worth a free row.
    Sessions light;
    light.add({-1.0f, -200.0f, -std::numeric_limits<float>::infinity()});
    choose_budget(light.budget(), table({1}, {1.0}), 0, 0.0, 100);
    EXPECT_EQ(light.counts(), (Counts{2}));
}

TEST(ChooseBudget, ContextIsAveragedOverTheKeptRows) {
    const CostTable cost = {.rows = {1, 8},
                            .contexts = {0, 1000},
                            .seconds = {1.0, 1.0, 11.0, 11.0},
                            .correction = {1.0, 1.0}};
    Sessions sessions;
    sessions.add({-0.1f, -0.1f}, 300);
    sessions.add({}, 600);
    const double predicted = choose_budget(sessions.budget(), cost, 0, 0.0, 100);
    EXPECT_EQ(sessions.counts(), (Counts{3, 1}));
    EXPECT_DOUBLE_EQ(predicted, 1.0 + 10.0 * ((3 * 300.0 + 600.0) / 4) / 1000.0);
}

TEST(ChooseBudget, NothingToVerify) {
    EXPECT_EQ(choose_budget({}, table({1}, {1.0}), 0, 0.0, 10), 0.0);
    EXPECT_EQ(choose_budget({}, table({1, 2}, {1.0, 3.0}), 2, 0.0, 10), 3.0);
}

}  // namespace
}  // namespace kd
