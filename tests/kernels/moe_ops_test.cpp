// The ops of mixture of experts: moe_route, moe_experts. What transformers' routers choose on whole
// models: tests/models/deepseek_test.cpp.
#include <algorithm>
#include <numeric>

#include "kernel_test.h"
#include "kernels/moe_experts/moe_experts_cases.h"
#include "kernels/moe_route/moe_route_cases.h"

namespace kd {
namespace {

struct Routing {
    std::vector<int32_t> ids;
    std::vector<float> weights;
};

Routing route(MoeRouteParams params, Stream& stream) {
    Routing routing;
    routing.ids.assign(static_cast<size_t>(params.rows * params.used), -1);
    routing.weights = nan_filled(params.rows * params.used);
    params.ids = routing.ids.data();
    params.weights = routing.weights.data();
    moe_route(params, stream);
    return routing;
}

/// One row of logits in `groups`, sigmoid scores with `bias`.
Routing route_row(const std::vector<float>& logits, const std::vector<float>& bias, int32_t used,
                  int32_t groups, int32_t groups_used) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    return route({.rows = 1,
                  .experts = static_cast<int32_t>(logits.size()),
                  .used = used,
                  .groups = groups,
                  .groups_used = groups_used,
                  .logits = logits.data(),
                  .bias = bias.empty() ? nullptr : bias.data()},
                 stream);
}

TEST(MoeRoute, ChoosesDistinctExpertsOfTheBestGroups) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::reference};
    for (const MoeRouteCase& test : moe_route_cases()) {
        SCOPED_TRACE(test.name);
        const MoeRouteInputs in = make_moe_route_inputs(test);
        const Routing routing = route(in.params, stream);
        for (int64_t row = 0; row < test.rows; ++row) {
            const auto begin = routing.ids.begin() + row * test.used;
            const std::vector<int32_t> ids(begin, begin + test.used);
            const std::vector<float> weights(routing.weights.begin() + row * test.used,
                                             routing.weights.begin() + (row + 1) * test.used);
            std::vector<int32_t> sorted = ids;
            std::sort(sorted.begin(), sorted.end());
            EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
            EXPECT_GE(sorted.front(), 0);
            EXPECT_LT(sorted.back(), test.experts);
            std::vector<int32_t> groups;
            for (const int32_t id : sorted) groups.push_back(id / (test.experts / test.groups));
            const auto distinct = std::unique(groups.begin(), groups.end()) - groups.begin();
            EXPECT_LE(distinct, test.groups_used);
            if (test.normalise) {
                EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), test.scale,
                            1e-6 * test.scale);
            }
        }
    }
}

TEST(MoeRoute, RowsAreTheSameInEveryBatchOnEveryThread) {
    ThreadPool one(1), three(3);
    for (const MoeRouteCase& test : moe_route_cases()) {
        SCOPED_TRACE(test.name);
        const MoeRouteInputs in = make_moe_route_inputs(test);
        Stream reference{&one, Kernels::reference};
        Stream fast{&three, Kernels::fast};
        const Routing whole = route(in.params, reference);
        const Routing spread = route(in.params, fast);
        EXPECT_EQ(spread.ids, whole.ids);
        EXPECT_TRUE(same_bits(spread.weights, whole.weights));
        MoeRouteParams last = in.params;
        last.rows = 1;
        last.logits += (test.rows - 1) * test.experts;
        const Routing alone = route(last, fast);
        EXPECT_TRUE(std::equal(alone.ids.begin(), alone.ids.end(), whole.ids.end() - test.used));
        EXPECT_TRUE(std::equal(alone.weights.begin(), alone.weights.end(),
                               whole.weights.end() - test.used));
    }
}

