// Acceptance is lossless: over all draws, the text of a round that looks at a tree, continued by
// plain sampling, is distributed as plain text. Shown by exact enumeration with accept_tree itself:
// every tree shape, a toy target whose logits depend on the whole path, and the draws integrated
// by cutting [0, 1) where the target's cumulative distribution steps.
#include "core/accept.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "base/rng.h"
#include "base/storage.h"
#include "core/tree.h"
#include "reference_sampling.h"

namespace kd {
namespace {

constexpr uint64_t kSeed = 11;
#ifdef __SANITIZE_ADDRESS__
constexpr int kLargestTree = 6;
#else
constexpr int kLargestTree = 8;
#endif

const SamplingParams kParams[] = {{.temperature = 1.0f},
                                  {.temperature = 0.6f},
                                  {.temperature = 1.7f},
                                  {.temperature = 1.0f, .top_k = 2},
                                  {.temperature = 1.3f, .top_p = 0.75f},
                                  {.temperature = 0.9f, .min_p = 0.3f},
                                  {.temperature = 1.1f, .top_k = 3, .top_p = 0.9f, .min_p = 0.1f}};

// A target over texts of at most `length` tokens. Texts are numbered like a complete tree: the
// empty text is 0, text t followed by token v is t * vocabulary + 1 + v.
class ToyTarget {
  public:
    ToyTarget(int32_t vocabulary, int length, const SamplingParams& params)
        : vocabulary_(vocabulary) {
        size_t level = 1;
        for (int l = 0; l <= length; ++l, level *= static_cast<size_t>(vocabulary)) {
            first_of_length_.push_back(texts_);
            texts_ += level;
        }
        first_of_length_.push_back(texts_);
        for (size_t t = 0; t < texts_; ++t) {
            std::vector<float> row;
            for (int32_t v = 0; v < vocabulary; ++v) {
                const double u = uniform(kSeed, RngStream::test, t, static_cast<uint32_t>(v));
                row.push_back(static_cast<float>(4.0 * u - 2.0));
            }
            const auto p = reference_distribution(row, params);
            logits_.insert(logits_.end(), row.begin(), row.end());
            probability_.insert(probability_.end(), p.begin(), p.end());
        }
    }

    int32_t vocabulary() const { return vocabulary_; }
    int length() const { return static_cast<int>(first_of_length_.size()) - 2; }
    size_t next(size_t text, int32_t token) const {
        return text * static_cast<size_t>(vocabulary_) + 1 + static_cast<size_t>(token);
    }
    std::span<const float> logits(size_t text) const { return row(logits_, text); }
    std::span<const double> probability(size_t text) const { return row(probability_, text); }

    // mass [texts]: continues every text that is shorter than `length` by plain sampling.
    void continue_plainly(std::vector<double>& mass) const {
        for (size_t t = 0; t < first_of_length_[first_of_length_.size() - 2]; ++t) {
            for (int32_t v = 0; v < vocabulary_; ++v) {
                mass[next(t, v)] += mass[t] * probability(t)[static_cast<size_t>(v)];
            }
        }
    }
    // Half the absolute difference over the texts of full length.
    double total_variation(const std::vector<double>& a, const std::vector<double>& b) const {
        double sum = 0.0;
        for (size_t t = first_of_length_[first_of_length_.size() - 2]; t < texts_; ++t) {
            sum += std::abs(a[t] - b[t]);
        }
        return sum / 2.0;
    }
    std::vector<double> plain() const {
        std::vector<double> mass(texts_, 0.0);
        mass[0] = 1.0;
        continue_plainly(mass);
        return mass;
    }
    size_t texts() const { return texts_; }

  private:
    template <class T>
    std::span<const T> row(const std::vector<T>& values, size_t text) const {
        const size_t width = static_cast<size_t>(vocabulary_);
        return {values.data() + text * width, width};
    }

