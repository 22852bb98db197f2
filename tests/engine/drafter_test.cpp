#include <gtest/gtest.h>

#include <cmath>

#include "base/storage.h"
#include "core/tree.h"
#include "models/ngram_drafter.h"
#include "models/oracle_drafter.h"

namespace kd {
namespace {

constexpr int32_t kDepths = 8;

struct Draft {
    LatticeStorage lattice;
    TreeStorage tree{16};

    explicit Draft(Drafter& drafter, const DraftContext& context)
        : lattice(drafter.depth_capacity, drafter.state_capacity) {
        LatticeView view = lattice.view();
        drafter.draft({&context, 1}, {&view, 1});
        TreeScratch scratch;
        build_tree(view, context.tokens.back(), 16, tree.view(), scratch);
    }
    int32_t depths() { return *lattice.view().depths; }
    int32_t nodes() { return *tree.view().count; }
    int32_t token(int32_t node) { return tree.view().token[node]; }
    int32_t parent(int32_t node) { return tree.view().parent[node]; }
    double probability(int32_t node) { return std::exp(tree.view().log_score[node]); }
};

TEST(NgramDrafter, ProposesWhatFollowedBefore) {
    NgramDrafter drafter(1, kDepths);
    const std::vector<int32_t> text = {1, 2, 3, 4, 5, 6, 9, 1, 2, 3};
    Draft draft(drafter, {.tokens = text, .max_depth = 3});
    ASSERT_EQ(draft.nodes(), 4);
    EXPECT_EQ(draft.token(1), 4);
    EXPECT_EQ(draft.token(2), 5);
    EXPECT_EQ(draft.token(3), 6);
    EXPECT_EQ(draft.parent(3), 2);
}

TEST(NgramDrafter, MergesContinuationsIntoOneTree) {
    NgramDrafter drafter(1, kDepths);
    // After "1 2": twice 3 (then 4 or 5), once 7.
    const std::vector<int32_t> text = {1, 2, 3, 4, 0, 1, 2, 7, 0, 1, 2, 3, 5, 0, 1, 2};
    Draft draft(drafter, {.tokens = text, .max_depth = 2});
    EXPECT_EQ(draft.token(1), 3);
    EXPECT_GT(draft.probability(1), 0);
    double at_depth_one = 0;
    bool seven = false;
    for (int32_t node = 1; node < draft.nodes(); ++node) {
        if (draft.parent(node) != 0) continue;
        at_depth_one += draft.probability(node);
        seven = seven || draft.token(node) == 7;
    }
    EXPECT_TRUE(seven);
    EXPECT_LE(at_depth_one, 1.0);
    int32_t children_of_three = 0;
    for (int32_t node = 1; node < draft.nodes(); ++node) {
        children_of_three += draft.parent(node) == 1 ? 1 : 0;
    }
    EXPECT_EQ(children_of_three, 2);  // 4 and 5
}

TEST(NgramDrafter, UnrollsLoops) {
    NgramDrafter drafter(1, kDepths);
    const std::vector<int32_t> text = {8, 1, 2, 1, 2, 1};
    Draft draft(drafter, {.tokens = text, .max_depth = 6});
    EXPECT_EQ(draft.depths(), 6);
    for (int32_t node = 1; node <= 6; ++node) {
        EXPECT_EQ(draft.token(node), node % 2 == 1 ? 2 : 1) << node;
    }
}

TEST(NgramDrafter, ProposesNothingWithoutAMatch) {
    NgramDrafter drafter(1, kDepths);
    const std::vector<int32_t> text = {1, 2, 3};
    EXPECT_EQ(Draft(drafter, {.tokens = text, .max_depth = 4}).nodes(), 1);
    const std::vector<int32_t> single = {1};
    EXPECT_EQ(Draft(drafter, {.tokens = single, .max_depth = 4}).nodes(), 1);
}

TEST(NgramDrafter, LearnsHowOftenItIsRight) {
    NgramDrafter drafter(1, kDepths);
    const auto confidence = [&](bool right) {
        std::vector<int32_t> text;
        const std::vector<int32_t> first_rows = {0};
        const IngestSegment fresh = {.first_position = 0, .tokens = first_rows};
        drafter.ingest({&fresh, 1});
        double last = 0;
        for (int32_t i = 0; i < 60; ++i) {
            text.push_back(5);  // the match
            Draft draft(drafter, {.tokens = text, .max_depth = 1});
            if (draft.nodes() > 1) last = draft.probability(1);
            text.push_back(right ? 6 : 100 + i);  // what follows it
        }
        return last;
    };
    EXPECT_GT(confidence(true), 0.7);
    EXPECT_LT(confidence(false), 0.02);
}

TEST(OracleDrafter, HitsAsOftenAsItsProfileSays) {
    OracleDrafter drafter({.hit = {{0.6f, 0.12f, 0.05f}, {0.5f, 0.1f}}}, 1000);
    const std::vector<int32_t> known = {501, 502};
    std::vector<int32_t> text = {3};
    std::array<int, 3> at_rank{};
    int at_second = 0;
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i) {
        text.push_back(4);
        LatticeStorage storage(drafter.depth_capacity, drafter.state_capacity);
        LatticeView lattice = storage.view();
        const DraftContext context = {
            .tokens = text, .max_depth = 5, .known_continuation = known, .seed = 77};
        drafter.draft({&context, 1}, {&lattice, 1});
        ASSERT_EQ(*lattice.depths, 2);
        for (int32_t rank = 0; rank < 3; ++rank) {
            at_rank[static_cast<size_t>(rank)] += lattice.token[lattice.at(0, rank)] == 501 ? 1 : 0;
            for (int32_t other = 0; other < rank; ++other) {
                ASSERT_NE(lattice.token[lattice.at(0, rank)], lattice.token[lattice.at(0, other)]);
            }
        }
        at_second += lattice.token[lattice.at(1, 0)] == 502 ? 1 : 0;
    }
    // Four standard deviations of a binomial.
    const auto near = [](int hits, double p) {
        return std::abs(hits - kDraws * p) < 4 * std::sqrt(kDraws * p * (1 - p));
    };
    EXPECT_TRUE(near(at_rank[0], 0.6)) << at_rank[0];
    EXPECT_TRUE(near(at_rank[1], 0.12)) << at_rank[1];
    EXPECT_TRUE(near(at_rank[2], 0.05)) << at_rank[2];
    EXPECT_TRUE(near(at_second, 0.5)) << at_second;
}

}  // namespace
}  // namespace kd
