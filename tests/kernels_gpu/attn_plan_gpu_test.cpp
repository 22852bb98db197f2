// The plan that the device writes against the one of the host, entry by entry, through the C ABI.
#include <algorithm>
#include <cstring>
#include <utility>

#include "attn_device.h"
#include "kernels/attn_plan/attn_plan_ref.h"
#include "kernels/attn_plan/attn_workspace.h"
#include "kernels/cases/random.h"

namespace kd {
namespace {

struct Step : AttnStep {
    kdt_attn_shape shape = {};
    int32_t most_nodes = 0;
    int32_t most_context = 0;

    explicit Step(uint32_t seed) : Step() {
        CaseRandom random(seed);
        shape.mode = random.below(2);
        shape.kind = random.below(2);
        shape.kv_heads = shape.kind == KDT_ATTN_MLA ? 1 : 1 + random.below(4);
        const int32_t group =
            shape.kind == KDT_ATTN_MLA ? 8 << random.below(5) : 1 + random.below(16);
        shape.heads = group * shape.kv_heads;
        shape.head_dim = shape.kind == KDT_ATTN_MLA ? 576 : 128;
        shape.max_depth = random.below(65);
        if (shape.kind == KDT_ATTN_GQA && random.below(3) == 0) {
            shape.sliding_window = 1 + random.below(3000);
        }
        if (random.below(5) == 0) shape.splits = 1 + random.below(100);
        const int32_t count = seed % 4 == 0 ? 64 : 1 + random.below(5);
        for (int32_t r = 0; r < count; ++r) {
            const int32_t limits[] = {70, 3000, 8400, 70000};
            const int32_t request_context = random.below(limits[random.below(4)]);
            add_request(random, request_context, random.below(6) == 0 ? 0 : 1 + random.below(128));
        }
        most_nodes = nodes() + random.below(10);
        most_context = max_context();
    }

    /// Of 64 rows at most, whose units blocks share where they can.
    static Step of_few_rows(uint32_t seed) {
        CaseRandom random(seed);
        Step step;
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        step.shape.kind = KDT_ATTN_MLA;
        step.shape.heads = 8;
        step.shape.kv_heads = 1;
        step.shape.head_dim = 576;
        step.shape.max_depth = random.below(65);
        const int32_t count = 1 + random.below(4);
        for (int32_t r = 0; r < count; ++r)
            step.add_request(random, random.below(120000), 1 + random.below(8 / count));
        step.most_nodes = 8;
        step.most_context = step.max_context();
        return step;
    }

  private:
    Step() {
        page_size = 16;
        node_start = {0};
        shape.struct_bytes = sizeof shape;
    }
    void add_request(CaseRandom& random, int32_t request_context, int32_t count) {
        context.push_back(request_context);
        pages_start.push_back(static_cast<int64_t>(pages.size()));
        for (int32_t p = 0; p < context.back(); p += 16) pages.push_back(random.below(1 << 24));
        const size_t first = depth.size();
        for (int32_t i = 0; i < count; ++i) {
            size_t parent = first + static_cast<size_t>(random.below(std::max(1, i)));
            if (i > 0 && depth[parent] == shape.max_depth) parent = first;
            const bool is_root = i == 0 || shape.max_depth == 0;
            depth.push_back(is_root ? 0 : depth[parent] + 1);
            for (size_t word = 0; word < 2; ++word) {
                const uint64_t self =
                    static_cast<size_t>(i / 64) == word ? uint64_t{1} << i % 64 : 0;
                ancestors.push_back(self | (is_root ? 0 : ancestors[2 * parent + word]));
            }
            tail_slots.push_back(random.below(1 << 28));
        }
        node_start.push_back(static_cast<int32_t>(depth.size()));
    }
};

/// A step in device memory.
struct DeviceStep {
    AttnDeviceBatch arrays;
    kdt_attn_batch batch;

