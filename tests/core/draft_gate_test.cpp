#include "core/draft_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kd {
namespace {

/// Time of `rounds` rounds and the tokens they emit, in plain rounds. Drafted rounds take `cost`
/// and emit one token and another with each success of probability `hit`, at most 8.
struct Played {
    double time = 0;
    double tokens = 0;
    int drafted = 0;
    double speed() const { return tokens / time; }
};

Played play(DraftGate& gate, int rounds, double hit, double cost, uint32_t seed) {
    std::mt19937 random(seed);
    std::bernoulli_distribution hits(hit);
    Played played;
    for (int round = 0; round < rounds; ++round) {
        if (!gate.next()) {
            played.time += 1;
            played.tokens += 1;
            continue;
        }
        int tokens = 1;
        while (tokens < 8 && hits(random)) ++tokens;
        gate.observe(tokens, cost);
        played.time += cost;
        played.tokens += tokens;
        ++played.drafted;
    }
    return played;
}

TEST(DraftGate, ABadDrafterCostsAtMostTwoPercent) {
    for (const double cost : {1.05, 1.2, 1.3}) {
        for (const double hit : {0.0, 0.04, 0.1}) {
            SCOPED_TRACE(testing::Message() << "cost " << cost << ", hit " << hit);
            DraftGate gate;
            EXPECT_GT(play(gate, 200, hit, cost, 1).speed(), 0.98);
            EXPECT_GT(play(gate, 5000, hit, cost, 2).speed(), 0.99);
        }
    }
}

TEST(DraftGate, AGoodDrafterIsNotPaused) {
    DraftGate gate;
    const Played good = play(gate, 5000, 0.6, 1.6, 3);  // 2.46 tokens in 1.6 plain rounds
    EXPECT_EQ(good.drafted, 5000);
    DraftGate other;
    EXPECT_GT(play(other, 5000, 0.4, 1.4, 4).drafted, 4000);  // 1.67 in 1.4
}

TEST(DraftGate, FreeDraftsAreNeverPaused) {
    DraftGate gate;
    EXPECT_EQ(play(gate, 1000, 0.0, 1.005, 4).drafted, 1000);
}

TEST(DraftGate, FindsBackWhenAcceptanceRises) {
    DraftGate gate;
    play(gate, 1000, 0.0, 1.3, 5);
    EXPECT_LT(gate.gain(), 0.9);
    int found = 0;
    for (uint32_t seed = 0; seed < 100; ++seed) {
        DraftGate shut = gate;
        play(shut, 4 * DraftGate::kLongestPause, 0.7, 1.6, seed);
        found += shut.gain() > 1.2 ? 1 : 0;
    }
    EXPECT_GT(found, 90);
}

TEST(DraftGate, PausesDouble) {
    DraftGate gate;
    while (gate.next()) gate.observe(1, 2);
    int pause = 1;  // the round that was just not drafted
    for (int expected = DraftGate::kFirstPause; expected < 4 * DraftGate::kLongestPause;
         expected *= 2) {
        while (!gate.next()) ++pause;
        EXPECT_EQ(pause, std::min(expected, DraftGate::kLongestPause));
        gate.observe(1, 2);
        pause = 0;
    }
}

TEST(DraftGate, AProbeThatNobodyJudgesIsNone) {
    DraftGate gate;
    while (gate.next()) gate.observe(1, 2);
    int drafted = 0;
    for (int round = 0; round < 10 * DraftGate::kLongestPause; ++round) {
        drafted += gate.next() ? 1 : 0;
    }
    EXPECT_GE(drafted, 10);
    EXPECT_LE(drafted, 10 * DraftGate::kLongestPause / DraftGate::kFirstPause);
}

}  // namespace
}  // namespace kd
