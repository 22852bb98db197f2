// Preconditions of the attention calls: each is refused with the offending value in the message,
// and nothing is launched.
#include <functional>
#include <limits>

#include "attn_device.h"

namespace kd {
namespace {

/// Arguments of a sound call that a test spoils. Device pointers are real but never read.
struct Call {
    kdt_attn_shape shape;
    kdt_attn_batch batch;
    kdt_attn_mla_tensors mla;
    kdt_attn_gqa_tensors gqa;
    void* workspace;
    size_t workspace_bytes;
};

struct Refusal {
    const char* name;
    std::function<void(Call&)> spoil;
    const char* value;  // stands in the message
};

class AttnErrors : public AttnGpuTest {
  protected:
    /// A sound call; `memory` is large and aligned.
    static Call sound(kdt_attn_kind kind, const DeviceBytes& memory) {
        Call call{};
        call.shape = {.struct_bytes = sizeof(kdt_attn_shape),
                      .kind = kind,
                      .heads = 8,
                      .kv_heads = kind == KDT_ATTN_MLA ? 1 : 2,
                      .head_dim = kind == KDT_ATTN_MLA ? 576 : 128,
                      .kv_format = KDT_KV_BF16,
                      .mode = KDT_ATTN_FAST,
                      .path = KDT_PATH_AUTO,
                      .max_depth = 0,
                      .sliding_window = 0,
                      .splits = 0};
        std::byte* at = memory.data();
        call.batch = batch_at(at, 2, 8, 1000);
        call.mla = {.struct_bytes = sizeof(kdt_attn_mla_tensors),
                    .scale = 0.1f,
                    .logit_cap = 0,
                    .kv_scale = 1,
                    .q_latent = at,
                    .q_rope = at,
                    .q_latent_node_stride = 8 * 512,
                    .q_latent_head_stride = 512,
                    .q_rope_node_stride = 8 * 64,
                    .q_rope_head_stride = 64,
                    .kv = at,
                    .kv_slot_stride = 576,
                    .out = at,
                    .lse = reinterpret_cast<float*>(at)};
        call.gqa = {.struct_bytes = sizeof(kdt_attn_gqa_tensors),
                    .scale = 0.1f,
                    .logit_cap = 0,
                    .k_scale = 1,
                    .v_scale = 1,
                    .q = at,
                    .q_node_stride = 8 * 128,
                    .q_head_stride = 128,
                    .k = at,
                    .v = at,
                    .kv_slot_stride = 2 * 128,
                    .kv_head_stride = 128,
                    .out = at,
                    .lse = reinterpret_cast<float*>(at)};
        call.workspace = at;
        call.workspace_bytes = static_cast<size_t>(memory.bytes());
        return call;
    }

    static kdt_status verify(const Call& call) {
        if (call.shape.kind == KDT_ATTN_MLA) {
            return kdt_attn_verify_mla(&call.shape, &call.batch, &call.mla, call.workspace,
                                       call.workspace_bytes, nullptr);
        }
        return kdt_attn_verify_gqa(&call.shape, &call.batch, &call.gqa, call.workspace,
                                   call.workspace_bytes, nullptr);
    }

    /// The call is refused, by name and value.
    static void expect_refused(kdt_status status, const Refusal& refusal) {
        EXPECT_EQ(status, KDT_INVALID);
        const std::string message = kdt_last_error();
        EXPECT_NE(message.find(refusal.value), std::string::npos)
            << "no \"" << refusal.value << "\" in \"" << message << "\"";
    }

    /// Nothing ran: the memory that all pointers point to still holds poison.
    static void expect_untouched(const DeviceBytes& memory) {
        std::vector<uint8_t> bytes(static_cast<size_t>(memory.bytes()));
        ASSERT_TRUE(ok(cudaDeviceSynchronize()));
        ASSERT_TRUE(
            ok(cudaMemcpy(bytes.data(), memory.data(), bytes.size(), cudaMemcpyDeviceToHost)));
        EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0xff; }));
    }

    /// A workspace of the sound calls' size.
    static int64_t enough() {
        int64_t most = 0;
        for (const kdt_attn_kind kind : {KDT_ATTN_MLA, KDT_ATTN_GQA}) {
            const DeviceBytes none(256);
            const Call call = sound(kind, none);
            size_t bytes = 0;
            EXPECT_EQ(kdt_attn_workspace_bytes(&call.shape, 64, 8192, 262144, &bytes), KDT_OK)
                << kdt_last_error();
            most = std::max(most, static_cast<int64_t>(bytes));
        }
        return most;
    }
};

