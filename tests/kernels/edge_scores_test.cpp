#include "kernels/edge_scores/edge_scores.h"

#include "kernel_test.h"
#include "kernels/cases/random.h"
#include "kernels/edge_scores/edge_scores_cases.h"

namespace kd {
namespace {

struct Inputs {
    std::vector<float> parent, child, logit, log_mass, power;
    EdgeScoresParams params;
    int64_t edges = 0;

    explicit Inputs(const EdgeScoresCase& test) {
        CaseRandom random(test.seed);
        const auto depths = std::ssize(test.parents);
        parent = random.values(depths * test.states * test.rank);
        child = random.values(depths * test.states * test.rank);
        logit = random.values(depths * test.states, 10);
        for (int64_t d = 0; d < depths; ++d) log_mass.push_back(random.value(1) - 1);
        if (test.power > 0) power.assign(test.parents.size(), test.power);
        edges = depths * test.states * test.states;
        params = {.depths = depths,
                  .states = test.states,
                  .rank = test.rank,
                  .parents = test.parents.data(),
                  .children = test.children.data(),
                  .parent = parent.data(),
                  .child = child.data(),
                  .logit = logit.data(),
                  .log_mass = log_mass.data(),
                  .power = power.empty() ? nullptr : power.data()};
    }
    std::vector<float> run(Stream& stream) {
        std::vector<float> edge = nan_filled(edges);
        params.edge = edge.data();
        edge_scores(params, stream);
        return edge;
    }
};

TEST(EdgeScores, AgreeWithTheReference) {
    ThreadPool one(1), two(2);
    Stream single{&one, Kernels::fast}, stream{&two, Kernels::fast};
    Stream reference{&one, Kernels::reference};
    for (const EdgeScoresCase& test : edge_scores_cases()) {
        SCOPED_TRACE(test.name);
        Inputs in(test);
        const std::vector<float> exact = in.run(reference);
        for_each_target([&] {
            const std::vector<float> fast = in.run(stream);
            const double tolerance = edge_scores_tolerance(test);
            EXPECT_TRUE(within(fast, exact, test.states, [&](size_t) { return tolerance; }));
            EXPECT_TRUE(same_bits(in.run(single), fast));
        });
    }
}

TEST(EdgeScores, GatesAgreeWithTheReference) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast}, reference{&threads, Kernels::reference};
    for (const EdgeGate type : {EdgeGate::silu_sum, EdgeGate::sigmoid_product}) {
        constexpr int64_t kDepths = 3, kRank = 37;
        constexpr int32_t kStates = 5;
        CaseRandom random(12);
        const std::vector<float> gate = random.values(kDepths * kStates * kRank, 10);
        const std::vector<float> parent = random.values(kDepths * kStates * kRank, 10);
        const auto run = [&](Stream& on) {
            std::vector<float> out = parent;
            edge_gate({.type = type,
                       .depths = kDepths,
                       .states = kStates,
                       .rank = kRank,
                       .gate = gate.data(),
                       .parent = out.data()},
                      on);
            return out;
        };
        const std::vector<float> exact = run(reference);
        for_each_target([&] {
            // The sum's rounding moves the exponential by up to 20 units, the rest is a handful.
            EXPECT_TRUE(within(run(stream), exact, kRank, [&](size_t i) {
                return 64 * 0x1p-24 * std::abs(exact[i]) + 1e-30;
            }));
        });
    }
}

TEST(EdgeScores, ShareTheMassOfTheirDepth) {
    ThreadPool threads(1);
    for (const Kernels kernels : {Kernels::fast, Kernels::reference}) {
        Stream stream{&threads, kernels};
        const EdgeScoresCase& test = edge_scores_cases()[2];
        Inputs in(test);
        const std::vector<float> edge = in.run(stream);
        for (size_t row = 0; row < edge.size() / 32; ++row) {
            double sum = 0;
            for (int32_t c = 0; c < test.children[row / 32]; ++c) {
                sum += std::exp(double{edge[row * 32 + static_cast<size_t>(c)]});
            }
            EXPECT_NEAR(std::log(sum), in.log_mass[row / 32], 1e-5);
        }
    }
}

TEST(EdgeScores, PowersCountWhatIsLeftAsOneMore) {
    ThreadPool threads(1);
    EdgeScoresCase test = edge_scores_cases()[2];
    Stream stream{&threads, Kernels::fast};
    const std::vector<float> edge = Inputs(test).run(stream);
    test.power = 1.4f;
    const std::vector<float> sharp = Inputs(test).run(stream);
    for (size_t row = 0; row < edge.size() / 32; ++row) {
        double left = 1, sum = 0;
        const auto children = static_cast<size_t>(test.children[row / 32]);
        for (size_t c = 0; c < children; ++c) {
            const double p = std::exp(double{edge[row * 32 + c]});
            left -= p;
            sum += std::pow(p, double{test.power});
        }
        sum += std::pow(left, double{test.power});
        for (size_t c = 0; c < children; ++c) {
            EXPECT_NEAR(sharp[row * 32 + c], test.power * edge[row * 32 + c] - std::log(sum), 1e-4);
        }
    }
}

TEST(EdgeScores, WhatIsNotFiniteHasNoEdge) {
    ThreadPool threads(1);
    for (const float power : {0.0f, 2.0f}) {
        const EdgeScoresCase test{"", 3, 8, {3}, {3}, power, 11};
        Inputs in(test);
        in.child[3] = kNaN;                                         // child 0, of all parents
        in.parent[2 * 8] = std::numeric_limits<float>::infinity();  // parent 2, to all children
        for (const Kernels kernels : {Kernels::fast, Kernels::reference}) {
            Stream stream{&threads, kernels};
            const std::vector<float> edge = in.run(stream);
            for (size_t i = 0; i < 9; ++i)
                EXPECT_EQ(std::isinf(edge[i]), i % 3 == 0 || i >= 6) << i;
        }
    }
}

}  // namespace
}  // namespace kd
