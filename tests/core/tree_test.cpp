#include "core/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/storage.h"
#include "random_lattice.h"

namespace kd {
namespace {

constexpr uint64_t kSeed = 20240611;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
#ifdef __SANITIZE_ADDRESS__
constexpr int kScale = 10;  // sanitizers: fewer of the same cases
#else
constexpr int kScale = 1;
#endif

// One prefix of the lattice: what a node may be.
struct Prefix {
    int32_t parent;  // prefix index; -1: the root
    int32_t depth;
    int32_t state;
    int32_t token;
    int32_t rank;
    float log_score;
};

// Every prefix of the lattice, straight from the definition; [0] is the root.
std::vector<Prefix> all_prefixes(const LatticeView& lattice) {
    std::vector<Prefix> prefixes = {{-1, 0, 0, -1, 0, 0.0f}};
    for (size_t p = 0; p < prefixes.size(); ++p) {
        const Prefix parent = prefixes[p];
        const int32_t d = parent.depth;
        if (d == *lattice.depths) continue;
        // Per token the heaviest edge, then the lowest state.
        std::map<int32_t, std::pair<float, int32_t>> best;
        for (int32_t s = 0; s < lattice.state_count[d]; ++s) {
            float edge = d > 0 && *lattice.has_edges
                             ? lattice.edge[lattice.edge_at(d, parent.state, s)]
                             : lattice.log_prob[lattice.at(d, s)];
            if (std::isnan(edge) || edge == -kInfinity) continue;
            edge = std::min(edge, 0.0f);
            const std::pair<float, int32_t> entry = {-edge, s};
            const auto [at, added] = best.emplace(lattice.token[lattice.at(d, s)], entry);
            if (!added) at->second = std::min(at->second, entry);
        }
        std::vector<std::tuple<float, int32_t, int32_t>> children;
        for (const auto& [token, entry] : best) {
            children.emplace_back(entry.first, entry.second, token);
        }
        std::sort(children.begin(), children.end());
        for (size_t r = 0; r < children.size(); ++r) {
            const auto [negated, state, token] = children[r];
            prefixes.push_back({static_cast<int32_t>(p), d + 1, state, token,
                                static_cast<int32_t>(r), parent.log_score + -negated});
        }
    }
    return prefixes;
}

// The tree from the definition: of all prefixes whose parent is in, the first in the total order.
std::vector<Prefix> tree_by_definition(const std::vector<Prefix>& prefixes, size_t nodes) {
    std::vector<Prefix> tree;
    std::vector<int32_t> node_of(prefixes.size(), -1);
    while (tree.size() < std::min(nodes, prefixes.size())) {
        using Key = std::tuple<float, int32_t, int32_t, int32_t, size_t>;
        std::vector<Key> open;
        for (size_t p = 0; p < prefixes.size(); ++p) {
            const Prefix& prefix = prefixes[p];
            const int32_t parent =
                prefix.parent < 0 ? -1 : node_of[static_cast<size_t>(prefix.parent)];
            if (node_of[p] >= 0 || (prefix.parent >= 0 && parent < 0)) continue;
            open.emplace_back(-prefix.log_score, prefix.depth, parent, prefix.rank, p);
        }
        const size_t chosen = std::get<4>(*std::min_element(open.begin(), open.end()));
        node_of[chosen] = static_cast<int32_t>(tree.size());
        Prefix node = prefixes[chosen];
        node.parent = std::get<2>(*std::min_element(open.begin(), open.end()));
        tree.push_back(node);
    }
    return tree;
}

// What holds for every tree, whatever the lattice. `failure` stays empty when it does.
std::string broken_rule(const TreeView& tree) {
    if (*tree.count < 1 || *tree.count > tree.capacity) return "count";
    if (tree.parent[0] != -1 || tree.depth[0] != 0 || tree.log_score[0] != 0.0f) return "root";
    for (int32_t n = 1; n < *tree.count; ++n) {
        const int32_t parent = tree.parent[n];
        if (parent < 0 || parent >= n) return "a child before its parent";
        if (tree.depth[n] != tree.depth[parent] + 1) return "depth";
        if (!(tree.log_score[n] <= tree.log_score[n - 1])) return "increasing log_score";
        for (int32_t other = 1; other < n; ++other) {
            if (tree.parent[other] == parent && tree.token[other] == tree.token[n]) {
                return "two siblings with one token";
            }
        }
    }
    for (int32_t n = 0; n < *tree.count; ++n) {
        uint64_t words[kAncestorWords] = {};
        for (int32_t a = n; a >= 0; a = tree.parent[a]) words[a / 64] |= uint64_t{1} << (a % 64);
        if (!std::ranges::equal(words, tree.ancestor_words(n))) return "ancestors";
    }
    return "";
}

void expect_definition(const LatticeView& lattice, int32_t max_nodes, TreeView tree,
                       TreeScratch& scratch) {
    build_tree(lattice, 7, max_nodes, tree, scratch);
    ASSERT_EQ(broken_rule(tree), "");
    std::vector<Prefix> prefixes = all_prefixes(lattice);
    const std::vector<Prefix> expected =
        tree_by_definition(prefixes, static_cast<size_t>(max_nodes));
    ASSERT_EQ(*tree.count, static_cast<int32_t>(expected.size()));
    for (int32_t n = 0; n < *tree.count; ++n) {
        const Prefix& node = expected[static_cast<size_t>(n)];
        ASSERT_EQ(tree.token[n], n == 0 ? 7 : node.token) << "node " << n;
        ASSERT_EQ(tree.parent[n], node.parent) << "node " << n;
        ASSERT_EQ(tree.depth[n], node.depth) << "node " << n;
        ASSERT_EQ(tree.log_score[n], node.log_score) << "node " << n;
    }

    // Any tree of n nodes is n distinct prefixes, so none outweighs the n heaviest prefixes.
    std::ranges::sort(prefixes, std::greater<>(), &Prefix::log_score);
    double weight = 0.0;
    double heaviest = 0.0;
    for (int32_t n = 0; n < *tree.count; ++n) {
        weight += std::exp(double{tree.log_score[n]});
        heaviest += std::exp(double{prefixes[static_cast<size_t>(n)].log_score});
        ASSERT_EQ(weight, heaviest) << "the first " << n + 1 << " nodes";
    }
}

TEST(BuildTree, EqualsTheDefinitionOnRandomLattices) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    RandomLattice random(kSeed);
    LatticeStorage lattice(4, 4);
    TreeStorage tree(12);
    TreeScratch scratch;
    for (int i = 0; i < 6000 / kScale; ++i) {
        SCOPED_TRACE(testing::Message() << "lattice " << i << " of seed " << kSeed);
        const LatticeRecipe recipe = {.vocabulary = i % 3 == 0 ? 3 : 1000,
                                      .edges = i % 2 == 0,
                                      .quantum = i % 5 < 3 ? 0.5f : 0.0f,
                                      .odd = i % 7 < 2 ? 0.2 : 0.0};
        random.fill(recipe, lattice.view());
        const int32_t nodes = 1 + static_cast<int32_t>(random.below(12));
        expect_definition(lattice.view(), nodes, tree.view(), scratch);
        if (HasFatalFailure()) return;
    }
}

TEST(BuildTree, RulesHoldInAMillionTrees) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed + 1));
    RandomLattice random(kSeed + 1);
    LatticeStorage lattice(3, 3);
    TreeStorage tree(10);
    TreeScratch scratch;
    for (int i = 0; i < 1000000 / kScale;) {
        const LatticeRecipe recipe = {.depths = 3,
                                      .states = 3,
                                      .vocabulary = 3,
                                      .edges = random.below(2) == 0,
                                      .quantum = random.below(2) == 0 ? 0.25f : 0.0f,
                                      .odd = 0.05};
        random.fill(recipe, lattice.view());
        for (int32_t nodes = 1; nodes <= 10; ++nodes, ++i) {
            build_tree(lattice.view(), 0, nodes, tree.view(), scratch);
            const std::string rule = broken_rule(tree.view());
            ASSERT_EQ(rule, "") << "tree " << i << " of seed " << kSeed + 1;
        }
    }
}