const Refusal kShapeRefusals[] = {
    {"shape size", [](Call& c) { c.shape.struct_bytes = 7; }, "is 7"},
    {"kind", [](Call& c) { c.shape.kind = 4; }, "is 4"},
    {"no heads", [](Call& c) { c.shape.heads = 0; }, "is 0"},
    {"heads", [](Call& c) { c.shape.heads = 129; }, "is 129"},
    {"format", [](Call& c) { c.shape.kv_format = 5; }, "is 5"},
    {"mode", [](Call& c) { c.shape.mode = 9; }, "is 9"},
    {"path", [](Call& c) { c.shape.path = -3; }, "is -3"},
    {"window", [](Call& c) { c.shape.sliding_window = -11; }, "is -11"},
    {"splits", [](Call& c) { c.shape.splits = -2; }, "is -2"},
    {"head_dim", [](Call& c) { c.shape.head_dim = 77; }, "is 77"},
    {"depth",
     [](Call& c) {
         c.shape.mode = KDT_ATTN_DETERMINISTIC;
         c.shape.max_depth = 65;
     },
     "is 65"},
};

const Refusal kMlaShapeRefusals[] = {
    {"kv_heads", [](Call& c) { c.shape.kv_heads = 2; }, "is 2"},
    {"head_dim", [](Call& c) { c.shape.head_dim = 512; }, "is 512"},
};

const Refusal kGqaShapeRefusals[] = {
    {"kv_heads", [](Call& c) { c.shape.kv_heads = 3; }, "kv_heads 3"},
    {"no kv_heads", [](Call& c) { c.shape.kv_heads = 0; }, "is 0"},
    {"group",
     [](Call& c) {
         c.shape.heads = 68;
         c.shape.kv_heads = 4;
     },
     "is 17"},
    {"format", [](Call& c) { c.shape.kv_format = KDT_KV_FP8_MLA656; }, "is 2"},
};

const Refusal kBatchRefusals[] = {
    {"batch size", [](Call& c) { c.batch.struct_bytes = 24; }, "is 24"},
    {"no requests", [](Call& c) { c.batch.requests = 0; }, "is 0"},
    {"requests", [](Call& c) { c.batch.requests = 65; }, "is 65"},
    {"nodes", [](Call& c) { c.batch.max_nodes = -5; }, "is -5"},
    {"context", [](Call& c) { c.batch.max_context = 262145; }, "is 262145"},
    {"negative context", [](Call& c) { c.batch.max_context = -1; }, "is -1"},
    {"page size", [](Call& c) { c.batch.page_size = 48; }, "is 48"},
    {"no contexts", [](Call& c) { c.batch.context = nullptr; }, "context is NULL"},
    {"no node_start", [](Call& c) { c.batch.node_start = nullptr; }, "node_start is NULL"},
    {"no tail_slots", [](Call& c) { c.batch.tail_slots = nullptr; }, "tail_slots is NULL"},
    {"no ancestors", [](Call& c) { c.batch.ancestors = nullptr; }, "ancestors is NULL"},
    {"no pages", [](Call& c) { c.batch.pages = nullptr; }, "pages is NULL"},
    {"no depth",
     [](Call& c) {
         c.shape.mode = KDT_ATTN_DETERMINISTIC;
         c.batch.depth = nullptr;
     },
     "depth"},
    {"stride", [](Call& c) { c.batch.pages_stride = -70; }, "is -70"},
    {"no workspace", [](Call& c) { c.workspace = nullptr; }, "workspace is NULL"},
    {"workspace alignment",
     [](Call& c) { c.workspace = static_cast<std::byte*>(c.workspace) + 16; }, "workspace"},
    {"workspace size", [](Call& c) { c.workspace_bytes = 1234; }, "is 1234"},
};

