// The planner in deterministic mode: a row's result is made of the same parts in the same order
// whatever stands beside it, and blocks take every unit once, or two of them together.
#include <array>
#include <numeric>
#include <string>

#include "attn_plan_step.h"

namespace kd {

namespace {

/// What a row's result is made of, in the order it is made: for each merge chunk the key ranges
/// that the row sees, one a partial. [chunk][partial] (segment length, first key, end).
using Recipe = std::vector<std::vector<std::array<int32_t, 3>>>;

/// A node by what its recipe may depend on, and the shape's constants.
struct NodePlace {
    int32_t position;
    int32_t oldest;  // key in its window
    int32_t boundary;
    int32_t segment_keys;

    NodePlace(const PlanStep& step, int32_t r, int32_t node)
        : position(step.context[PlanStep::at(r)] +
                   step.depth[PlanStep::at(step.node_start[PlanStep::at(r)] + node)]),
          oldest(step.shape.sliding_window > 0
                     ? std::max(0, position - step.shape.sliding_window + 1)
                     : 0),
          boundary(path_boundary(position, step.shape.max_depth)),
          segment_keys(segment_of(step.plan_shape, boundary)) {}
};

/// The recipe of a node by the definition.
Recipe defined_recipe(const NodePlace& node) {
    std::map<int32_t, std::vector<std::array<int32_t, 3>>> chunks;
    for (int32_t k = 0; k * node.segment_keys < node.boundary; ++k) {
        const int32_t begin = std::max(k * node.segment_keys, node.oldest);
        const int32_t end = std::min((k + 1) * node.segment_keys, node.boundary);
        if (begin < end) chunks[k / kMergeChunk].push_back({node.segment_keys, begin, end});
    }
    Recipe recipe;
    for (auto& [chunk, partials] : chunks) recipe.push_back(partials);
    recipe.push_back({{0, std::max(node.boundary, node.oldest), node.position + 1}});
    return recipe;
}

/// The same, replayed from the plan for one node, head of the group and K/V head.
Recipe planned_recipe(const PlanStep& step, const std::map<TileKey, MergeItem>& items,
                      const std::map<int32_t, WorkUnit>& unit_of_partial, const NodePlace& place,
                      int32_t r, int32_t kv_head, int32_t node, int32_t group_head) {
    const int32_t row = node * step.group() + group_head;
    const MergeItem& item = std::prev(items.upper_bound({r, kv_head, row}))->second;
    EXPECT_LT(row, item.row_begin + item.rows);
    Recipe recipe;
    for (int32_t chunk = 0; chunk < item.chunks; ++chunk) {
        const MergeRange range = merge_chunk(item, chunk);
        EXPECT_LE(0, range.begin);
        EXPECT_LT(range.begin, range.end);
        EXPECT_LE(range.end, kMergeChunk);
        std::vector<std::array<int32_t, 3>> partials;
        for (int32_t i = range.begin; i < range.end; ++i) {
            const WorkUnit& unit = unit_of_partial.at(item.first_partial + range.origin + i);
            EXPECT_EQ(std::tie(unit.request, unit.kv_head, unit.row_begin),
                      std::tuple(r, kv_head, row / kTileRows * kTileRows));
            EXPECT_EQ(unit.segment_keys, place.segment_keys);
            EXPECT_EQ(unit.key_begin % step.plan_shape.tile_keys, 0);
            EXPECT_LE(unit.key_end, step.context[PlanStep::at(r)]);
            EXPECT_LE(unit.seen_end, std::min(unit.key_end, place.boundary));
            EXPECT_EQ(unit.key_begin / unit.segment_keys % kMergeChunk, i);  // its place
            const int32_t begin = std::max(unit.key_begin, place.oldest);
            const int32_t end = std::min(unit.key_end, place.boundary);
            if (begin < end) partials.push_back({unit.segment_keys, begin, end});
        }
        if (!partials.empty()) recipe.push_back(partials);
    }
    const int32_t blocks = ceil_div(step.group(), kTileRows);
    const int32_t of_node = node >> item.path_nodes_log2;
    const int32_t path = item.path_partial + (of_node * step.shape.kv_heads + kv_head) * blocks +
                         group_head / kTileRows;
    const WorkUnit& unit = unit_of_partial.at(path);
    EXPECT_EQ(unit.path_node, of_node << item.path_nodes_log2);
    EXPECT_EQ(unit.kv_head, kv_head);
    EXPECT_EQ(unit.request, r);
    const int32_t before = node - unit.path_node;  // nodes of the unit
    const int32_t row_in_unit = before * step.group() + group_head % kTileRows;
    EXPECT_EQ(unit.row_begin + row_in_unit, row);
    EXPECT_GT(unit.rows, row_in_unit);
    EXPECT_EQ(unit.key_begin, 0);
    // The unit has the whole path. Of a key tile, be it of 64, 48, 32 or 16 keys, it has all or one
    // part after the other, wherever it begins.
    const int32_t path_keys = step.workspace.path_keys;
    const int32_t keys = place.position + 1 - place.boundary;
    EXPECT_LE(keys, path_keys);
    EXPECT_LE(before * path_keys + keys, unit.key_end);
    for (const int32_t tile_keys : {step.plan_shape.tile_keys, 32, 16}) {
        const int32_t begin = before * path_keys % tile_keys;
        if (tile_keys == 32 && step.shape.kind == KDT_ATTN_MLA) continue;  // no such tile
        EXPECT_TRUE(begin == 0 || begin + keys <= tile_keys) << begin << " of " << tile_keys;
    }
    EXPECT_EQ(unit.seen_end, unit.rows <= step.group() ? unit.key_end : 0);
    recipe.push_back({{0, std::max(place.boundary, place.oldest), place.position + 1}});
    return recipe;
}

void expect_deterministic_recipes(const PlanStep& step, PlanRandom& random) {
    const auto items = merge_items_of(step);
    std::map<int32_t, WorkUnit> unit_of_partial;
    for (size_t i = 0; i < step.plan.units.size(); i += step.shared() ? 2 : 1) {
        const WorkUnit& unit = step.plan.units[i];
        if (unit.key_begin == unit.key_end) continue;
        EXPECT_TRUE(unit_of_partial.emplace(unit.partial, unit).second) << unit.partial;
    }
    for (int32_t r = 0; r < step.requests(); ++r) {
        for (int32_t node = 0; node < step.nodes(r); ++node) {
            const int32_t kv_head = random.between(0, step.shape.kv_heads - 1);
            const int32_t group_head = random.between(0, step.group() - 1);
            const NodePlace place(step, r, node);
            EXPECT_EQ(
                planned_recipe(step, items, unit_of_partial, place, r, kv_head, node, group_head),
                defined_recipe(place))
                << "request " << r << ", node " << node << ", position " << place.position;
        }
    }
}

}  // namespace

TEST(AttnPlan, DeterministicRecipeIsAFunctionOfThePath) {
    for (uint32_t seed = 0; seed < 600; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        PlanRandom random(seed);
        PlanStep step = random_step(random);
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        if (step.requests() > 3) {  // the replay is slow on large plans
            step.shape.heads = step.shape.kv_heads = 1;
        }
        step.make_plan(random.engine());
        expect_within_capacity(step);
        expect_deterministic_recipes(step, random);
        if (testing::Test::HasFailure()) return;
    }
}

TEST(AttnPlan, StepsOfFewRowsAreShared) {
    int32_t shared = 0;
    for (uint32_t seed = 0; seed < 600; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        PlanRandom random(seed);
        PlanStep step = random_small_step(random);
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        if (random.one_in(4)) step.shape.splits = random.between(1, 100);
        step.make_plan();
        EXPECT_EQ(step.shared(),
                  step.max_nodes * step.shape.heads <= 64 && step.multiprocessors % 2 == 0);
        if (step.shared() && step.plan.header.units > 0) ++shared;
        expect_within_capacity(step);
        expect_deterministic_recipes(step, random);
        if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(shared, 150);
    EXPECT_LT(shared, 450);
}

TEST(AttnPlan, SharedStepOfTwoSegmentLengthsAndManyPathsFits) {
    PlanStep step;
    step.shape = mla_shape(1);
    step.shape.mode = KDT_ATTN_DETERMINISTIC;
    step.shape.max_depth = 64;
    std::vector<int32_t> chain(64);
    std::iota(chain.begin(), chain.end(), 0);
    step.add(64 * 12 * kMlaWgmmaTileKeys + 72, chain);  // 64 segments of 12 tiles, 60 of 13
    step.make_plan();
    step.plan_shape.costs = {};
    step.plan_shape.costs.path_tile_ns = 1000;  // a unit for each path
    step.replan();
    EXPECT_TRUE(step.shared());
    EXPECT_EQ(step.plan.header.units, 2 * (64 + 60 + 64));
    expect_within_capacity(step);
}

TEST(AttnPlan, OnlyDeterministicMlaInBf16OnSm90Shares) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        PlanRandom random(seed);
        PlanStep step;
        step.shape = random_shape(random);
        step.shape.mode = random.between(0, 1);
        step.add(random_context(random), random_tree(random, 64 / step.shape.heads, 0));
        const AttnEngine engine = random.engine();
        step.make_plan(engine);
        EXPECT_EQ(step.shared(),
                  step.shape.mode == KDT_ATTN_DETERMINISTIC && step.shape.kind == KDT_ATTN_MLA &&
                      step.shape.kv_format == KDT_KV_BF16 && engine == AttnEngine::wgmma_sm90);
    }
}