    int32_t vocabulary_;
    size_t texts_ = 0;
    std::vector<size_t> first_of_length_;
    std::vector<float> logits_;
    std::vector<double> probability_;
};

// Calls visit(tree) for every tree of `nodes` nodes whose siblings are distinct tokens: a tree is a
// set of texts closed under prefixes, enumerated by adding nodes in the order of (parent, token).
void for_every_tree(int32_t nodes, int32_t vocabulary, TreeView tree,
                    const std::function<void()>& visit) {
    const std::function<void(int32_t, int32_t)> extend = [&](int32_t count, int32_t first) {
        if (count == nodes) {
            *tree.count = count;
            fill_ancestors(tree);
            visit();
            return;
        }
        for (int32_t place = first; place < count * vocabulary; ++place) {
            tree.parent[count] = place / vocabulary;
            tree.token[count] = place % vocabulary;
            tree.depth[count] = tree.depth[tree.parent[count]] + 1;
            tree.log_score[count] = -static_cast<float>(count);
            extend(count + 1, place + 1);
        }
    };
    tree.parent[0] = -1;
    tree.token[0] = -1;
    tree.depth[0] = 0;
    tree.log_score[0] = 0.0f;
    extend(1, 0);
}

class TreeRound {
  public:
    TreeRound(const ToyTarget& target, const SamplingParams& params, TreeView tree)
        : target_(target), params_(params), tree_(tree), text_(8), draws_(9), accepted_(9) {}

    // The target's rows for the current tree after `context`.
    void verify(size_t context) {
        const size_t width = static_cast<size_t>(target_.vocabulary());
        logits_.resize(static_cast<size_t>(*tree_.count) * width);
        for (int32_t n = 0; n < *tree_.count; ++n) {
            const size_t node = static_cast<size_t>(n);
            text_[node] =
                n == 0 ? context
                       : target_.next(text_[static_cast<size_t>(tree_.parent[n])], tree_.token[n]);
            std::ranges::copy(target_.logits(text_[node]), logits_.begin() + n * width);
        }
    }

    AcceptedView accept() {
        const MatrixView<const float> rows = {.data = logits_.data(),
                                              .rows = *tree_.count,
                                              .columns = target_.vocabulary(),
                                              .stride = target_.vocabulary()};
        accept_tree(tree_, rows, params_, draws_, scratch_, accepted_.view());
        return accepted_.view();
    }

    // Adds to mass [texts] the probability of every text that the round emits (cut to the target's
    // length), given that the draws below `depth` are set and have probability `weight`.
    void integrate(std::vector<double>& mass, int depth = 0, double weight = 1.0) {
        const AcceptedView out = accept();
        if (*out.count <= depth) {
            size_t text = 0;
            for (int i = 0; i < std::min(*out.count, target_.length()); ++i) {
                text = target_.next(text, out.emitted[i]);
            }
            mass[text] += weight;
            return;
        }
        // The walk reaches a node of this depth, and its draw is free: one piece a token.
        const size_t node = static_cast<size_t>(out.path[depth]);
        double below = 0.0;
        for (const double piece : target_.probability(text_[node])) {
            if (piece == 0.0) continue;
            draws_[static_cast<size_t>(depth)] = below + piece / 2.0;
            integrate(mass, depth + 1, weight * piece);
            below += piece;
        }
        draws_[static_cast<size_t>(depth)] = 0.0;
    }

    std::vector<double>& draws() { return draws_; }

