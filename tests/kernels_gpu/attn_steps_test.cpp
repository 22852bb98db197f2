// Tree-verify attention as a server uses it: captured once and replayed for every step, cut into
// any number of parts, repeated thousands of times.
#include <algorithm>
#include <string>
#include <vector>

#include "attn_device.h"
#include "attn_reference.h"

namespace kd {
namespace {

class Stream {
  public:
    Stream() { EXPECT_TRUE(ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking))); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator cudaStream_t() const { return stream_; }

  private:
    cudaStream_t stream_ = nullptr;
};

/// The same requests with shorter contexts and fewer nodes.
AttnStep shrunk(const AttnStep& full, const std::vector<int32_t>& context,
                const std::vector<int32_t>& nodes) {
    AttnStep step = full;
    step.context = context;
    step.node_start = {0};
    step.tail_slots.clear();
    step.ancestors.clear();
    step.depth.clear();
    for (size_t r = 0; r < context.size(); ++r) {
        const auto first = static_cast<size_t>(full.node_start[r]);
        for (size_t i = first; i < first + static_cast<size_t>(nodes[r]); ++i) {
            step.tail_slots.push_back(full.tail_slots[i]);
            step.ancestors.push_back(full.ancestors[2 * i]);
            step.ancestors.push_back(full.ancestors[2 * i + 1]);
            step.depth.push_back(full.depth[i]);
        }
        step.node_start.push_back(static_cast<int32_t>(step.tail_slots.size()));
    }
    return step;
}

class AttnGraphs : public AttnGpuTest {};

/// Captures plan and verify for the whole step and replays them for every smaller tree, with
/// contexts at and between the edges of tiles and pages.
void replay_smaller_steps(AttnDeviceCase& on_device, kdt_attn_path path, kdt_attn_mode mode) {
    const AttnStep full = on_device.step();
    const std::optional<kdt_attn_shape> shape = shape_of(on_device, path, mode);
    ASSERT_TRUE(shape);
    if (!served(on_device, *shape)) return;
    const kdt_attn_batch batch = on_device.batch(true);
    const int64_t most_rows = on_device.rows();
    size_t bytes = 0;
    ASSERT_EQ(kdt_attn_workspace_bytes(&*shape, batch.requests, batch.max_nodes, batch.max_context,
                                       &bytes),
              KDT_OK);
    const AttnScratch scratch(bytes);
    const AttnOutputs outputs(most_rows, on_device.value_dim());
    const Stream stream;
    ASSERT_TRUE(ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)));
    EXPECT_EQ(on_device.plan(*shape, batch, scratch, stream), KDT_OK) << kdt_last_error();
    EXPECT_EQ(on_device.verify(*shape, batch, outputs, true, scratch, stream), KDT_OK)
        << kdt_last_error();
    cudaGraph_t graph = nullptr;
    ASSERT_TRUE(ok(cudaStreamEndCapture(stream, &graph)));
    cudaGraphExec_t replay = nullptr;
    ASSERT_TRUE(ok(cudaGraphInstantiate(&replay, graph, 0)));

    const std::vector<int32_t> contexts = {0,   1,    63,   64,   65,   127,
                                           128, 1000, 4095, 4096, 4097, 4200};
    const int32_t most_nodes = full.node_start[1];
    const int32_t step_nodes = reduced_cases() ? most_nodes / 2 : 1;
    for (int32_t nodes = 0; nodes <= most_nodes; nodes += step_nodes) {
        SCOPED_TRACE(testing::Message() << nodes << " nodes");
        std::vector<int32_t> context, node_counts;
        for (size_t r = 0; r < full.context.size(); ++r) {
            const int32_t own = full.node_start[r + 1] - full.node_start[r];
            // Nobody has nodes; then the last request shrinks while the others grow.
            const bool shrinks = r + 1 == full.context.size() && nodes > 0;
            node_counts.push_back(std::min(own, shrinks ? most_nodes - nodes : nodes));
            context.push_back(std::min(
                full.context[r], contexts[(static_cast<size_t>(nodes) + 5 * r) % contexts.size()]));
        }
        if (nodes == most_nodes) {
            context = full.context;
            for (size_t r = 0; r < node_counts.size(); ++r) {
                node_counts[r] = full.node_start[r + 1] - full.node_start[r];
            }
        }
        on_device.set_step(shrunk(full, context, node_counts));
        outputs.poison(stream);
        scratch.poison(stream);
        ASSERT_TRUE(ok(cudaGraphLaunch(replay, stream)));
        ASSERT_TRUE(ok(cudaStreamSynchronize(stream)));
        EXPECT_TRUE(on_device.agrees(outputs.read_out(on_device.rows()),
                                     outputs.read_lse(on_device.rows())));
        EXPECT_TRUE(outputs.untouched_behind(on_device.rows()));
        EXPECT_TRUE(scratch.guard_is_whole());
    }
    on_device.set_step(full);
    EXPECT_TRUE(ok(cudaGraphExecDestroy(replay)));
    EXPECT_TRUE(ok(cudaGraphDestroy(graph)));
}

