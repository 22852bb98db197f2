// Random steps and what is planned for them on the host, for the planner's tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/attn_plan/attn_plan_ref.h"
#include "kernels/attn_plan/attn_plan_time.h"
#include "kernels/attn_plan/attn_workspace.h"

namespace kd {

class PlanRandom {
  public:
    explicit PlanRandom(uint32_t seed) : engine_(seed) {}
    int32_t between(int32_t least, int32_t most) {
        const auto choices = static_cast<uint32_t>(most - least) + 1;
        return least + static_cast<int32_t>(static_cast<uint32_t>(engine_()) % choices);
    }
    bool one_in(int32_t n) { return between(1, n) == 1; }
    AttnEngine engine() { return kAttnEngines[between(0, 2)]; }
    template <class T>
    T one_of(std::initializer_list<T> values) {
        return values.begin()[between(0, static_cast<int32_t>(values.size()) - 1)];
    }

  private:
    std::mt19937 engine_;
};

/// One step: the host arrays, the shape and what is planned for it.
struct PlanStep {
    kdt_attn_shape shape = {};
    std::vector<int32_t> context;
    std::vector<int32_t> node_start{0};
    std::vector<int32_t> depth;
    std::vector<int64_t> pages_start;
    int32_t max_nodes = 0;
    int32_t max_context = 0;
    int32_t multiprocessors = 132;
    AttnWorkspace workspace;
    PlanShape plan_shape = {};
    AttnPlanResult plan;

    int32_t requests() const { return static_cast<int32_t>(context.size()); }
    int32_t nodes(int32_t r) const { return node_start[at(r) + 1] - node_start[at(r)]; }
    bool shared() const { return plan_shape.entry == PlanEntry::shared; }
    int32_t group() const { return shape.heads / shape.kv_heads; }
    int32_t row_tiles(int32_t r) const { return (nodes(r) * group() + kTileRows - 1) / kTileRows; }
    static size_t at(int32_t i) { return static_cast<size_t>(i); }