const Refusal kMlaRefusals[] = {
    {"size", [](Call& c) { c.mla.struct_bytes = 3; }, "is 3"},
    {"cap", [](Call& c) { c.mla.logit_cap = -1.5f; }, "is -1.5"},
    {"scale", [](Call& c) { c.mla.scale = std::numeric_limits<float>::quiet_NaN(); }, "is nan"},
    {"no q_latent", [](Call& c) { c.mla.q_latent = nullptr; }, "q_latent is NULL"},
    {"no q_rope", [](Call& c) { c.mla.q_rope = nullptr; }, "q_rope is NULL"},
    {"no kv", [](Call& c) { c.mla.kv = nullptr; }, "kv is NULL"},
    {"no out", [](Call& c) { c.mla.out = nullptr; }, "out is NULL"},
    {"latent node stride", [](Call& c) { c.mla.q_latent_node_stride = 4097; }, "is 4097"},
    {"latent head stride", [](Call& c) { c.mla.q_latent_head_stride = 516; }, "is 516"},
    {"rope node stride", [](Call& c) { c.mla.q_rope_node_stride = 513; }, "is 513"},
    {"rope head stride", [](Call& c) { c.mla.q_rope_head_stride = 68; }, "is 68"},
    {"slot stride", [](Call& c) { c.mla.kv_slot_stride = 577; }, "is 577"},
    {"short slot stride", [](Call& c) { c.mla.kv_slot_stride = 568; }, "is 568"},
    {"kv alignment", [](Call& c) { c.mla.kv = static_cast<const std::byte*>(c.mla.kv) + 8; }, "kv"},
};

const Refusal kGqaRefusals[] = {
    {"size", [](Call& c) { c.gqa.struct_bytes = 3; }, "is 3"},
    {"cap", [](Call& c) { c.gqa.logit_cap = -1.5f; }, "is -1.5"},
    {"no q", [](Call& c) { c.gqa.q = nullptr; }, "q is NULL"},
    {"no k", [](Call& c) { c.gqa.k = nullptr; }, "k is NULL"},
    {"no v", [](Call& c) { c.gqa.v = nullptr; }, "v is NULL"},
    {"no out", [](Call& c) { c.gqa.out = nullptr; }, "out is NULL"},
    {"node stride", [](Call& c) { c.gqa.q_node_stride = 1025; }, "is 1025"},
    {"head stride", [](Call& c) { c.gqa.q_head_stride = 132; }, "is 132"},
    {"slot stride", [](Call& c) { c.gqa.kv_slot_stride = 257; }, "is 257"},
    {"kv head stride", [](Call& c) { c.gqa.kv_head_stride = 129; }, "is 129"},
};

TEST_F(AttnErrors, OfShapes) {
    const DeviceBytes memory(enough());
    for (const kdt_attn_kind kind : {KDT_ATTN_MLA, KDT_ATTN_GQA}) {
        std::vector<Refusal> refusals(std::begin(kShapeRefusals), std::end(kShapeRefusals));
        if (kind == KDT_ATTN_MLA) {
            refusals.insert(refusals.end(), std::begin(kMlaShapeRefusals),
                            std::end(kMlaShapeRefusals));
        } else {
            refusals.insert(refusals.end(), std::begin(kGqaShapeRefusals),
                            std::end(kGqaShapeRefusals));
        }
        for (const Refusal& refusal : refusals) {
            SCOPED_TRACE(refusal.name);
            Call call = sound(kind, memory);
            refusal.spoil(call);
            size_t bytes = 0;
            expect_refused(kdt_attn_workspace_bytes(&call.shape, 2, 8, 1000, &bytes), refusal);
            expect_refused(kdt_attn_plan(&call.shape, &call.batch, call.workspace,
                                         call.workspace_bytes, nullptr),
                           refusal);
        }
    }
    expect_untouched(memory);
}