TEST(BuildTree, RulesHoldInLargeTrees) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed + 2));
    RandomLattice random(kSeed + 2);
    LatticeStorage lattice(kMaxDraftDepths, kMaxDraftStates);
    TreeStorage tree(kMaxTreeNodes);
    TreeStorage smaller(kMaxTreeNodes);
    TreeScratch scratch;
    for (int i = 0; i < 40; ++i) {
        const LatticeRecipe recipe = {.depths = kMaxDraftDepths,
                                      .states = i % 2 == 0 ? kMaxDraftStates : 5,
                                      .vocabulary = 100,
                                      .edges = i % 4 < 2,
                                      .quantum = i % 3 == 0 ? 0.125f : 0.0f};
        random.fill(recipe, lattice.view());
        build_tree(lattice.view(), 0, kMaxTreeNodes, tree.view(), scratch);
        ASSERT_EQ(broken_rule(tree.view()), "") << "tree " << i;
        // The first nodes of a tree are the tree of that size.
        const int32_t nodes = 1 + static_cast<int32_t>(random.below(kMaxTreeNodes));
        build_tree(lattice.view(), 0, nodes, smaller.view(), scratch);
        truncate_tree(tree.view(), nodes);
        ASSERT_EQ(*tree.view().count, *smaller.view().count);
        ASSERT_EQ(broken_rule(tree.view()), "");
        for (int32_t n = 0; n < *smaller.view().count; ++n) {
            ASSERT_EQ(tree.view().token[n], smaller.view().token[n]);
            ASSERT_EQ(tree.view().parent[n], smaller.view().parent[n]);
        }
    }
}

