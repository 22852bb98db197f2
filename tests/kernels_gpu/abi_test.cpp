// The C ABI refuses what it must, naming the offending value.
#include <functional>
#include <string>

#include "attn_device.h"
#include "kdtree/kernels.h"

namespace kd {
namespace {

kdt_attn_shape mla() {
    kdt_attn_shape shape = {};
    shape.struct_bytes = sizeof shape;
    shape.heads = 8;
    shape.kv_heads = 1;
    shape.head_dim = 576;
    return shape;
}

kdt_attn_shape gqa() {
    kdt_attn_shape shape = mla();
    shape.kind = KDT_ATTN_GQA;
    shape.heads = 32;
    shape.kv_heads = 8;
    shape.head_dim = 128;
    return shape;
}

struct Refusal {
    const char* named;  // in the message
    std::function<void(kdt_attn_shape&)> change;
};

void expect_refused(const kdt_attn_shape& good, const std::vector<Refusal>& refusals) {
    for (const Refusal& refusal : refusals) {
        kdt_attn_shape shape = good;
        refusal.change(shape);
        size_t bytes = 0;
        EXPECT_EQ(kdt_attn_workspace_bytes(&shape, 1, 8, 100, &bytes), KDT_INVALID);
        EXPECT_NE(std::string(kdt_last_error()).find(refusal.named), std::string::npos)
            << kdt_last_error() << " does not name " << refusal.named;
    }
}

}  // namespace

TEST(Abi, RefusesShapes) {
    expect_refused(mla(), {{"struct_bytes is 4", [](auto& s) { s.struct_bytes = 4; }},
                           {"kind is 2", [](auto& s) { s.kind = 2; }},
                           {"heads is 129", [](auto& s) { s.heads = 129; }},
                           {"kv_heads (MLA) is 2", [](auto& s) { s.kv_heads = 2; }},
                           {"head_dim (MLA) is 512", [](auto& s) { s.head_dim = 512; }},
                           {"kv_format is 3", [](auto& s) { s.kv_format = 3; }},
                           {"mode is -1", [](auto& s) { s.mode = -1; }},
                           {"path is 3", [](auto& s) { s.path = 3; }},
                           {"splits is -1", [](auto& s) { s.splits = -1; }},
                           {"sliding_window (MLA) is 5", [](auto& s) { s.sliding_window = 5; }},
                           {"max_depth is 65", [](auto& s) {
                                s.mode = KDT_ATTN_DETERMINISTIC;
                                s.max_depth = 65;
                            }}});
    expect_refused(gqa(),
                   {{"kv_heads is 0", [](auto& s) { s.kv_heads = 0; }},
                    {"heads is 32", [](auto& s) { s.kv_heads = 5; }},
                    {"heads / kv_heads is 32", [](auto& s) { s.kv_heads = 1; }},
                    {"head_dim is 80", [](auto& s) { s.head_dim = 80; }},
                    {"KDT_KV_FP8_MLA656", [](auto& s) { s.kv_format = KDT_KV_FP8_MLA656; }}});
}

TEST(Abi, RefusesCapacitiesAndNull) {
    const kdt_attn_shape shape = mla();
    size_t bytes = 0;
    EXPECT_EQ(kdt_attn_workspace_bytes(&shape, 65, 8, 100, &bytes), KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "requests is 65, must be 1..64");
    EXPECT_EQ(kdt_attn_workspace_bytes(&shape, 1, -1, 100, &bytes), KDT_INVALID);
    EXPECT_EQ(kdt_attn_workspace_bytes(&shape, 1, 8, 300000, &bytes), KDT_INVALID);
    EXPECT_EQ(kdt_attn_workspace_bytes(nullptr, 1, 8, 100, &bytes), KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "shape is NULL");
    EXPECT_EQ(kdt_attn_workspace_bytes(&shape, 1, 8, 100, nullptr), KDT_INVALID);
}

TEST(Abi, RefusesRows) {
    kdt_rope_append_params rope = {};
    EXPECT_EQ(kdt_rope_append(&rope, nullptr), KDT_INVALID);
    EXPECT_NE(std::string(kdt_last_error()).find("struct_bytes is 0"), std::string::npos);
    rope.struct_bytes = sizeof rope;
    rope.heads = 8;
    rope.kv_heads = 1;
    rope.head_dim = 576;
    rope.rotated = 63;
    EXPECT_EQ(kdt_rope_append(&rope, nullptr), KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "rotated is 63, must be a multiple of 2");

    kdt_kv_move_params move = {};
    move.struct_bytes = sizeof move;
    move.buffers = 1;
    move.row_bytes = 24;
    EXPECT_EQ(kdt_kv_move(&move, nullptr), KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "row_bytes is 24, must be a multiple of 16");
}

using AbiGpu = GpuTest;

TEST_F(AbiGpu, RefusesBatchesAndTensors) {
    const kdt_attn_shape shape = mla();
    const DeviceArray<int32_t> ints(std::vector<int32_t>(2048));
    kdt_attn_batch batch = batch_at(ints.data(), 1, 8, 100);
    size_t bytes = 0;
    ASSERT_EQ(kdt_attn_workspace_bytes(&shape, 1, 8, 100, &bytes), KDT_OK) << kdt_last_error();
    const DeviceArray<uint8_t> memory((std::vector<uint8_t>(bytes)));
    void* workspace = memory.data();
    EXPECT_EQ(kdt_attn_plan(&shape, &batch, workspace, bytes, nullptr), KDT_OK) << kdt_last_error();
    EXPECT_EQ(kdt_attn_plan(&shape, &batch, workspace, bytes - 1, nullptr), KDT_INVALID);
    EXPECT_NE(std::string(kdt_last_error()).find(std::to_string(bytes - 1)), std::string::npos);
    EXPECT_EQ(kdt_attn_plan(&shape, &batch, memory.data() + 64, bytes, nullptr), KDT_INVALID);
    batch.page_size = 8;
    EXPECT_EQ(kdt_attn_plan(&shape, &batch, workspace, bytes, nullptr), KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "page_size is 8, must be 1, 16, 32 or 64");
    batch.page_size = 16;

    kdt_attn_mla_tensors tensors = {};
    tensors.struct_bytes = sizeof tensors;
    tensors.scale = 1;
    tensors.q_latent = tensors.q_rope = tensors.kv = tensors.out = workspace;
    tensors.q_latent_node_stride = 12;
    tensors.kv_slot_stride = 576;
    EXPECT_EQ(kdt_attn_verify_mla(&shape, &batch, &tensors, workspace, bytes, nullptr),
              KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "q_latent_node_stride is 12, must be a multiple of 8");
    tensors.q_latent_node_stride = 0;
    tensors.kv_slot_stride = 570;
    EXPECT_EQ(kdt_attn_verify_mla(&shape, &batch, &tensors, workspace, bytes, nullptr),
              KDT_INVALID);
    EXPECT_NE(std::string(kdt_last_error()).find("kv_slot_stride is 570"), std::string::npos);
    EXPECT_TRUE(ok(cudaDeviceSynchronize()));
}

}  // namespace kd