// A host allocates for its largest step.
TEST(AttnPlan, WorkspaceNeverShrinksWithMoreNodes) {
    for (const int32_t heads : {1, 2, 4, 7, 8, 12, 64}) {
        for (const int32_t requests : {1, 8, 64}) {
            for (const int32_t context : {4096, 131072}) {
                SCOPED_TRACE(testing::Message() << heads << " heads, " << requests << " requests, "
                                                << context << " tokens");
                kdt_attn_shape shape = mla_shape(heads);
                shape.mode = KDT_ATTN_DETERMINISTIC;
                shape.max_depth = 16;
                size_t before = 0;
                for (int32_t nodes = 1; nodes <= 160; ++nodes) {
                    const size_t bytes =
                        attn_workspace(shape, requests, nodes, context, 132, nullptr).bytes;
                    ASSERT_GE(bytes, before) << nodes << " nodes";
                    before = bytes;
                }
            }
        }
    }
}

TEST(AttnPlan, SegmentTilesOfMla) {
    const struct {
        int32_t context, tiles, segments;
    } lengths[] = {{100, 3, 1},     {4096, 3, 29},   {8192, 3, 57},    {16384, 6, 57},
                   {32768, 11, 63}, {65536, 22, 63}, {131072, 44, 63}, {262144, 88, 63}};
    for (const int32_t heads : {8, 64, 128}) {
        PlanStep step;
        step.shape = mla_shape(heads);
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        step.make_plan();
        for (const auto& of : lengths) {
            SCOPED_TRACE(testing::Message() << heads << " heads, " << of.context << " keys");
            const int32_t keys = segment_of(step.plan_shape, of.context);
            EXPECT_EQ(keys, of.tiles * kMlaWgmmaTileKeys);
            EXPECT_EQ(ceil_div(of.context, keys), of.segments);
        }
    }
}