  private:
    const ToyTarget& target_;
    SamplingParams params_;
    TreeView tree_;
    std::vector<size_t> text_;  // [nodes] the text that ends in each node
    std::vector<float> logits_;
    std::vector<double> draws_;
    AcceptedStorage accepted_;
    SamplerScratch scratch_;
};

// The largest total variation over all trees of up to `largest` nodes; `trees` counts them.
double worst_variation(int32_t vocabulary, int largest, const SamplingParams& params, int& trees) {
    double worst = 0.0;
    for (int nodes = 1; nodes <= largest; ++nodes) {
        const ToyTarget target(vocabulary, nodes, params);
        const std::vector<double> plain = target.plain();
        TreeStorage tree(nodes);
        TreeRound round(target, params, tree.view());
        std::vector<double> mass(target.texts());
        for_every_tree(nodes, vocabulary, tree.view(), [&] {
            std::ranges::fill(mass, 0.0);
            round.verify(0);
            round.integrate(mass);
            target.continue_plainly(mass);
            worst = std::max(worst, target.total_variation(mass, plain));
            ++trees;
        });
    }
    return worst;
}

// How many trees of 1..largest nodes: C(3n, n) / (2n + 1) ternary trees of n nodes.
int ternary_trees(int largest) {
    double sum = 0.0;
    for (int n = 1; n <= largest; ++n) {
        double choose = 1.0;
        for (int i = 1; i <= n; ++i) choose = choose * (2 * n + i) / i;
        sum += std::round(choose / (2 * n + 1));
    }
    return static_cast<int>(sum);
}

TEST(AcceptTree, LosslessForEveryTreeOfThreeTokens) {
    for (size_t i = 0; i < std::size(kParams); ++i) {
        const SamplingParams& params = kParams[i];
        const int largest = i == 0 || i + 1 == std::size(kParams) ? kLargestTree : kLargestTree - 1;
        int trees = 0;
        const double worst = worst_variation(3, largest, params, trees);
        std::printf("%d trees, worst total variation %.2g\n", trees, worst);
        EXPECT_LT(worst, 1e-6) << "temperature " << params.temperature << " top_k " << params.top_k
                               << " top_p " << params.top_p << " min_p " << params.min_p;
        EXPECT_EQ(trees, ternary_trees(largest));
    }
}

TEST(AcceptTree, LosslessForEveryTreeOfFourTokens) {
    for (const SamplingParams& params : kParams) {
        int trees = 0;
        EXPECT_LT(worst_variation(4, kLargestTree - 2, params, trees), 1e-6);
    }
}

// What the text will be is decided by the draws alone: one draw a position, and the trees only
// decide how many rounds it takes.
TEST(AcceptTree, OneSetOfDrawsGivesOneTextForEveryTree) {
    constexpr int kLength = 5;
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    std::mt19937_64 random(kSeed);
    const SamplingParams params = {.temperature = 1.2f, .top_p = 0.95f};
    const ToyTarget target(3, kLength + 5, params);  // the last round may look 5 tokens too far
    SamplerScratch scratch;
    TreeStorage tree(6);
    TreeRound round(target, params, tree.view());
    const auto draw = [](uint64_t seed, int position) {
        return uniform(seed, RngStream::sample, static_cast<uint64_t>(position));
    };
    for_every_tree(6, 3, tree.view(), [&] {
        const uint64_t seed = random() % 50;
        size_t plain = 0;
        for (int position = 0; position < kLength; ++position) {
            plain = target.next(
                plain, sample_token(target.logits(plain), params, draw(seed, position), scratch));
        }
        size_t text = 0;
        for (int position = 0; position < kLength;) {
            for (int d = 0; d < 9; ++d) {
                round.draws()[static_cast<size_t>(d)] = draw(seed, position + d);
            }
            round.verify(text);
            const AcceptedView out = round.accept();
            for (int i = 0; i < *out.count && position < kLength; ++i, ++position) {
                text = target.next(text, out.emitted[i]);
            }
        }
        ASSERT_EQ(text, plain) << "seed " << seed;
    });
}

// root 9 -> {1: node 1, 2: node 2}; node 1 -> {2: node 3}; node 2 -> {2: node 4}.
class SmallTree : public testing::Test {
  protected:
    SmallTree() : tree_(5), accepted_(3) {
        const TreeView view = tree_.view();
        *view.count = 5;
        std::ranges::copy(std::vector<int32_t>{9, 1, 2, 2, 2}, view.token);
        std::ranges::copy(std::vector<int32_t>{-1, 0, 0, 1, 2}, view.parent);
        std::ranges::copy(std::vector<int32_t>{0, 1, 1, 2, 2}, view.depth);
        fill_ancestors(view);
    }

