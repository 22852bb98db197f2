// Trees over plain arrays: the same as core's functions on random inputs, and every bad shape
// refused before a pointer is used.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "abi/abi_support.h"
#include "base/storage.h"
#include "core/accept.h"
#include "core/random_lattice.h"
#include "core/tree.h"

namespace kd {

namespace {

constexpr uint64_t kSeed = 11;

struct TreeArrays {
    std::vector<int32_t> token, parent, depth;
    std::vector<float> log_score;
    std::vector<uint64_t> ancestors;
    kdtree_tree tree = zeroed<kdtree_tree>();

    explicit TreeArrays(int32_t capacity)
        : token(static_cast<size_t>(capacity)),
          parent(token),
          depth(token),
          log_score(token.size()),
          ancestors(token.size() * kAncestorWords) {
        tree.capacity = capacity;
        tree.token = token.data();
        tree.parent = parent.data();
        tree.depth = depth.data();
        tree.log_score = log_score.data();
        tree.ancestors = ancestors.data();
    }
};

kdtree_lattice lattice_of(const LatticeView& view) {
    auto lattice = zeroed<kdtree_lattice>();
    lattice.depths = *view.depths;
    lattice.states = view.state_capacity;
    lattice.state_count = view.state_count;
    lattice.token = view.token;
    lattice.log_prob = view.log_prob;
    lattice.edge = *view.has_edges ? view.edge : nullptr;
    return lattice;
}

template <class T>
std::vector<T> first(const T* values, int32_t count) {
    const std::span<const T> part(values, static_cast<size_t>(count));
    return {part.begin(), part.end()};
}

TEST(TreeAbi, BuildsWhatCoreBuilds) {
    RandomLattice random(kSeed);
    TreeScratch scratch;
    for (int i = 0; i < 300; ++i) {
        const LatticeRecipe recipe = {.depths = 6,
                                      .states = 5,
                                      .vocabulary = i % 2 == 0 ? 4 : 1000,
                                      .edges = i % 3 != 0,
                                      .quantum = i % 5 == 0 ? 0.5f : 0.0f,
                                      .odd = 0.1};
        LatticeStorage storage(6, 5);
        random.fill(recipe, storage.view());
        const auto nodes = static_cast<int32_t>(1 + random.below(40));
        TreeStorage expected(40);
        build_tree(storage.view(), 7, nodes, expected.view(), scratch);
        const TreeView want = expected.view();

        TreeArrays got(40);
        const kdtree_lattice lattice = lattice_of(storage.view());
        ASSERT_EQ(kdtree_build_tree(&lattice, 7, nodes, &got.tree), KDTREE_OK)
            << kdtree_last_error();
        const int32_t count = got.tree.count;
        ASSERT_EQ(count, *want.count) << "seed " << kSeed << " case " << i;
        EXPECT_EQ(first(want.token, count), first(got.token.data(), count));
        EXPECT_EQ(first(want.parent, count), first(got.parent.data(), count));
        EXPECT_EQ(first(want.depth, count), first(got.depth.data(), count));
        EXPECT_EQ(first(want.log_score, count), first(got.log_score.data(), count));
        EXPECT_EQ(first(want.ancestors, count * kAncestorWords),
                  first(got.ancestors.data(), count * kAncestorWords));

        // Without the arrays that nobody wants.
        TreeArrays less(count);
        less.tree.depth = nullptr;
        less.tree.log_score = nullptr;
        less.tree.ancestors = nullptr;
        ASSERT_EQ(kdtree_build_tree(&lattice, 7, nodes, &less.tree), KDTREE_OK);
        ASSERT_EQ(less.tree.count, count);
        EXPECT_EQ(less.token, first(want.token, count));
    }
}

TEST(TreeAbi, AcceptsWhatCoreAccepts) {
    constexpr int32_t kVocabulary = 6;
    constexpr int64_t kStride = 9;
    RandomLattice random(kSeed);
    SamplerScratch scratch;
    int32_t longest = 0;
    for (int i = 0; i < 300; ++i) {
        LatticeStorage storage(6, 5);
        random.fill({.depths = 6, .states = 5, .vocabulary = kVocabulary}, storage.view());
        TreeArrays arrays(30);
        const kdtree_lattice lattice = lattice_of(storage.view());
        ASSERT_EQ(kdtree_build_tree(&lattice, 0, 30, &arrays.tree), KDTREE_OK);
        std::vector<float> logits(30 * kStride);
        for (float& logit : logits) logit = static_cast<float>(4 * random.unit());
        std::vector<double> draws(7);
        for (double& draw : draws) draw = random.unit();
        auto sampling = zeroed<kdtree_sampling>();
        sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
        sampling.top_k = i % 4 == 1 ? 3 : 0;

        int32_t count = arrays.tree.count;
        const TreeView view = {.capacity = 30,
                               .count = &count,
                               .token = arrays.token.data(),
                               .parent = arrays.parent.data()};
        AcceptedStorage expected(8);
        accept_tree(view,
                    {.data = logits.data(), .rows = 30, .columns = kVocabulary, .stride = kStride},
                    {.temperature = sampling.temperature, .top_k = sampling.top_k}, draws, scratch,
                    expected.view());
        const AcceptedView want = expected.view();

        std::vector<int32_t> path(8), emitted(8);
        auto accepted = zeroed<kdtree_accepted>();
        accepted.capacity = 8;
        accepted.path = path.data();
        accepted.emitted = emitted.data();
        ASSERT_EQ(
            kdtree_accept_tree(&arrays.tree, logits.data(), kVocabulary, kStride, &sampling,
                               i % 2 == 0 ? nullptr : draws.data(), i % 2 == 0 ? 0 : 7, &accepted),
            KDTREE_OK)
            << kdtree_last_error();
        ASSERT_EQ(accepted.count, *want.count) << "seed " << kSeed << " case " << i;
        EXPECT_EQ(first(want.path, accepted.count), first(path.data(), accepted.count));
        EXPECT_EQ(first(want.emitted, accepted.count), first(emitted.data(), accepted.count));
        longest = std::max(longest, accepted.count);
    }
    EXPECT_GE(longest, 4);  // the walks did descend
}

struct BuildArguments {
    int32_t counts[2] = {1, 2};
    int32_t tokens[4] = {1, 0, 2, 3};
    float log_probs[4] = {-1, 0, -2, -3};
    kdtree_lattice lattice = zeroed<kdtree_lattice>();
    TreeArrays out = TreeArrays(8);
    int32_t max_nodes = 8;

