#include "kernels/cases/attn_step_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>

#include "kernels/attn_plan/attn_plan_ref.h"
#include "kernels/attn_plan/attn_workspace.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_cases.h"
#include "kernels/attn_verify_mla/attn_verify_mla_cases.h"
#include "kernels/cases/attn_step_ref.h"

namespace kd {
namespace {

void expect_sound(const AttnStepCase& test, const AttnStep& step) {
    ASSERT_EQ(step.requests(), std::ssize(test.requests));
    ASSERT_LE(step.requests(), 64);
    ASSERT_EQ(std::ssize(step.ancestors), 2 * step.nodes());
    std::set<int64_t> slots;
    for (const CaseRow& row : step.rows) {
        ASSERT_GE(row.slot, 0);
        ASSERT_LT(row.slot, step.slots);
        ASSERT_TRUE(slots.insert(row.slot).second) << "slot " << row.slot << " has two rows";
    }
    const kdt_attn_batch batch = step.batch();
    for (int32_t r = 0; r < step.requests(); ++r) {
        const int32_t first = step.node_start[static_cast<size_t>(r)];
        ASSERT_LE(batch.node_start[r + 1] - first, 128);
        for (int32_t node = first; node < batch.node_start[r + 1]; ++node) {
            const auto at = static_cast<size_t>(node);
            // As many ancestors, itself included, as its depth says.
            ASSERT_EQ(
                std::popcount(step.ancestors[2 * at]) + std::popcount(step.ancestors[2 * at + 1]),
                step.depth[at] + 1);
            if (node % 17 != 0) continue;
            const std::vector<int64_t> seen = attn_visible_slots(batch, 0, node);
            ASSERT_EQ(std::ssize(seen), batch.context[r] + step.depth[at] + 1);
            for (const int64_t slot : seen) ASSERT_TRUE(slots.contains(slot));
        }
    }
}

TEST(AttnStepCases, AreSound) {
    std::set<std::string> names;
    for (const AttnVerifyMlaCase& test : attn_verify_mla_cases()) {
        SCOPED_TRACE(test.name);
        EXPECT_TRUE(names.insert(test.name).second);
        const AttnVerifyMlaInputs in = make_attn_verify_mla_inputs(test);
        EXPECT_EQ(in.tensors.q_latent_head_stride % 8, 0);
        EXPECT_EQ(in.tensors.kv_slot_stride * (test.format == KDT_KV_BF16 ? 2 : 1) % 16, 0);
        expect_sound(test.step, in.step);
    }
    names.clear();
    for (const AttnVerifyGqaCudaCase& test : attn_verify_gqa_cuda_cases()) {
        SCOPED_TRACE(test.name);
        EXPECT_TRUE(names.insert(test.name).second);
        EXPECT_EQ(test.heads % test.kv_heads, 0);
        EXPECT_LE(test.heads / test.kv_heads, 16);
        EXPECT_LE(test.heads, 128);
        expect_sound(test.step, make_attn_verify_gqa_cuda_inputs(test).step);
    }
}

TEST(AttnStepCases, FarSlotsLieBeyond32Bits) {
    for (const AttnVerifyMlaCase& test : attn_verify_mla_cases()) {
        if (test.step.pages != CasePages::far) continue;
        const AttnVerifyMlaInputs in = make_attn_verify_mla_inputs(test);
        int64_t beyond = 0;
        for (const CaseRow& row : in.step.rows) beyond += row.slot * 576 > INT32_MAX ? 1 : 0;
        EXPECT_GT(beyond, std::ssize(in.step.rows) / 4) << test.name;
        EXPECT_LT(beyond, std::ssize(in.step.rows) * 3 / 4) << test.name;
    }
}

TEST(AttnStepCases, ReducedListsTouchEveryFormatAndDim) {
    std::set<int32_t> formats;
    for (const AttnVerifyMlaCase& test : attn_verify_mla_cases()) {
        if (test.reduced) formats.insert(test.format);
    }
    EXPECT_EQ(formats.size(), 3u);
    std::set<std::pair<int32_t, int32_t>> instances;
    for (const AttnVerifyGqaCudaCase& test : attn_verify_gqa_cuda_cases()) {
        if (test.reduced) instances.insert({test.head_dim, test.format});
    }
    EXPECT_EQ(instances.size(), 8u);
}

TEST(AttnStepCases, TreesRespectTheDepth) {
    CaseRandom random(1);
    for (int32_t deepest = 1; deepest < 20; ++deepest) {
        AttnStepCase test;
        test.requests = {{10, 100, CaseTree::random, CaseTail::light}};
        test.deepest = deepest;
        const AttnStep step = make_attn_step(test, 576);
        EXPECT_LE(step.deepest(), deepest);
    }
}

/// Of a plan of pairs, by the order of tiles in a block's ring (gqa_producer.cuh): tiles that pass
/// between two that a consumer group takes one after the other, at most.
int32_t most_tiles_passed(const AttnPlanResult& plan, const PlanShape& shape) {
    int32_t most = 0;
    for (int32_t block = 0; block < std::min(plan.header.runs, shape.multiprocessors); ++block) {
        int32_t before = 0;  // tiles of the block's pairs so far
        int32_t last[2] = {-1, -1};
        for (int32_t u = 2 * block; u < plan.header.units;) {
            const WorkUnit* pair = &plan.units[static_cast<size_t>(u)];
            int32_t tiles[2];
            for (int32_t g = 0; g < 2; ++g)
                tiles[g] = ceil_div(pair[g].key_end - pair[g].key_begin, shape.tile_keys);
            const bool same = pair[0].path_node < 0 && pair[0].key_begin == pair[1].key_begin &&
                              pair[0].key_end == pair[1].key_end;
            const int32_t by_turns = same ? 0 : std::min(tiles[0], tiles[1]);
            const int32_t all = same ? tiles[0] : tiles[0] + tiles[1];
            for (int32_t g = 0; g < 2; ++g) {
                if (tiles[g] == 0) continue;
                most = std::max(most, before + (by_turns > 0 ? g : 0) - last[g] - 1);
                last[g] = before + (tiles[g] > by_turns ? all : 2 * by_turns - 1 + g) - 1;
            }
            before += all;
            u = pair[0].next;
        }
    }
    return most;
}

TEST(AttnStepCases, OfUnevenPairsPassARingOfTiles) {
    constexpr int32_t kLongestRing = 12;
    int32_t cases = 0;
    for (const AttnVerifyGqaCudaCase& test : attn_verify_gqa_cuda_cases()) {
        if (!test.name.starts_with("uneven_pairs")) continue;
        SCOPED_TRACE(test.name);
        ++cases;
        const AttnVerifyGqaCudaInputs in = make_attn_verify_gqa_cuda_inputs(test);
        kdt_attn_shape shape = in.shape;
        shape.mode = KDT_ATTN_DETERMINISTIC;
        shape.max_depth = in.step.deepest();
        const AttnWorkspace workspace = attn_workspace(shape, in.step.requests(), in.step.nodes(),
                                                       in.step.context[0], 132, nullptr);
        const PlanShape plan =
            plan_shape(shape, workspace, in.step.nodes(), 132, AttnEngine::wgmma_sm90);
        const std::vector<int64_t> pages(in.step.context.size(), 0);
        EXPECT_GT(most_tiles_passed(attn_plan_ref(plan, {.context = in.step.context,
                                                         .node_start = in.step.node_start,
                                                         .depth = in.step.depth,
                                                         .pages_start = pages}),
                                    plan),
                  kLongestRing);
    }
    EXPECT_EQ(cases, 6);
}

}  // namespace
}  // namespace kd