    explicit DeviceStep(const Step& step) : arrays(step), batch(arrays.view(step, true)) {
        batch.max_nodes = step.most_nodes;
        batch.max_context = step.most_context;
    }
};

/// Layout of a step's workspace from `base` on.
AttnWorkspace layout(const Step& step, int32_t multiprocessors, void* base) {
    return attn_workspace(step.shape, step.requests(), step.most_nodes, step.most_context,
                          multiprocessors, base);
}

/// The plan's part of it, all ones: no partial is written.
DeviceArray<uint8_t> plan_memory(const Step& step, int32_t multiprocessors) {
    void* origin = reinterpret_cast<void*>(uintptr_t{1} << 40);  // only subtracted again
    const AttnWorkspace w = layout(step, multiprocessors, origin);
    const auto bytes = static_cast<size_t>(reinterpret_cast<uintptr_t>(w.partial_lse) -
                                           reinterpret_cast<uintptr_t>(origin));
    return DeviceArray<uint8_t>(std::vector<uint8_t>(bytes, 0xff));
}

template <class T>
std::vector<T> from_device(const T* data, int32_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    if (count > 0) {
        EXPECT_TRUE(
            ok(cudaMemcpy(values.data(), data, values.size() * sizeof(T), cudaMemcpyDeviceToHost)));
    }
    return values;
}

/// Slots of the keys of `node`'s path, by the definition; -1: outside its window.
std::vector<int32_t> path_slots_of(const Step& step, size_t r, int32_t node) {
    const auto first = static_cast<size_t>(step.node_start[r]);
    const size_t at = first + static_cast<size_t>(node);
    const int32_t position = step.context[r] + step.depth[at];
    std::vector<int32_t> slots;
    for (int32_t p = path_boundary(position, step.shape.max_depth); p < step.context[r]; ++p) {
        const auto page = static_cast<size_t>(step.pages_start[r] + p / 16);
        slots.push_back(step.pages[page] * 16 + p % 16);
    }
    std::vector<std::pair<int32_t, int32_t>> ancestors;
    for (int32_t a = 0; a < 128; ++a) {
        if ((step.ancestors[2 * at + static_cast<size_t>(a / 64)] >> (a % 64) & 1) == 0) continue;
        const size_t ancestor = first + static_cast<size_t>(a);
        ancestors.emplace_back(step.depth[ancestor], step.tail_slots[ancestor]);
    }
    std::ranges::sort(ancestors);
    for (const auto& [depth, slot] : ancestors) slots.push_back(slot);
    const int32_t window = step.shape.sliding_window;
    for (size_t i = 0; window > 0 && i + static_cast<size_t>(window) < slots.size(); ++i)
        slots[i] = -1;
    return slots;
}

/// Slots of the first keys of `unit`, -1 where it has fewer.
std::vector<int32_t> first_slots_of(const Step& step, const WorkUnit& unit) {
    const auto r = static_cast<size_t>(unit.request);
    std::vector<int32_t> slots;
    if (unit.path_node >= 0) {
        const int32_t path_keys = attn_path_keys(step.shape);
        const int32_t nodes = ceil_div(unit.rows, step.shape.heads / step.shape.kv_heads);
        for (int32_t i = 0; i < nodes; ++i) {
            slots.resize(static_cast<size_t>(i * path_keys), -1);
            const std::vector<int32_t> own = path_slots_of(step, r, unit.path_node + i);
            slots.insert(slots.end(), own.begin(), own.end());
        }
    } else {
        for (int32_t key = unit.key_begin; key < unit.key_end; ++key) {
            const auto page = static_cast<size_t>(step.pages_start[r] + key / 16);
            const auto node = static_cast<size_t>(step.node_start[r] + key - step.context[r]);
            slots.push_back(key < step.context[r] ? step.pages[page] * 16 + key % 16
                                                  : step.tail_slots[node]);
        }
    }
    slots.resize(kFirstSlots, -1);
    return slots;
}

AttnEngine engine_of(const cudaDeviceProp& device) {
    return device.major == 9 ? AttnEngine::wgmma_sm90 : AttnEngine::mma_sync_sm120;
}

/// The device's plan is the host's.
void expect_matches_the_host(const Step& step, const cudaDeviceProp& device) {
    const DeviceStep on_device(step);
    const DeviceArray<uint8_t> memory = plan_memory(step, device.multiProcessorCount);
    const AttnWorkspace w = layout(step, device.multiProcessorCount, memory.data());
    EXPECT_EQ(kdt_attn_plan(&step.shape, &on_device.batch, memory.data(), w.bytes, nullptr), KDT_OK)
        << kdt_last_error();
    EXPECT_TRUE(ok(cudaDeviceSynchronize()));

    const PlanShape shape =
        plan_shape(step.shape, w, step.most_nodes, device.multiProcessorCount, engine_of(device));
    const AttnPlanResult plan = attn_plan_ref(shape, {.context = step.context,
                                                      .node_start = step.node_start,
                                                      .depth = step.depth,
                                                      .pages_start = step.pages_start});
    const PlanHeader header = from_device(w.header, 1)[0];
    EXPECT_EQ(std::memcmp(&header, &plan.header, sizeof header), 0)
        << header.units << " units, expected " << plan.header.units << "; " << header.partials
        << " partials, expected " << plan.header.partials;
    EXPECT_TRUE(same_bytes(from_device(w.units, plan.header.units), plan.units, sizeof(WorkUnit)));
    EXPECT_TRUE(same_bytes(from_device(w.merge_items, plan.header.merge_items), plan.merge_items,
                           sizeof(MergeItem)));
    const int32_t first_units = w.first_slots == nullptr ? 0 : device.multiProcessorCount;
    for (int32_t u = 0; u < std::min(first_units, plan.header.runs); ++u) {
        EXPECT_EQ(from_device(w.first_slots + u * kFirstSlots, kFirstSlots),
                  first_slots_of(step, plan.units[static_cast<size_t>(u)]))
            << "unit " << u;
    }
    if (shape.deterministic) {
        for (size_t r = 0; r < step.context.size(); ++r) {
            for (int32_t node = 0; node < step.node_start[r + 1] - step.node_start[r]; ++node) {
                std::vector<int32_t> expected = path_slots_of(step, r, node);
                expected.resize(static_cast<size_t>(w.path_keys), -1);
                const int64_t at = int64_t{step.node_start[r] + node} * w.path_keys;
                EXPECT_EQ(from_device(w.path_slots + at, w.path_keys), expected)
                    << "request " << r << ", node " << node;
            }
        }
    }
}

}  // namespace

using AttnPlanGpu = GpuTest;

TEST_F(AttnPlanGpu, MatchesTheHost) {
    cudaDeviceProp device = {};
    ASSERT_TRUE(ok(cudaGetDeviceProperties(&device, 0)));
    const uint32_t seeds = reduced_cases() ? 4 : 120;
    for (uint32_t seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        expect_matches_the_host(Step(seed), device);
        if (HasFailure()) return;
    }
}

TEST_F(AttnPlanGpu, OfFewRowsMatchesTheHost) {
    cudaDeviceProp device = {};
    ASSERT_TRUE(ok(cudaGetDeviceProperties(&device, 0)));
    const uint32_t seeds = reduced_cases() ? 1 : 30;
    for (uint32_t seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        expect_matches_the_host(Step::of_few_rows(seed), device);
        if (HasFailure()) return;
    }
}

TEST_F(AttnPlanGpu, OfLengthsBeyondThePromiseIsEmpty) {
    cudaDeviceProp device = {};
    ASSERT_TRUE(ok(cudaGetDeviceProperties(&device, 0)));
    // Of a step with several requests, lengths in the middle one; -1: as it is.
    const struct {
        const char* what;
        int32_t context, nodes, max_nodes, node_start_0 = 0, last_nodes = -1;
    } broken[] = {{"context above max_context", 80000, -1, -1},
                  {"context far above", INT32_MAX, -1, -1},
                  {"context below 0", -5, -1, -1},
                  {"far more nodes than max_nodes", -1, -1, 1},
                  {"one node more than max_nodes", -1, -1, Step(4).nodes() - 1},
                  {"more nodes than a request may have", -1, 129, -1},
                  {"node_start descends", -1, -70, -1},
                  {"node_start far above", -1, INT32_MAX / 2, -1},
                  {"node_start from below 0", -1, -1, -1, -1},
                  {"node_start descends at last", -1, -1, -1, 0, -5}};
    for (const int32_t mode : {KDT_ATTN_FAST, KDT_ATTN_DETERMINISTIC}) {
        for (const auto& of : broken) {
            SCOPED_TRACE(std::string(of.what) + ", mode " + std::to_string(mode));
            Step step(4);  // 64 requests
            ASSERT_EQ(step.requests(), 64);
            step.shape.mode = mode;
            const DeviceArray<uint8_t> memory = plan_memory(step, device.multiProcessorCount);
            const AttnWorkspace w = layout(step, device.multiProcessorCount, memory.data());
            Step wrong = step;
            ASSERT_LT(step.node_start[1], kMostNodes);
            wrong.node_start[0] = of.node_start_0;
            if (of.context != -1) wrong.context[30] = of.context;
            if (of.nodes != -1) wrong.node_start[31] = wrong.node_start[30] + of.nodes;
            if (of.last_nodes != -1) wrong.node_start[64] = wrong.node_start[63] + of.last_nodes;
            DeviceStep on_device(wrong);
            if (of.max_nodes != -1) on_device.batch.max_nodes = of.max_nodes;
            EXPECT_EQ(kdt_attn_plan(&step.shape, &on_device.batch, memory.data(), w.bytes, nullptr),
                      KDT_OK)
                << kdt_last_error();
            EXPECT_TRUE(ok(cudaDeviceSynchronize()));
            // A plan for fewer nodes lies at the same place: the header comes first.
            const PlanHeader header = from_device(w.header, 1)[0];
            EXPECT_EQ(header.units, 0);
            EXPECT_EQ(header.runs, 0);
            EXPECT_EQ(header.merge_items, 0);

            const DeviceStep right(step);
            EXPECT_EQ(kdt_attn_plan(&step.shape, &right.batch, memory.data(), w.bytes, nullptr),
                      KDT_OK);
            EXPECT_TRUE(ok(cudaDeviceSynchronize()));
            EXPECT_GT(from_device(w.header, 1)[0].units, 0);
        }
    }
}

}  // namespace kd