TEST_F(AttnErrors, OfBatches) {
    const DeviceBytes memory(enough());
    for (const kdt_attn_kind kind : {KDT_ATTN_MLA, KDT_ATTN_GQA}) {
        for (const Refusal& refusal : kBatchRefusals) {
            SCOPED_TRACE(refusal.name);
            Call call = sound(kind, memory);
            refusal.spoil(call);
            expect_refused(kdt_attn_plan(&call.shape, &call.batch, call.workspace,
                                         call.workspace_bytes, nullptr),
                           refusal);
            expect_refused(verify(call), refusal);
        }
    }
    expect_untouched(memory);
}

TEST_F(AttnErrors, OfTensors) {
    const DeviceBytes memory(enough());
    for (const Refusal& refusal : kMlaRefusals) {
        SCOPED_TRACE(refusal.name);
        Call call = sound(KDT_ATTN_MLA, memory);
        refusal.spoil(call);
        expect_refused(verify(call), refusal);
    }
    for (const Refusal& refusal : kGqaRefusals) {
        SCOPED_TRACE(refusal.name);
        Call call = sound(KDT_ATTN_GQA, memory);
        refusal.spoil(call);
        expect_refused(verify(call), refusal);
    }
    expect_untouched(memory);
}

TEST_F(AttnErrors, OfMissingStructs) {
    const DeviceBytes memory(enough());
    const Call call = sound(KDT_ATTN_MLA, memory);
    size_t bytes = 0;
    EXPECT_EQ(kdt_attn_workspace_bytes(nullptr, 2, 8, 1000, &bytes), KDT_INVALID);
    EXPECT_EQ(kdt_attn_workspace_bytes(&call.shape, 2, 8, 1000, nullptr), KDT_INVALID);
    EXPECT_EQ(kdt_attn_plan(&call.shape, nullptr, call.workspace, call.workspace_bytes, nullptr),
              KDT_INVALID);
    EXPECT_EQ(kdt_attn_verify_mla(&call.shape, &call.batch, nullptr, call.workspace,
                                  call.workspace_bytes, nullptr),
              KDT_INVALID);
    // The other kind's entry point.
    EXPECT_EQ(kdt_attn_verify_gqa(&call.shape, &call.batch, &call.gqa, call.workspace,
                                  call.workspace_bytes, nullptr),
              KDT_INVALID);
    EXPECT_STRNE(kdt_last_error(), "");
    expect_untouched(memory);
}

TEST_F(AttnErrors, TheLibrarySaysWhatItIs) {
    EXPECT_EQ(kdt_kernels_abi(), KDT_KERNELS_ABI);
    EXPECT_STRNE(kdt_kernels_version(), "");
}

TEST_F(AttnErrors, WorkspaceGrowsWithTheStep) {
    const DeviceBytes memory(256);
    for (const kdt_attn_mode mode : {KDT_ATTN_FAST, KDT_ATTN_DETERMINISTIC}) {
        Call call = sound(KDT_ATTN_MLA, memory);
        call.shape.mode = mode;
        call.shape.max_depth = 16;
        size_t small = 0;
        size_t large = 0;
        EXPECT_EQ(kdt_attn_workspace_bytes(&call.shape, 1, 1, 0, &small), KDT_OK);
        EXPECT_EQ(kdt_attn_workspace_bytes(&call.shape, 64, 4096, 65536, &large), KDT_OK);
        EXPECT_GT(small, 0u);
        EXPECT_GE(large, small);
    }
}

TEST_F(AttnErrors, FastModeIgnoresTheDepth) {
    AttnVerifyGqaCudaCase test;
    test.step.requests = {{300, 9, CaseTree::random, CaseTail::heavy}};
    AttnDeviceCase on_device(make_attn_verify_gqa_cuda_inputs(test));
    for (const int32_t depth : {-20, std::numeric_limits<int32_t>::min()}) {
        SCOPED_TRACE(depth);
        kdt_attn_shape shape = on_device.shape();
        shape.max_depth = depth;
        const AttnRun run = run_attn(on_device, shape);
        ASSERT_EQ(run.status, KDT_OK) << run.message;
        EXPECT_TRUE(on_device.agrees(run.out, run.lse));
    }
}

}  // namespace
}  // namespace kd
