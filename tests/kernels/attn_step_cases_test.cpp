#include "kernels/cases/attn_step_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>

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

}  // namespace
}  // namespace kd