    BuildArguments() {
        lattice.depths = 2;
        lattice.states = 2;
        lattice.state_count = counts;
        lattice.token = tokens;
        lattice.log_prob = log_probs;
    }
    kdtree_status build() { return kdtree_build_tree(&lattice, 0, max_nodes, &out.tree); }
};

TEST(TreeAbi, BadBuildsAreRefused) {
    ASSERT_EQ(BuildArguments().build(), KDTREE_OK);
    using Change = void (*)(BuildArguments&);
    const Change changes[] = {
        [](BuildArguments& a) { a.lattice.struct_bytes = 1; },
        [](BuildArguments& a) { a.out.tree.struct_bytes = 1; },
        [](BuildArguments& a) { a.lattice.depths = -1; },
        [](BuildArguments& a) { a.lattice.depths = 65; },
        [](BuildArguments& a) { a.lattice.states = 0; },
        [](BuildArguments& a) { a.lattice.states = 65; },
        [](BuildArguments& a) { a.counts[1] = 3; },
        [](BuildArguments& a) { a.counts[0] = -1; },
        [](BuildArguments& a) { a.lattice.state_count = nullptr; },
        [](BuildArguments& a) { a.lattice.token = nullptr; },
        [](BuildArguments& a) { a.lattice.log_prob = nullptr; },
        [](BuildArguments& a) { a.max_nodes = 0; },
        [](BuildArguments& a) { a.max_nodes = 129; },
        [](BuildArguments& a) { a.out.tree.capacity = 0; },
        [](BuildArguments& a) { a.out.tree.token = nullptr; },
        [](BuildArguments& a) { a.out.tree.parent = nullptr; },
    };
    for (size_t i = 0; i < std::size(changes); ++i) {
        BuildArguments arguments;
        changes[i](arguments);
        EXPECT_EQ(arguments.build(), KDTREE_INVALID) << "change " << i;
    }
    BuildArguments arguments;
    EXPECT_EQ(kdtree_build_tree(nullptr, 0, 8, &arguments.out.tree), KDTREE_INVALID);
    EXPECT_EQ(kdtree_build_tree(&arguments.lattice, 0, 8, nullptr), KDTREE_INVALID);
    arguments.lattice = zeroed<kdtree_lattice>();  // no depths: a tree of the root
    arguments.lattice.states = 1;
    ASSERT_EQ(arguments.build(), KDTREE_OK);
    EXPECT_EQ(arguments.out.tree.count, 1);
}

struct AcceptArguments {
    TreeArrays given = TreeArrays(3);
    float logits[3 * 4] = {0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    double draws[3] = {0.5, 0.5, 0.5};
    int32_t path[3] = {-7, -7, -7};
    int32_t emitted[3] = {-7, -7, -7};
    const float* rows = logits;
    const double* draw_values = draws;
    int32_t vocabulary = 4;
    int64_t stride = 4;
    int32_t draw_count = 3;
    kdtree_sampling sampling = zeroed<kdtree_sampling>();
    kdtree_accepted accepted = zeroed<kdtree_accepted>();

    AcceptArguments() {
        given.tree.count = 3;
        given.token = {0, 1, 2};
        given.parent = {-1, 0, 1};
        given.tree.token = given.token.data();
        given.tree.parent = given.parent.data();
        sampling.temperature = 1;
        accepted.capacity = 3;
        accepted.path = path;
        accepted.emitted = emitted;
    }
    kdtree_status accept() {
        return kdtree_accept_tree(&given.tree, rows, vocabulary, stride, &sampling, draw_values,
                                  draw_count, &accepted);
    }
};

TEST(TreeAbi, BadAcceptancesAreRefused) {
    AcceptArguments good;
    ASSERT_EQ(good.accept(), KDTREE_OK);
    using Change = void (*)(AcceptArguments&);
    const Change changes[] = {
        [](AcceptArguments& a) { a.given.tree.struct_bytes = 1; },
        [](AcceptArguments& a) { a.sampling.struct_bytes = 1; },
        [](AcceptArguments& a) { a.accepted.struct_bytes = 1; },
        [](AcceptArguments& a) { a.given.tree.count = 0; },
        [](AcceptArguments& a) { a.given.tree.count = 4; },
        [](AcceptArguments& a) { a.given.tree.count = a.given.tree.capacity = 1 << 30; },
        [](AcceptArguments& a) { a.given.tree.token = nullptr; },
        [](AcceptArguments& a) { a.given.tree.parent = nullptr; },
        [](AcceptArguments& a) { a.given.parent[0] = 0; },
        [](AcceptArguments& a) { a.given.parent[1] = -1; },
        [](AcceptArguments& a) { a.given.parent[2] = 2; },
        [](AcceptArguments& a) { a.rows = nullptr; },
        [](AcceptArguments& a) { a.vocabulary = 0; },
        [](AcceptArguments& a) { a.vocabulary = INT32_MAX; },
        [](AcceptArguments& a) { a.stride = 3; },
        [](AcceptArguments& a) { a.stride = INT64_MAX; },
        [](AcceptArguments& a) { a.draw_values = nullptr; },
        [](AcceptArguments& a) { a.draw_count = 2; },
        [](AcceptArguments& a) { a.draws[1] = 1; },
        [](AcceptArguments& a) { a.draws[1] = NAN; },
        [](AcceptArguments& a) { a.sampling.temperature = -1; },
        [](AcceptArguments& a) { a.sampling.repetition_penalty = 1.5f; },
        [](AcceptArguments& a) { a.accepted.capacity = 2; },
        [](AcceptArguments& a) { a.accepted.path = nullptr; },
        [](AcceptArguments& a) { a.accepted.emitted = nullptr; },
        [](AcceptArguments& a) { std::fill_n(a.logits, 12, NAN); },
    };
    for (size_t i = 0; i < std::size(changes); ++i) {
        AcceptArguments arguments;
        changes[i](arguments);
        EXPECT_EQ(arguments.accept(), KDTREE_INVALID) << "change " << i;
        EXPECT_EQ(arguments.path[0], -7) << "change " << i;
    }
    AcceptArguments arguments;
    EXPECT_EQ(kdtree_accept_tree(nullptr, arguments.logits, 4, 4, &arguments.sampling,
                                 arguments.draws, 3, &arguments.accepted),
              KDTREE_INVALID);
    EXPECT_EQ(kdtree_accept_tree(&arguments.given.tree, arguments.logits, 4, 4, nullptr,
                                 arguments.draws, 3, &arguments.accepted),
              KDTREE_INVALID);
    EXPECT_EQ(kdtree_accept_tree(&arguments.given.tree, arguments.logits, 4, 4, &arguments.sampling,
                                 arguments.draws, 3, nullptr),
              KDTREE_INVALID);
}

}  // namespace

}  // namespace kd