AttnStepCase largest_step() {
    AttnStepCase step;
    step.requests = {{4200, 40, CaseTree::random, CaseTail::light},
                     {700, 16, CaseTree::random, CaseTail::heavy},
                     {65, 48, CaseTree::random, CaseTail::heavy}};
    step.page_size = 16;
    step.deepest = 20;
    step.seed = 51;
    return step;
}

TEST_F(AttnGraphs, OfMlaReplaySmallerSteps) {
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8_MLA656}) {
        SCOPED_TRACE(format);
        AttnVerifyMlaCase test;
        test.format = format;
        test.step = largest_step();
        AttnDeviceCase on_device(make_attn_verify_mla_inputs(test));
        for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
            replay_smaller_steps(on_device, path, mode);
        });
    }
}

/// What FP8 kernels for up to 16 and up to 32 rows are captured for.
TEST_F(AttnGraphs, OfMlaReplaySmallerStepsOfFewRows) {
    for (const kdt_kv_format format : {KDT_KV_FP8, KDT_KV_FP8_MLA656}) {
        for (const int32_t heads : {3, 5}) {
            SCOPED_TRACE(testing::Message() << "format " << format << ", heads " << heads);
            AttnVerifyMlaCase test;
            test.heads = heads;
            test.format = format;
            test.step = largest_step();
            for (AttnRequestCase& request : test.step.requests) request.nodes = 2;
            test.step.requests[1].nodes = 1;
            AttnDeviceCase on_device(make_attn_verify_mla_inputs(test));
            for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
                replay_smaller_steps(on_device, path, mode);
            });
        }
    }
}

TEST_F(AttnGraphs, OfGqaReplaySmallerSteps) {
    for (const int32_t window : {0, 150}) {
        SCOPED_TRACE(window);
        AttnVerifyGqaCudaCase test;
        test.sliding_window = window;
        test.format = window > 0 ? KDT_KV_FP8 : KDT_KV_BF16;
        test.step = largest_step();
        AttnDeviceCase on_device(make_attn_verify_gqa_cuda_inputs(test));
        for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
            replay_smaller_steps(on_device, path, mode);
        });
    }
}

class AttnSplits : public AttnGpuTest {};

void split_every_way(AttnDeviceCase& on_device) {
    for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
        std::optional<kdt_attn_shape> shape = shape_of(on_device, path, mode);
        ASSERT_TRUE(shape);
        if (!served(on_device, *shape)) return;
        AttnRun planned;
        for (const int32_t splits : {0, 1, 2, 7, 64}) {
            SCOPED_TRACE(testing::Message() << splits << " splits");
            shape->splits = splits;
            const AttnRun run = run_attn(on_device, *shape);
            ASSERT_EQ(run.status, KDT_OK) << run.message;
            EXPECT_TRUE(on_device.agrees(run.out, run.lse));
            if (splits == 0) planned = run;
            if (mode == KDT_ATTN_DETERMINISTIC) {
                EXPECT_TRUE(run.out == planned.out) << "the cut changed a deterministic result";
            }
        }
    });
}

TEST_F(AttnSplits, OfMlaAgree) {
    for (const int32_t heads : {8, 64}) {
        SCOPED_TRACE(heads);
        AttnVerifyMlaCase test;
        test.heads = heads;
        test.step.requests = {{5000, 7, CaseTree::random, CaseTail::light},
                              {130, 17, CaseTree::random, CaseTail::heavy},
                              {0, 3, CaseTree::chain, CaseTail::light}};
        test.step.seed = 61;
        AttnDeviceCase on_device(make_attn_verify_mla_inputs(test));
        split_every_way(on_device);
    }
}

TEST_F(AttnSplits, OfGqaAgree) {
    for (const int32_t window : {0, 1000}) {
        SCOPED_TRACE(window);
        AttnVerifyGqaCudaCase test;
        test.sliding_window = window;
        test.step.requests = {{5000, 7, CaseTree::random, CaseTail::light},
                              {130, 17, CaseTree::random, CaseTail::heavy},
                              {0, 3, CaseTree::chain, CaseTail::light}};
        test.step.seed = 62;
        AttnDeviceCase on_device(make_attn_verify_gqa_cuda_inputs(test));
        split_every_way(on_device);
    }
}

class AttnRaces : public AttnGpuTest {};

