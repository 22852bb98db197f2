// Once the scratch is warm, a round's decisions do not allocate.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "base/storage.h"
#include "core/accept.h"
#include "core/budget.h"
#include "core/tree.h"
#include "random_lattice.h"

namespace {
int64_t allocations = 0;
}  // namespace

// Replacements for the whole test program: count, then do what the default ones do. Not inlined:
// where GCC inlines a delete and not its new, it warns of a free that does not match.
void* operator new(size_t bytes) {
    ++allocations;
    if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
    ++allocations;
    return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}

namespace kd {
namespace {

TEST(Allocation, TheCounterCounts) {
    const int64_t before = allocations;
    const std::vector<int> values(3);
    EXPECT_EQ(allocations, before + 1);
}

TEST(Allocation, WarmRoundsDoNotAllocate) {
    RandomLattice random(3);
    LatticeStorage lattice(8, 8);
    TreeStorage tree(32);
    AcceptedStorage accepted(32);
    TreeScratch tree_scratch;
    SamplerScratch sampler_scratch;
    std::vector<float> logits(32 * 300);
    std::vector<double> draws(32);
    const MatrixView<const float> rows = {
        .data = logits.data(), .rows = 32, .columns = 300, .stride = 300};
    const CostTable cost = {.rows = {1, 64},
                            .contexts = {0, 1000},
                            .seconds = {1.0, 2.0, 1.5, 3.0},
                            .correction = {1.0, 1.0}};
    const std::vector<BudgetTree> trees = {{.tree = tree.view(), .context = 10}};
    TokenCounts counts(300, std::vector<int32_t>{1, 2, 3});
    const std::vector<LogitBias> bias = {{.token = 5, .bias = 1.0f}};
    const std::vector<int32_t> answer = {7, 8}, stop_ids = {9};
    const LogitMask mask = [](std::span<const int32_t>, std::span<uint32_t> allowed) {
        allowed[0] = ~2u;
    };
    std::vector<float> logprob(32);
    std::vector<TokenLogprob> most_likely(32 * 4);
    const WalkRules rules = {
        .counts = &counts,
        .answer = answer,
        .bias = bias,
        .stop_ids = stop_ids,
        .mask = &mask,
        .logprobs = {
            .top = 4, .logprob = logprob.data(), .most_likely = most_likely.data(), .stride = 4}};
    const SamplingParams params = {.temperature = 1.0f,
                                   .top_k = 9,
                                   .top_p = 0.8f,
                                   .repetition_penalty = 1.1f,
                                   .frequency_penalty = 0.1f,
                                   .min_tokens = 3};
    int64_t before = 0;
    for (int i = 0; i < 200; ++i) {
        // The first round warms the scratch with one depth and marginals: sizes come from the
        // capacities.
        random.fill({.depths = i == 0 ? 1 : 8, .states = 8, .edges = i % 2 == 1}, lattice.view());
        for (float& logit : logits) logit = static_cast<float>(random.unit());
        for (double& draw : draws) draw = random.unit();
        if (i == 1) before = allocations;
        build_tree(lattice.view(), 0, i == 0 ? 2 : 32, tree.view(), tree_scratch);
        choose_budget(trees, cost, 0, 0.1, 32);
        accept_tree(tree.view(), rows, params, draws, sampler_scratch, accepted.view(), rules);
    }
    EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace kd