TEST(MoeRoute, OfEqualScoresTheLowestIdWins) {
    EXPECT_EQ(route_row({1, 1, 1, 1, 1, 1}, {}, 3, 1, 1).ids, (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(route_row({0, 2, 1, 2, 2, 1}, {}, 4, 1, 1).ids, (std::vector<int32_t>{1, 3, 4, 2}));
    // Groups tie, too: {0, 1} and {4, 5} have the same sum, {2, 3} a larger one.
    EXPECT_EQ(route_row({1, 0, 3, 0, 1, 0}, {}, 3, 3, 2).ids, (std::vector<int32_t>{2, 0, 1}));
}

TEST(MoeRoute, BiasChoosesAndScoresWeigh) {
    const Routing routing = route_row({0, 2, 4}, {10, 0, -10}, 2, 1, 1);
    EXPECT_EQ(routing.ids, (std::vector<int32_t>{0, 1}));
    EXPECT_FLOAT_EQ(routing.weights[0], 0.5f);
    EXPECT_FLOAT_EQ(routing.weights[1], 1 / (1 + std::exp(-2.0f)));
}

TEST(MoeRoute, ExcludedGroupsStayOutWhateverTheirSign) {
    // All biased scores are negative: an excluded 0 would win.
    EXPECT_EQ(route_row({1, 1, 0, 0, 2, 2}, std::vector<float>(6, -5), 2, 3, 1).ids,
              (std::vector<int32_t>{4, 5}));
}

TEST(MoeRoute, AGroupIsWorthItsTwoBest) {
    // One outstanding expert against two good ones: 0.98 + 0.02 < 2 * 0.73.
    EXPECT_EQ(route_row({4, -4, -4, 1, 1, -4}, {}, 1, 2, 1).ids, (std::vector<int32_t>{3}));
    EXPECT_EQ(route_row({4, 2, -4, 1, 1, -4}, {}, 1, 2, 1).ids, (std::vector<int32_t>{0}));
}

TEST(MoeRoute, NotANumberChoosesLast) {
    EXPECT_EQ(route_row({kNaN, -3, kNaN, 1}, {}, 3, 1, 1).ids, (std::vector<int32_t>{3, 1, 0}));
    const Routing all = route_row(std::vector<float>(4, kNaN), {}, 2, 2, 1);
    EXPECT_EQ(all.ids, (std::vector<int32_t>{0, 1}));
}

TEST(MoeRouteDeathTest, GroupsThatHoldTooFew) {
    EXPECT_DEATH(route_row({1, 2, 3, 4}, {}, 3, 2, 1), "3 of 4 experts in 1 of 2 groups");
}

std::vector<float> run(MoeExpertsParams params, Stream& stream) {
    std::vector<float> y = nan_filled(params.rows * params.hidden);
    std::vector<float> activated = nan_filled(params.rows * params.used * params.intermediate);
    params.y = y.data();
    params.activated = activated.data();
    moe_experts(params, stream);
    return y;
}

std::vector<double> product(const WeightView& w, const std::vector<double>& x) {
    std::vector<float> row(static_cast<size_t>(w.columns));
    std::vector<double> y;
    for (int64_t r = 0; r < w.rows; ++r) {
        dequantise_row(w, r, row.data());
        y.push_back(std::inner_product(x.begin(), x.end(), row.begin(), 0.0));
    }
    return y;
}

/// One row of a case, matrix by matrix.
std::vector<double> expected_row(const MoeExpertsInputs& in, int64_t row) {
    const MoeExpertsParams& p = in.params;
    const std::vector<double> x(p.x + row * p.hidden, p.x + (row + 1) * p.hidden);
    std::vector<double> y(static_cast<size_t>(p.hidden), 0.0);
    if (p.residual != nullptr)
        y.assign(p.residual + row * p.hidden, p.residual + (row + 1) * p.hidden);
    for (int64_t k = row * p.used; k < (row + 1) * p.used; ++k) {
        const auto e = static_cast<size_t>(p.ids[k]);
        std::vector<double> gate = product(in.gate[e], x);
        const std::vector<double> up = product(in.up[e], x);
        for (size_t i = 0; i < gate.size(); ++i)
            gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        const std::vector<double> out = product(in.down[e], gate);
        for (size_t i = 0; i < y.size(); ++i) y[i] += double{p.weights[k]} * out[i];
    }
    return y;
}

TEST(MoeExperts, IsTheFormula) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    for (const MoeExpertsCase& test : moe_experts_cases()) {
        SCOPED_TRACE(test.name);
        const MoeExpertsInputs in = make_moe_experts_inputs(test);
        const std::vector<float> y = run(in.params, stream);
        for (int64_t row = 0; row < test.rows; ++row) {
            const std::vector<double> exact = expected_row(in, row);
            double largest = 0;
            for (const double value : exact) largest = std::max(largest, std::fabs(value));
            // Rounded to float twice: between the matrices and at the end.
            for (size_t i = 0; i < exact.size(); ++i) {
                ASSERT_NEAR(y[static_cast<size_t>(row * test.hidden) + i], exact[i], 4e-7 * largest)
                    << "row " << row << ", column " << i;
            }
        }
    }
}

TEST(MoeExperts, RowsAreTheSameInEveryBatchOnEveryThread) {
    ThreadPool one(1), three(3);
    for (const MoeExpertsCase& test : moe_experts_cases()) {
        SCOPED_TRACE(test.name);
        const MoeExpertsInputs in = make_moe_experts_inputs(test);
        Stream reference{&one, Kernels::reference};
        Stream fast{&three, Kernels::fast};
        const std::vector<float> whole = run(in.params, reference);
        EXPECT_TRUE(same_bits(run(in.params, fast), whole));
        MoeExpertsParams last = in.params;
        last.rows = 1;
        last.x += (test.rows - 1) * test.hidden;
        last.ids += (test.rows - 1) * test.used;
        last.weights += (test.rows - 1) * test.used;
        if (last.residual != nullptr) last.residual += (test.rows - 1) * test.hidden;
        EXPECT_TRUE(
            same_bits(run(last, fast), std::vector<float>(whole.end() - test.hidden, whole.end())));
    }
}

TEST(MoeExpertsDeathTest, ExpertThatIsNotThere) {
    MoeExpertsInputs in = make_moe_experts_inputs(moe_experts_cases()[1]);
    in.ids[3] = 8;
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    EXPECT_DEATH(run(in.params, stream), "expert 8 of 8");
}

}  // namespace
}  // namespace kd