/// Plan and verify over and over, without waiting in between; the results are compared on the
/// device.
void repeat(const AttnDeviceCase& on_device, const kdt_attn_shape& shape) {
    if (!served(on_device, shape)) return;
    const kdt_attn_batch batch = on_device.batch(true);
    size_t bytes = 0;
    ASSERT_EQ(kdt_attn_workspace_bytes(&shape, batch.requests, batch.max_nodes, batch.max_context,
                                       &bytes),
              KDT_OK);
    const AttnScratch scratch(bytes);
    const AttnOutputs expected(on_device.rows(), on_device.value_dim());
    const AttnOutputs outputs(on_device.rows(), on_device.value_dim());
    const DeviceArray<unsigned long long> differing{{0}};
    const Stream stream;
    ASSERT_EQ(on_device.plan(shape, batch, scratch, stream), KDT_OK);
    ASSERT_EQ(on_device.verify(shape, batch, expected, true, scratch, stream), KDT_OK);
    for (int32_t i = 0; i < race_repeats(); ++i) {
        // Back to back as in a model's layers, with and without a plan in between.
        if (i % 3 == 0) {
            ASSERT_EQ(on_device.plan(shape, batch, scratch, stream), KDT_OK);
        }
        outputs.poison(stream);
        ASSERT_EQ(on_device.verify(shape, batch, outputs, true, scratch, stream), KDT_OK);
        for (const auto& [a, b] :
             {std::pair(&expected.out, &outputs.out), std::pair(&expected.lse, &outputs.lse)}) {
            count_differing_words(reinterpret_cast<const uint32_t*>(a->data()),
                                  reinterpret_cast<const uint32_t*>(b->data()), a->bytes() / 4,
                                  differing.data(), stream);
        }
    }
    ASSERT_TRUE(ok(cudaStreamSynchronize(stream)));
    EXPECT_EQ(differing.read()[0], 0u) << "words that differed in " << race_repeats() << " repeats";
}

TEST_F(AttnRaces, MlaRepeatsAreEqual) {
    // Few tiles a unit, ragged ends: producers and consumers meet as often as they can. The second
    // batch is what the FP8 loop for few rows takes; of it and of the third two blocks share each
    // unit in deterministic mode (bf16), of the third with other rows than those of the unit
    // before.
    const struct {
        std::vector<AttnRequestCase> requests;
        int32_t splits;
    } batches[] = {
        {{{4095, 32, CaseTree::random, CaseTail::light},
          {70, 9, CaseTree::random, CaseTail::heavy},
          {0, 1, CaseTree::chain, CaseTail::light}},
         0},
        {{{40950, 3, CaseTree::random, CaseTail::light}, {70, 1, CaseTree::chain, CaseTail::heavy}},
         0},
        {{{4095, 5, CaseTree::random, CaseTail::light},
          {9000, 1, CaseTree::chain, CaseTail::heavy}},
         100}};
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8, KDT_KV_FP8_MLA656}) {
        for (const auto& [requests, splits] : batches) {
            SCOPED_TRACE(std::to_string(format) + ", " + std::to_string(requests.size()));
            AttnVerifyMlaCase test;
            test.heads = 8;
            test.format = format;
            test.step.requests = requests;
            test.step.deepest = 20;
            test.splits = splits;
            const AttnDeviceCase on_device(make_attn_verify_mla_inputs(test));
            for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
                repeat(on_device, *shape_of(on_device, path, mode));
            });
        }
    }
}

TEST_F(AttnRaces, GqaRepeatsAreEqual) {
    for (const int32_t dim : {64, 96, 128, 256}) {
        SCOPED_TRACE(dim);
        AttnVerifyGqaCudaCase test;
        test.head_dim = dim;
        test.format = dim == 128 ? KDT_KV_FP8 : KDT_KV_BF16;
        test.step.requests = {{2047, 20, CaseTree::random, CaseTail::light},
                              {70, 9, CaseTree::random, CaseTail::heavy},
                              {0, 1, CaseTree::chain, CaseTail::light}};
        test.step.deepest = 20;
        const AttnDeviceCase on_device(make_attn_verify_gqa_cuda_inputs(test));
        for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
            repeat(on_device, *shape_of(on_device, path, mode));
        });
    }
}

TEST_F(AttnRaces, RepeatsOfUnevenPairsAreEqual) {
    for (const AttnVerifyGqaCudaCase& test : attn_verify_gqa_cuda_cases()) {
        if (!test.name.starts_with("uneven_pairs_7800")) continue;
        SCOPED_TRACE(test.name);
        const AttnDeviceCase on_device(make_attn_verify_gqa_cuda_inputs(test));
        repeat(on_device, *shape_of(on_device, KDT_PATH_WGMMA, KDT_ATTN_DETERMINISTIC));
    }
}

}  // namespace
}  // namespace kd