    // argmax [5]: the token that the target wants after each node.
    void accept(const std::vector<int32_t>& argmax) {
        std::vector<float> logits(15, 0.0f);
        for (size_t n = 0; n < 5; ++n) logits[3 * n + static_cast<size_t>(argmax[n])] = 1.0f;
        accept_tree(tree_.view(), {.data = logits.data(), .rows = 5, .columns = 3, .stride = 3}, {},
                    {}, scratch_, accepted_.view());
    }
    std::vector<int32_t> path() {
        return {accepted_.view().path, accepted_.view().path + *accepted_.view().count};
    }
    std::vector<int32_t> emitted() {
        return {accepted_.view().emitted, accepted_.view().emitted + *accepted_.view().count};
    }

    TreeStorage tree_;
    AcceptedStorage accepted_;
    SamplerScratch scratch_;
};

using Tokens = std::vector<int32_t>;

TEST_F(SmallTree, AcceptIndexRunsFromTheRootToTheBonusToken) {
    accept({0, 0, 0, 0, 0});
    EXPECT_EQ(path(), (Tokens{0}));
    EXPECT_EQ(emitted(), (Tokens{0}));
    accept({1, 1, 0, 0, 0});
    EXPECT_EQ(path(), (Tokens{0, 1}));
    EXPECT_EQ(emitted(), (Tokens{1, 1}));
    accept({1, 2, 0, 1, 0});
    EXPECT_EQ(path(), (Tokens{0, 1, 3}));
    EXPECT_EQ(emitted(), (Tokens{1, 2, 1}));
    accept({2, 0, 2, 0, 1});
    EXPECT_EQ(path(), (Tokens{0, 2, 4}));
    EXPECT_EQ(emitted(), (Tokens{2, 2, 1}));
}

TEST_F(SmallTree, StaleNodesBeyondTheCountAreNotWalked) {
    truncate_tree(tree_.view(), 3);
    accept({1, 2, 0, 1, 0});
    EXPECT_EQ(path(), (Tokens{0, 1}));
    EXPECT_EQ(emitted(), (Tokens{1, 2}));
}

TEST_F(SmallTree, FindChildWantsParentAndToken) {
    const TreeView view = tree_.view();
    EXPECT_EQ(find_child(view, 0, 1), 1);
    EXPECT_EQ(find_child(view, 0, 2), 2);
    EXPECT_EQ(find_child(view, 1, 2), 3);
    EXPECT_EQ(find_child(view, 2, 2), 4);
    EXPECT_EQ(find_child(view, 1, 1), -1);
    EXPECT_EQ(find_child(view, 4, 2), -1);
    EXPECT_EQ(find_child(view, 0, 9), -1);
}

TEST_F(SmallTree, DrawsAreIndexedByDepth) {
    const std::vector<float> logits(15, 0.0f);  // uniform over three tokens
    const std::vector<double> draws = {0.9, 0.7, 0.1};
    accept_tree(tree_.view(), {.data = logits.data(), .rows = 5, .columns = 3, .stride = 3},
                {.temperature = 1.0f}, draws, scratch_, accepted_.view());
    EXPECT_EQ(path(), (Tokens{0, 2, 4}));
    EXPECT_EQ(emitted(), (Tokens{2, 2, 0}));
}

TEST_F(SmallTree, MissingDrawsRowsOrCapacityAreCaught) {
    const std::vector<float> logits(15, 0.0f);
    const std::vector<double> draws = {0.9};
    const MatrixView<const float> rows = {
        .data = logits.data(), .rows = 5, .columns = 3, .stride = 3};
    const SamplingParams params = {.temperature = 1.0f};
    EXPECT_DEATH(accept_tree(tree_.view(), rows, params, draws, scratch_, accepted_.view()),
                 "1 draws for depth 1");
    MatrixView<const float> few = rows;
    few.rows = 4;
    EXPECT_DEATH(accept_tree(tree_.view(), few, params, draws, scratch_, accepted_.view()),
                 "4 rows of logits for 5 nodes");
    AcceptedView narrow = accepted_.view();
    narrow.capacity = 1;
    EXPECT_DEATH(accept_tree(tree_.view(), rows, params, draws, scratch_, narrow),
                 "a path longer than 1");
}

}  // namespace
}  // namespace kd
