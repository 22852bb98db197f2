// Attention starts while the kernel before it still runs: what that kernel writes, the queries and
// the cache rows of the tree's nodes, is read only when it has finished.
#include "attn_device.h"

namespace kd {
namespace {

class AttnOverlap : public AttnGpuTest {};

void expect_waits(AttnDeviceCase& on_device) {
    for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
        std::optional<kdt_attn_shape> shape = shape_of(on_device, path, mode);
        ASSERT_TRUE(shape);
        shape->splits = 1;  // units of several tiles, whichever of them the nodes are in
        const AttnRun expected = run_attn(on_device, *shape);
        if (expected.status == KDT_UNSUPPORTED) return;
        ASSERT_EQ(expected.status, KDT_OK) << expected.message;

        const kdt_attn_batch batch = on_device.batch(true);
        size_t bytes = 0;
        ASSERT_EQ(kdt_attn_workspace_bytes(&*shape, batch.requests, batch.max_nodes,
                                           batch.max_context, &bytes),
                  KDT_OK);
        const AttnScratch scratch(bytes);
        const AttnOutputs outputs(on_device.rows(), on_device.value_dim());
        ASSERT_EQ(on_device.plan(*shape, batch, scratch, nullptr), KDT_OK);
        for (int32_t i = 0; i < 3; ++i) {
            on_device.rewrite_late(nullptr);
            ASSERT_EQ(on_device.verify(*shape, batch, outputs, true, scratch, nullptr), KDT_OK);
            EXPECT_TRUE(outputs.read_out(on_device.rows()) == expected.out) << i;
            EXPECT_TRUE(outputs.read_lse(on_device.rows()) == expected.lse) << i;
        }
    });
}

AttnStepCase few_tiles() {
    AttnStepCase step;
    step.requests = {{300, 9, CaseTree::random, CaseTail::light},
                     {40, 100, CaseTree::random, CaseTail::heavy},
                     {0, 3, CaseTree::chain, CaseTail::light}};
    step.deepest = 8;
    return step;
}

AttnStepCase few_rows() {
    AttnStepCase step;
    step.requests = {{300, 2, CaseTree::random, CaseTail::light},
                     {0, 1, CaseTree::chain, CaseTail::light}};
    return step;
}

TEST_F(AttnOverlap, MlaWaitsForQueriesAndNodes) {
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8, KDT_KV_FP8_MLA656}) {
        for (const int32_t heads : {1, 5, 10, 16}) {
            SCOPED_TRACE(testing::Message() << "format " << format << ", heads " << heads);
            AttnVerifyMlaCase test;
            test.heads = heads;
            test.format = format;
            test.step = heads == 5 || heads == 10 ? few_rows() : few_tiles();
            AttnDeviceCase on_device(make_attn_verify_mla_inputs(test));
            expect_waits(on_device);
        }
    }
}

TEST_F(AttnOverlap, GqaWaitsForQueriesAndNodes) {
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8}) {
        for (const int32_t dim : {64, 96, 128, 256}) {
            SCOPED_TRACE(testing::Message() << "format " << format << ", dim " << dim);
            AttnVerifyGqaCudaCase test;
            test.head_dim = dim;
            test.format = format;
            test.step = few_tiles();
            AttnDeviceCase on_device(make_attn_verify_gqa_cuda_inputs(test));
            expect_waits(on_device);
        }
    }
}

}  // namespace
}  // namespace kd