TEST(BuildTree, EmptyLatticeLeavesTheRoot) {
    LatticeStorage lattice(2, 2);
    TreeStorage tree(5);
    TreeScratch scratch;
    build_tree(lattice.view(), 42, 5, tree.view(), scratch);
    EXPECT_EQ(*tree.view().count, 1);
    EXPECT_EQ(tree.view().token[0], 42);
    EXPECT_EQ(broken_rule(tree.view()), "");

    *lattice.view().depths = 2;  // depths without a state
    build_tree(lattice.view(), 42, 5, tree.view(), scratch);
    EXPECT_EQ(*tree.view().count, 1);

    LatticeStorage none(0, 0);
    build_tree(none.view(), 42, 5, tree.view(), scratch);
    EXPECT_EQ(*tree.view().count, 1);
}

// depth 0: states 0, 1, 2 (tokens 5, 6, 7); depth 1: states 0, 1 (tokens 8, 8).
LatticeView small_lattice(LatticeStorage& storage) {
    const LatticeView lattice = storage.view();
    *lattice.depths = 2;
    *lattice.has_edges = true;
    lattice.state_count[0] = 3;
    lattice.state_count[1] = 2;
    for (int32_t s = 0; s < 3; ++s) lattice.token[lattice.at(0, s)] = 5 + s;
    for (int32_t s = 0; s < 2; ++s) lattice.token[lattice.at(1, s)] = 8;
    std::fill_n(lattice.log_prob, 6, -1.0f);
    std::fill_n(lattice.edge, 18, -1.0f);
    return lattice;
}

TEST(BuildTree, OddEdges) {
    LatticeStorage storage(2, 3);
    const LatticeView lattice = small_lattice(storage);
    lattice.log_prob[lattice.at(0, 0)] = std::numeric_limits<float>::quiet_NaN();
    lattice.log_prob[lattice.at(0, 1)] = -kInfinity;
    lattice.log_prob[lattice.at(0, 2)] = 3.0f;
    lattice.edge[lattice.edge_at(1, 2, 0)] = -kInfinity;
    lattice.edge[lattice.edge_at(1, 2, 1)] = kInfinity;
    TreeStorage tree(9);
    TreeScratch scratch;
    build_tree(lattice, 1, 9, tree.view(), scratch);
    const TreeView view = tree.view();
    ASSERT_EQ(*view.count, 3);
    EXPECT_EQ(view.token[1], 7);
    EXPECT_EQ(view.token[2], 8);
    EXPECT_EQ(view.log_score[1], 0.0f);
    EXPECT_EQ(view.log_score[2], 0.0f);
}