TEST(AttnPlan, DeterministicRecipeAroundASegmentLengthChange) {
    // One request with nodes of both lengths; each row is merged from the segments of its own.
    PlanRandom random(1);
    PlanStep step;
    step.shape = mla_shape(8);
    step.shape.mode = KDT_ATTN_DETERMINISTIC;
    step.shape.max_depth = 16;
    std::vector<int32_t> chain(17);
    std::iota(chain.begin(), chain.end(), 0);
    step.add(0, chain);
    step.max_context = 140000;
    step.make_plan();
    int32_t changes = 0;
    for (int32_t boundary = kBoundaryKeys; boundary < 135000; boundary += kBoundaryKeys) {
        const int32_t then = boundary + kBoundaryKeys;
        const int32_t keys = segment_of(step.plan_shape, boundary);
        const int32_t then_keys = segment_of(step.plan_shape, then);
        if (keys == then_keys) continue;
        SCOPED_TRACE(boundary);
        ++changes;
        step.context[0] = then + 8;
        step.make_plan();
        const int32_t partials = ceil_div(boundary, keys);
        const int32_t then_partials = ceil_div(then, then_keys);
        EXPECT_EQ(step.plan.merge_items.size(), 17u * 8);
        EXPECT_EQ(step.plan.merge_items.front().partials, partials);
        EXPECT_EQ(step.plan.merge_items.back().partials, then_partials);
        const int32_t path_units = (16 >> step.plan.merge_items.front().path_nodes_log2) + 1;
        EXPECT_EQ(step.plan.header.partials, 3 * (partials + then_partials) + path_units);
        expect_within_capacity(step);
        expect_deterministic_recipes(step, random);
    }
    EXPECT_GT(changes, 20);
}

