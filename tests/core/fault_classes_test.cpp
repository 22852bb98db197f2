// Fault classes of tree speculation that live in pure functions, one test a class; where each was
// seen: docs/fault-classes.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/storage.h"
#include "core/accept.h"
#include "core/logprobs.h"
#include "core/tree.h"

namespace kd {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kVocabulary = 40;

using Tokens = std::vector<int32_t>;

/// A chain root -> 3 -> 5 -> 7, and beside it the root's child 4.
class ChainAndSibling : public ::testing::Test {
  protected:
    ChainAndSibling() : tree_(8), accepted_(8), logits_(5 * kVocabulary, 0.0f) {
        const TreeView view = tree_.view();
        std::ranges::copy(Tokens{9, 3, 4, 5, 7}, view.token);
        std::ranges::copy(Tokens{-1, 0, 0, 1, 3}, view.parent);
        std::ranges::copy(Tokens{0, 1, 1, 2, 3}, view.depth);
        *view.count = 5;
        fill_ancestors(view);
        for (const auto& [node, token] : {std::pair{0, 3}, {1, 5}, {2, 1}, {3, 7}, {4, 8}}) {
            logit(node, token) = 1.0f;
        }
    }

    float& logit(int32_t node, int32_t token) {
        return logits_[static_cast<size_t>(node * kVocabulary + token)];
    }
    void accept(const SamplingParams& params = {}) {
        const std::vector<double> draws(8, 0.5);
        accept_tree(
            tree_.view(),
            {.data = logits_.data(), .rows = 5, .columns = kVocabulary, .stride = kVocabulary},
            params, draws, scratch_, accepted_.view());
    }
    Tokens emitted() {
        const AcceptedView view = accepted_.view();
        return {view.emitted, view.emitted + *view.count};
    }

    TreeStorage tree_;
    AcceptedStorage accepted_;
    SamplerScratch scratch_;
    std::vector<float> logits_;
};

using FaultClass = ChainAndSibling;

TEST_F(FaultClass, AcceptIndexBeyondTheCountIsLeftAlone) {
    constexpr int32_t kCanary = -77;
    const AcceptedView view = accepted_.view();
    std::fill_n(view.path, view.capacity, kCanary);
    std::fill_n(view.emitted, view.capacity, kCanary);
    logit(1, 6) = 2.0f;  // not the child: the walk ends at node 1
    accept();
    EXPECT_EQ(Tokens(view.path, view.path + 3), (Tokens{0, 1, kCanary}));
    EXPECT_EQ(Tokens(view.emitted, view.emitted + 3), (Tokens{3, 6, kCanary}));
    for (int32_t i = 2; i < view.capacity; ++i) {
        EXPECT_EQ(view.path[i], kCanary) << i;
        EXPECT_EQ(view.emitted[i], kCanary) << i;
    }
}

TEST_F(FaultClass, TokenZeroIsATokenLikeAnyOther) {
    // Root, child, leaf and bonus are all token 0, and the child's sibling is not.
    const TreeView view = tree_.view();
    std::ranges::copy(Tokens{0, 0, 4, 0, 0}, view.token);
    std::ranges::fill(logits_, -1.0f);
    for (int32_t node = 0; node < 5; ++node) logit(node, 0) = 1.0f;
    accept();
    EXPECT_EQ(emitted(), (Tokens{0, 0, 0, 0}));

    LatticeStorage storage(2, 2);
    const LatticeView lattice = storage.view();
    *lattice.depths = 2;
    for (int32_t depth = 0; depth < 2; ++depth) {
        lattice.state_count[depth] = 2;
        for (int32_t state = 0; state < 2; ++state) {
            lattice.token[lattice.at(depth, state)] = state;  // 0 and 1
            lattice.log_prob[lattice.at(depth, state)] = -1.0f - static_cast<float>(state);
        }
    }
    TreeScratch scratch;
    build_tree(lattice, 0, 7, view, scratch);
    ASSERT_EQ(*view.count, 7);
    EXPECT_EQ(view.token[1], 0);
    EXPECT_EQ(std::count(view.token, view.token + 7, 0), 1 + 1 + 2);
}

TEST_F(FaultClass, StaleStatesOfALongerDraftAreNotTakenUp) {
    LatticeStorage storage(4, 4);
    const LatticeView lattice = storage.view();
    *lattice.has_edges = true;
    std::fill_n(lattice.token, 16, 30);  // what a round before left, all of it certain
    std::fill_n(lattice.log_prob, 16, 0.0f);
    std::fill_n(lattice.edge, 64, 0.0f);
    std::fill_n(lattice.state_count, 4, 4);
    *lattice.depths = 2;
    for (int32_t depth = 0; depth < 2; ++depth) {
        lattice.state_count[depth] = 1;
        lattice.token[lattice.at(depth, 0)] = 10 + depth;
    }
    TreeScratch scratch;
    build_tree(lattice, 9, 8, tree_.view(), scratch);
    EXPECT_EQ(*tree_.view().count, 3);
    EXPECT_EQ(Tokens(tree_.view().token, tree_.view().token + 3), (Tokens{9, 10, 11}));
}

TEST_F(FaultClass, StaleMaskWordsOfAnEarlierTreeAreOverwritten) {
    const TreeView view = tree_.view();
    std::fill_n(view.ancestors, view.capacity * kAncestorWords, ~uint64_t{0});
    fill_ancestors(view);
    const uint64_t expected[] = {0b00001, 0b00011, 0b00101, 0b01011, 0b11011};
    for (int32_t node = 0; node < 5; ++node) {
        EXPECT_EQ(view.ancestor_words(node)[0], expected[node]) << node;
        for (size_t word = 1; word < kAncestorWords; ++word) {
            EXPECT_EQ(view.ancestor_words(node)[word], 0u) << node;
        }
    }
}

TEST_F(FaultClass, NanInARowOffTheWalkIsNotRead) {
    std::fill_n(&logit(2, 0), kVocabulary, kNaN);
    for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.temperature = 0.01f}}) {
        accept(params);
        EXPECT_EQ(emitted(), (Tokens{3, 5, 7, 8}));
    }
}

/// One NaN is enough, wherever it stands, and even if the largest logit is a number.
TEST_F(FaultClass, NanOnTheWalkIsAnErrorAndWhatCameBeforeIsGood) {
    const Tokens whole = {3, 5, 7, 8};
    const int32_t nodes[] = {0, 1, 3, 4};
    for (size_t depth = 0; depth < std::size(nodes); ++depth) {
        for (const int32_t token : {0, 1, 17, kVocabulary - 1}) {
            const float before = std::exchange(logit(nodes[depth], token), kNaN);
            for (const float temperature : {0.0f, 0.01f}) {
                try {
                    accept({.temperature = temperature});
                    ADD_FAILURE() << "no error at node " << nodes[depth] << ", token " << token;
                } catch (const Error& error) {
                    EXPECT_STREQ(error.what(), "the model gave NaN: 1 of 40 logits");
                }
                EXPECT_EQ(emitted(), Tokens(whole.begin(), whole.begin() + std::ssize(emitted())));
                EXPECT_EQ(emitted().size(), depth);
            }
            logit(nodes[depth], token) = before;
        }
    }
    std::vector<float> logprob(1), scratch, row(kVocabulary, 0.0f);
    row.back() = kNaN;
    EXPECT_THROW(write_logprobs(row, 0, {.top = 0, .logprob = logprob.data()}, 0, scratch), Error);
}

}  // namespace
}  // namespace kd