TEST(BuildTree, DuplicateSiblingsHeavierStaysEqualKeepTheLowerState) {
    LatticeStorage storage(3, 3);
    LatticeView lattice = small_lattice(storage);
    lattice.edge[lattice.edge_at(1, 0, 0)] = -2.0f;
    lattice.edge[lattice.edge_at(1, 0, 1)] = -1.5f;
    *lattice.depths = 3;
    lattice.state_count[2] = 2;  // tokens 10, 11: which twin is the parent shows in their edges
    lattice.token[lattice.at(2, 0)] = 10;
    lattice.token[lattice.at(2, 1)] = 11;
    lattice.edge[lattice.edge_at(2, 0, 0)] = -0.25f;
    lattice.edge[lattice.edge_at(2, 0, 1)] = -kInfinity;
    lattice.edge[lattice.edge_at(2, 1, 0)] = -kInfinity;
    lattice.edge[lattice.edge_at(2, 1, 1)] = -0.5f;
    TreeStorage tree(20);
    TreeScratch scratch;
    build_tree(lattice, 1, 20, tree.view(), scratch);
    const TreeView view = tree.view();
    ASSERT_EQ(*view.count, 1 + 3 * 3);
    // Depth 0: tokens 5, 6, 7 by state (equal scores). Token 5 leads to state 1 of depth 1, the
    // others tie and lead to state 0.
    std::set<std::tuple<int32_t, int32_t, float>> leaves;
    for (int32_t n = 0; n < *view.count; ++n) {
        if (view.depth[n] != 3) continue;
        const int32_t first = view.parent[view.parent[n]];
        leaves.emplace(view.token[first], view.token[n], view.log_score[n]);
    }
    const std::set<std::tuple<int32_t, int32_t, float>> expected = {
        {5, 11, -3.0f}, {6, 10, -2.25f}, {7, 10, -2.25f}};
    EXPECT_EQ(leaves, expected);
}

TEST(BuildTree, CapacityAndMaxNodesLimit) {
    LatticeStorage storage(2, 3);
    const LatticeView lattice = small_lattice(storage);
    TreeStorage tree(4);
    TreeScratch scratch;
    build_tree(lattice, 1, 100, tree.view(), scratch);
    EXPECT_EQ(*tree.view().count, 4);
    build_tree(lattice, 1, 2, tree.view(), scratch);
    EXPECT_EQ(*tree.view().count, 2);
    TreeStorage roomy(kMaxTreeNodes);
    build_tree(lattice, 1, 100, roomy.view(), scratch);
    EXPECT_EQ(*roomy.view().count, 1 + 3 + 3);
    EXPECT_DEATH(build_tree(lattice, 1, 0, tree.view(), scratch), "at most 0 nodes");
    *lattice.depths = 3;
    EXPECT_DEATH(build_tree(lattice, 1, 4, tree.view(), scratch), "3 depths in a lattice for 2");
}

TEST(KeepBestChain, FollowsTheHeaviestChildren) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed + 3));
    RandomLattice random(kSeed + 3);
    LatticeStorage lattice(5, 4);
    TreeStorage tree(12);
    TreeScratch scratch;
    for (int i = 0; i < 2000; ++i) {
        random.fill({.depths = 5,
                     .edges = i % 2 == 0,
                     .quantum = i % 3 == 0 ? 0.5f : 0.0f,
                     .odd = i % 5 == 0 ? 0.3 : 0.0},
                    lattice.view());
        // The chain by definition: rank 0 from the root on.
        std::vector<Prefix> chain;
        const std::vector<Prefix> prefixes = all_prefixes(lattice.view());
        for (size_t p = 1, parent = 0; p < prefixes.size(); ++p) {
            if (prefixes[p].parent != static_cast<int32_t>(parent) || prefixes[p].rank != 0) {
                continue;
            }
            chain.push_back(prefixes[p]);
            parent = p;
        }
        keep_best_chain(lattice.view());
        build_tree(lattice.view(), 1, 12, tree.view(), scratch);
        const TreeView view = tree.view();
        ASSERT_EQ(*lattice.view().depths, static_cast<int32_t>(chain.size()));
        ASSERT_FALSE(*lattice.view().has_edges);
        ASSERT_EQ(*view.count, 1 + static_cast<int32_t>(chain.size())) << "lattice " << i;
        for (int32_t n = 1; n < *view.count; ++n) {
            const Prefix& link = chain[static_cast<size_t>(n) - 1];
            ASSERT_EQ(lattice.view().state_count[n - 1], 1);
            ASSERT_EQ(view.parent[n], n - 1);
            ASSERT_EQ(view.token[n], link.token);
            ASSERT_EQ(view.log_score[n], link.log_score) << "lattice " << i << " node " << n;
        }
    }
}

TEST(TruncateTree, NeverGrowsAndKeepsTheRoot) {
    LatticeStorage storage(2, 3);
    TreeStorage tree(9);
    TreeScratch scratch;
    build_tree(small_lattice(storage), 1, 5, tree.view(), scratch);
    truncate_tree(tree.view(), 100);
    EXPECT_EQ(*tree.view().count, 5);
    truncate_tree(tree.view(), 1);
    EXPECT_EQ(*tree.view().count, 1);
    EXPECT_DEATH(truncate_tree(tree.view(), 0), "cut to 0 nodes");
}

}  // namespace
}  // namespace kd