TEST(AttnPlan, DeterministicRunsFillTheDevice) {
    // No block has a path beside a segment's run.
    const struct {
        int32_t nodes, context;
        bool shared;
        size_t segments;  // of the block that has most of them
    } steps[] = {{1, 4096, true, 1},    {32, 4096, false, 1},  {8, 16384, true, 1},
                 {16, 16384, false, 1}, {32, 16384, false, 2}, {64, 16384, false, 4},
                 {1, 65536, true, 1},   {8, 65536, true, 1},   {16, 65536, false, 1},
                 {32, 65536, false, 2}, {64, 65536, false, 4}};
    for (const auto& of : steps) {
        SCOPED_TRACE(testing::Message() << of.nodes << " nodes, " << of.context << " keys");
        PlanStep step;
        step.shape = mla_shape(8);
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        step.shape.max_depth = 16;
        step.add(of.context, std::vector<int32_t>(PlanStep::at(of.nodes), 0));
        step.make_plan();
        expect_within_capacity(step);
        EXPECT_EQ(step.shared(), of.shared);
        size_t most = 0;
        for (int32_t block = 0; block < step.multiprocessors; ++block) {
            const std::vector<int32_t> units = units_of_block(step, block);
            const auto paths = std::ranges::count_if(
                units, [&](int32_t u) { return step.plan.units[PlanStep::at(u)].path_node >= 0; });
            EXPECT_TRUE(paths == 0 || static_cast<size_t>(paths) == units.size()) << block;
            most = std::max(most, units.size() - static_cast<size_t>(paths));
        }
        EXPECT_EQ(most, of.segments);
    }
}

TEST(AttnPlan, DeterministicPathsWithoutPrefixTakeOneWave) {
    PlanStep step;
    step.shape = mla_shape(8);
    step.shape.mode = KDT_ATTN_DETERMINISTIC;
    step.shape.max_depth = 16;
    for (int32_t r = 0; r < 64; ++r) step.add(0, std::vector<int32_t>(8, 0));
    step.make_plan();
    EXPECT_EQ(step.plan.units.size(), 128u);  // of four nodes; of two they would take two waves
    expect_within_capacity(step);
}

TEST(AttnPlan, DeterministicPairs) {
    const struct {
        int32_t context, nodes;
        int32_t with_tile, with_segment, alone;  // pairs of the prefix
    } steps[] = {{65536, 1, 0, 0, 128},          // a block for each of 16 segments of 8 K/V heads
                 {65536, 16, 0, 0, 128},         // the same, 64 rows
                 {65536, 32, 128, 0, 0},         // two row tiles
                 {65536, 48, 0, 192, 0},         // three
                 {65536, 64, 256, 0, 0},         // four
                 {4096, 8, 0, 0, 104},           // 13 segments leave blocks for the paths
                 {4096, 48, 0, 144, 24}};        // an odd number of them, of three row tiles
    for (const auto& of : steps) {
        SCOPED_TRACE(testing::Message() << of.nodes << " nodes, " << of.context << " keys");
        PlanStep step;
        step.shape = mla_shape(32);
        step.shape.kind = KDT_ATTN_GQA;
        step.shape.kv_heads = 8;
        step.shape.head_dim = 128;
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        step.shape.max_depth = 16;
        step.add(of.context + 16, std::vector<int32_t>(PlanStep::at(of.nodes), 0));
        step.make_plan();
        expect_within_capacity(step);
        int32_t with_tile = 0, with_segment = 0, alone = 0, paths = 0;
        for (size_t i = 0; i < step.plan.units.size(); i += 2) {
            const WorkUnit& a = step.plan.units[i];
            const WorkUnit& b = step.plan.units[i + 1];
            EXPECT_EQ(a.next, b.next);
            EXPECT_EQ(a.request, b.request);
            EXPECT_LT(a.key_begin, a.key_end);
            if (a.path_node >= 0) {
                paths += b.key_begin < b.key_end ? 2 : 1;
                EXPECT_GE(b.path_node, 0);
            } else if (b.key_begin == b.key_end) {
                ++alone;
            } else if (b.key_begin == a.key_begin) {
                ++with_tile;
                EXPECT_EQ(std::tie(a.key_end, a.kv_head), std::tie(b.key_end, b.kv_head));
                EXPECT_EQ(a.row_begin + kTileRows, b.row_begin);
            } else {
                ++with_segment;
                EXPECT_EQ(std::tie(a.key_end, a.kv_head, a.row_begin),
                          std::tie(b.key_begin, b.kv_head, b.row_begin));
            }
        }
        EXPECT_EQ(std::tie(with_tile, with_segment, alone),
                  std::tie(of.with_tile, of.with_segment, of.alone));
        const int32_t path_nodes = 1 << step.plan.merge_items[0].path_nodes_log2;
        EXPECT_EQ(paths, 8 * ceil_div(of.nodes, path_nodes));
    }
}

}  // namespace kd