    void add(int32_t request_context, const std::vector<int32_t>& request_depth) {
        pages_start.push_back(int64_t{1000000} * requests());
        context.push_back(request_context);
        depth.insert(depth.end(), request_depth.begin(), request_depth.end());
        node_start.push_back(static_cast<int32_t>(depth.size()));
        max_nodes = std::max(max_nodes, node_start.back());
        max_context = std::max(max_context, request_context);
    }
    void make_plan(AttnEngine engine = AttnEngine::wgmma_sm90) {
        workspace =
            attn_workspace(shape, requests(), max_nodes, max_context, multiprocessors, nullptr);
        plan_shape = kd::plan_shape(shape, workspace, max_nodes, multiprocessors, engine);
        replan();
    }
    void replan() {
        plan = attn_plan_ref(plan_shape, {.context = context,
                                          .node_start = node_start,
                                          .depth = depth,
                                          .pages_start = pages_start});
    }
};

inline kdt_attn_shape mla_shape(int32_t heads) {
    kdt_attn_shape shape = {};
    shape.struct_bytes = sizeof shape;
    shape.kind = KDT_ATTN_MLA;
    shape.heads = heads;
    shape.kv_heads = 1;
    shape.head_dim = 576;
    return shape;
}

inline kdt_attn_shape random_shape(PlanRandom& random) {
    kdt_attn_shape shape = mla_shape(random.one_of({1, 8, 12, 16, 32, 64, 128}));
    shape.kv_format = random.one_of<int32_t>({KDT_KV_BF16, KDT_KV_FP8});
    if (random.one_in(2)) {
        const int32_t group = random.between(1, 16);
        shape.kind = KDT_ATTN_GQA;
        shape.kv_heads = random.between(1, 128 / group);
        shape.heads = group * shape.kv_heads;
        shape.head_dim = random.one_of({64, 96, 128, 256});
        if (random.one_in(3)) shape.sliding_window = random.between(1, 5000);
    }
    return shape;
}

inline int32_t random_context(PlanRandom& random) {
    switch (random.between(0, 4)) {
        case 0:
            return random.between(0, 130);
        case 1:
            return 64 * random.between(0, 260) + random.between(-1, 1) * random.between(0, 1);
        case 2:
            return random.between(0, 20000);
        case 3:
            return (8192 << random.between(0, 4)) + random.between(-70, 140);
        default:
            return random.between(0, 262144);
    }
}

/// Depths of a random tree, the root first; parents anywhere before.
inline std::vector<int32_t> random_tree(PlanRandom& random, int32_t nodes, int32_t max_depth) {
    std::vector<int32_t> depth;
    for (int32_t i = 0; i < nodes; ++i) {
        const int32_t parent = random.one_in(3) ? i - 1 : random.between(0, std::max(0, i - 1));
        const int32_t below = i == 0 ? 0 : depth[static_cast<size_t>(parent)] + 1;
        depth.push_back(std::min(below, max_depth));
    }
    return depth;
}

inline PlanStep random_step(PlanRandom& random) {
    PlanStep step;
    step.shape = random_shape(random);
    step.shape.max_depth = random.one_of({0, 1, 7, 16, 63, 64});
    step.multiprocessors = random.one_of({1, 20, 66, 132, 188});
    const int32_t requests = random.one_of({1, 1, 1, 2, 3, 8, 17, 64});
    for (int32_t r = 0; r < requests; ++r) {
        const int32_t nodes = random.one_in(5) ? 0 : random.one_of({1, 8, 17, 64, 128});
        step.add(std::clamp(random_context(random), 0, 262144),
                 random_tree(random, nodes, step.shape.max_depth));
    }
    if (random.one_in(2)) step.max_nodes += random.between(0, 300);
    if (random.one_in(2)) step.max_context = 262144;
    return step;
}

/// A step of 1 to 64 nodes in all, of up to 64 rows about every second time.
inline PlanStep random_small_step(PlanRandom& random) {
    PlanStep step;
    step.shape = mla_shape(random.one_of({1, 4, 8, 12, 16, 64}));
    step.shape.max_depth = random.one_of({0, 1, 7, 16, 63, 64});
    step.multiprocessors = random.one_of({1, 2, 20, 66, 67, 131, 132, 188});
    const int32_t requests = random.one_of({1, 1, 2, 3, 8});
    for (int32_t r = 0; r < requests; ++r) {
        const int32_t nodes = random.between(0, random.one_of({1, 2, 8}));
        step.add(random_context(random), random_tree(random, nodes, step.shape.max_depth));
    }
    if (random.one_in(4)) step.max_nodes += random.between(0, 60);
    return step;
}

/// The units that block `block` takes, as first_unit and next_unit say, of pairs both.
inline std::vector<int32_t> units_of_block(const PlanStep& step, int32_t block) {
    const bool pairs = step.plan_shape.deterministic && step.plan_shape.entry == PlanEntry::pair;
    const int32_t width = pairs ? 2 : 1;
    std::vector<int32_t> indices;
    int32_t index = block < step.plan.header.runs ? width * block : kLastUnit;
    while (index < step.plan.header.units) {
        for (int32_t i = 0; i < width; ++i) indices.push_back(index + i);
        const int32_t next = step.plan.units[PlanStep::at(index)].next;
        EXPECT_TRUE(next != 0 || !step.plan_shape.deterministic);
        index = next != 0 ? next : index + step.multiprocessors;
    }
    return indices;
}

inline void expect_every_unit_is_taken(const PlanStep& step) {
    std::vector<int32_t> taken(step.plan.units.size());
    for (int32_t block = 0; block < step.multiprocessors; ++block) {
        for (const int32_t index : units_of_block(step, block)) {
            ASSERT_EQ(++taken[PlanStep::at(index)], 1) << "unit " << index << ", block " << block;
        }
    }
    EXPECT_TRUE(std::ranges::all_of(taken, [](int32_t t) { return t == 1; }));
}

/// In a shared step each unit stands twice, side by side, and so do the units that its two blocks
/// take next.
inline void expect_units_twice(const PlanStep& step) {
    EXPECT_EQ(step.plan.header.runs % 2, 0);
    ASSERT_EQ(step.plan.header.units % 2, 0);
    for (size_t i = 0; i < step.plan.units.size(); i += 2) {
        const WorkUnit& first = step.plan.units[i];
        WorkUnit second = step.plan.units[i + 1];
        EXPECT_EQ(first.next % 2, 0);
        EXPECT_EQ(second.next, first.next == kLastUnit ? kLastUnit : first.next + 1);
        second.next = first.next;
        EXPECT_EQ(std::memcmp(&first, &second, sizeof first), 0) << "unit " << i;
    }
}

inline void expect_within_capacity(const PlanStep& step) {
    const PlanHeader& header = step.plan.header;
    EXPECT_LE(header.units, step.workspace.unit_capacity);
    EXPECT_LE(header.partials, step.workspace.partial_capacity);
    EXPECT_LE(header.merge_items, step.workspace.merge_item_capacity);
    EXPECT_EQ(header.units, static_cast<int32_t>(step.plan.units.size()));
    EXPECT_LE(header.runs, header.units);
    expect_every_unit_is_taken(step);
    if (step.shared()) expect_units_twice(step);
    EXPECT_EQ(header.merge_items, static_cast<int32_t>(step.plan.merge_items.size()));
    const int32_t writers = step.shared() ? 2 : 1;
    std::vector<int32_t> written(static_cast<size_t>(header.partials));
    for (const WorkUnit& unit : step.plan.units) {
        EXPECT_EQ(unit.context, step.context[PlanStep::at(unit.request)]);
        EXPECT_EQ(unit.nodes, step.nodes(unit.request));
        EXPECT_EQ(unit.first_node, step.node_start[PlanStep::at(unit.request)]);
        EXPECT_EQ(unit.pages_begin, step.pages_start[PlanStep::at(unit.request)]);
        if (unit.partial < 0) continue;
        ASSERT_LT(unit.partial, header.partials);
        EXPECT_LE(++written[static_cast<size_t>(unit.partial)], writers);
    }
    EXPECT_TRUE(std::ranges::all_of(written, [&](int32_t times) { return times == writers; }));
}

using TileKey = std::tuple<int32_t, int32_t, int32_t>;  // request, K/V head, first row

/// Merge items by their first row; those of a row tile cover its rows in order.
inline std::map<TileKey, MergeItem> merge_items_of(const PlanStep& step) {
    std::map<TileKey, MergeItem> items;
    std::map<TileKey, int32_t> rows_seen;
    for (const MergeItem& item : step.plan.merge_items) {
        const int32_t begin = item.row_begin / kTileRows * kTileRows;
        const TileKey key{item.request, item.kv_head, begin};
        items[{item.request, item.kv_head, item.row_begin}] = item;
        const int32_t rows = step.nodes(item.request) * step.group();
        EXPECT_EQ(item.row_begin, begin + rows_seen[key]);
        EXPECT_EQ(item.rows, std::min({merge_rows(item.teams_log2), rows - item.row_begin}));
        EXPECT_EQ(item.chunks, merge_chunks(item));
        EXPECT_GE(item.chunks, item.path_partial >= 0 ? 0 : 1);
        EXPECT_LE(item.chunks, 1 << item.teams_log2);
        EXPECT_LE(item.teams_log2, 5);
        EXPECT_EQ(item.first_node, step.node_start[PlanStep::at(item.request)]);
        rows_seen[key] += item.rows;
    }
    for (const auto& [key, rows] : rows_seen) {
        const auto [request, kv_head, begin] = key;
        EXPECT_EQ(rows, std::min(kTileRows, step.nodes(request) * step.group() - begin));
    }
    return items;
}

}  // namespace kd
