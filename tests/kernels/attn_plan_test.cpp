// The planner on the CPU: what attn_plan.cu decides, through attn_plan_ref, on random steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/attn_plan/attn_plan_ref.h"
#include "kernels/attn_plan/attn_workspace.h"

namespace kd {

namespace {

class PlanRandom {
  public:
    explicit PlanRandom(uint32_t seed) : engine_(seed) {}
    int32_t between(int32_t least, int32_t most) {
        const auto choices = static_cast<uint32_t>(most - least) + 1;
        return least + static_cast<int32_t>(static_cast<uint32_t>(engine_()) % choices);
    }
    bool one_in(int32_t n) { return between(1, n) == 1; }
    template <class T>
    T one_of(std::initializer_list<T> values) {
        return values.begin()[between(0, static_cast<int32_t>(values.size()) - 1)];
    }

  private:
    std::mt19937 engine_;
};

/// One step: the host arrays, the shape and what is planned for it.
struct Step {
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
        plan_shape = kd::plan_shape(shape, workspace, multiprocessors, engine);
        plan = attn_plan_ref(plan_shape, {.context = context,
                                          .node_start = node_start,
                                          .depth = depth,
                                          .pages_start = pages_start});
    }
};

constexpr std::initializer_list<AttnEngine> kEngines = {
    AttnEngine::wgmma_sm90, AttnEngine::mma_sync_sm90, AttnEngine::mma_sync_sm120};

kdt_attn_shape mla_shape(int32_t heads) {
    kdt_attn_shape shape = {};
    shape.struct_bytes = sizeof shape;
    shape.kind = KDT_ATTN_MLA;
    shape.heads = heads;
    shape.kv_heads = 1;
    shape.head_dim = 576;
    return shape;
}

kdt_attn_shape random_shape(PlanRandom& random) {
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

int32_t random_context(PlanRandom& random) {
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
std::vector<int32_t> random_tree(PlanRandom& random, int32_t nodes, int32_t max_depth) {
    std::vector<int32_t> depth;
    for (int32_t i = 0; i < nodes; ++i) {
        const int32_t parent = random.one_in(3) ? i - 1 : random.between(0, std::max(0, i - 1));
        const int32_t below = i == 0 ? 0 : depth[static_cast<size_t>(parent)] + 1;
        depth.push_back(std::min(below, max_depth));
    }
    return depth;
}

Step random_step(PlanRandom& random) {
    Step step;
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

/// The units that block `block` takes, as first_unit and next_unit say, of pairs both.
std::vector<int32_t> units_of_block(const Step& step, int32_t block) {
    const int32_t width = step.plan_shape.deterministic ? entry_width(step.plan_shape) : 1;
    std::vector<int32_t> indices;
    int32_t index = block < step.plan.header.runs ? width * block : kLastUnit;
    while (index < step.plan.header.units) {
        for (int32_t i = 0; i < width; ++i) indices.push_back(index + i);
        const int32_t next = step.plan.units[Step::at(index)].next;
        index = next != 0 ? next : index + step.multiprocessors;
    }
    return indices;
}

void expect_every_unit_is_taken(const Step& step) {
    std::vector<int32_t> taken(step.plan.units.size());
    for (int32_t block = 0; block < step.multiprocessors; ++block) {
        for (const int32_t index : units_of_block(step, block)) {
            ASSERT_EQ(++taken[Step::at(index)], 1) << "unit " << index << ", block " << block;
        }
    }
    EXPECT_TRUE(std::ranges::all_of(taken, [](int32_t t) { return t == 1; }));
}

void expect_within_capacity(const Step& step) {
    const PlanHeader& header = step.plan.header;
    EXPECT_LE(header.units, step.workspace.unit_capacity);
    EXPECT_LE(header.partials, step.workspace.partial_capacity);
    EXPECT_LE(header.merge_items, step.workspace.merge_item_capacity);
    EXPECT_EQ(header.units, static_cast<int32_t>(step.plan.units.size()));
    EXPECT_LE(header.runs, header.units);
    expect_every_unit_is_taken(step);
    EXPECT_EQ(header.merge_items, static_cast<int32_t>(step.plan.merge_items.size()));
    std::vector<int32_t> written(static_cast<size_t>(header.partials));
    for (const WorkUnit& unit : step.plan.units) {
        EXPECT_EQ(unit.context, step.context[Step::at(unit.request)]);
        EXPECT_EQ(unit.nodes, step.nodes(unit.request));
        EXPECT_EQ(unit.first_node, step.node_start[Step::at(unit.request)]);
        EXPECT_EQ(unit.pages_begin, step.pages_start[Step::at(unit.request)]);
        if (unit.partial < 0) continue;
        ASSERT_LT(unit.partial, header.partials);
        EXPECT_EQ(++written[static_cast<size_t>(unit.partial)], 1);
    }
    EXPECT_TRUE(std::ranges::all_of(written, [](int32_t times) { return times == 1; }));
}

using TileKey = std::tuple<int32_t, int32_t, int32_t>;  // request, K/V head, first row

/// Units by the row tile they work for, in the order of the list.
std::map<TileKey, std::vector<WorkUnit>> units_of_tiles(const Step& step) {
    std::map<TileKey, std::vector<WorkUnit>> tiles;
    for (const WorkUnit& unit : step.plan.units) {
        if (unit.path_node >= 0) continue;
        tiles[{unit.request, unit.kv_head, unit.row_begin}].push_back(unit);
    }
    return tiles;
}

/// Merge items by their first row; those of a row tile cover its rows in order.
std::map<TileKey, MergeItem> merge_items_of(const Step& step) {
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
        EXPECT_EQ(item.first_node, step.node_start[Step::at(item.request)]);
        rows_seen[key] += item.rows;
    }
    for (const auto& [key, rows] : rows_seen) {
        const auto [request, kv_head, begin] = key;
        EXPECT_EQ(rows, std::min(kTileRows, step.nodes(request) * step.group() - begin));
    }
    return items;
}

/// Every row tile of every request: its keys are covered once, in order, in parts of whole tiles
/// that differ by at most one; split ones, and no others, have an entry for the combine.
void expect_fast_plan_covers(const Step& step) {
    const auto units = units_of_tiles(step);
    const auto merged = merge_items_of(step);
    size_t items = 0;
    const int32_t tile_keys = step.plan_shape.tile_keys;
    size_t seen = 0;
    for (int32_t r = 0; r < step.requests(); ++r) {
        const int32_t keys = step.context[Step::at(r)] + step.nodes(r);
        const int32_t window = step.shape.sliding_window;
        const int32_t oldest = window > 0 ? std::max(0, step.context[Step::at(r)] - window + 1) : 0;
        for (int32_t kv_head = 0; kv_head < step.shape.kv_heads; ++kv_head) {
            for (int32_t tile = 0; tile < step.row_tiles(r); ++tile) {
                const TileKey key{r, kv_head, tile * kTileRows};
                ASSERT_TRUE(units.contains(key));
                const std::vector<WorkUnit>& parts = units.at(key);
                ++seen;
                int32_t next = oldest / tile_keys * tile_keys;
                int32_t least = INT32_MAX;
                int32_t most = 0;
                for (size_t i = 0; i < parts.size(); ++i) {
                    const WorkUnit& unit = parts[i];
                    EXPECT_EQ(unit.rows,
                              std::min(kTileRows, step.nodes(r) * step.group() - tile * kTileRows));
                    EXPECT_EQ(unit.key_begin, next);
                    EXPECT_EQ(unit.segment_keys, 0);
                    EXPECT_GT(unit.key_end, unit.key_begin);
                    if (i + 1 < parts.size()) {
                        EXPECT_EQ(unit.key_end % tile_keys, 0);
                    }
                    const int32_t tiles = ceil_div(unit.key_end - unit.key_begin, tile_keys);
                    least = std::min(least, tiles);
                    most = std::max(most, tiles);
                    next = unit.key_end;
                }
                EXPECT_EQ(next, keys);
                EXPECT_LE(most - least, 1);
                EXPECT_EQ(merged.contains(key), parts.size() > 1);
                if (parts.size() == 1) {
                    EXPECT_EQ(parts[0].partial, -1);
                    continue;
                }
                for (auto of = merged.find(key); of != merged.end(); ++of) {
                    if (of->first >= TileKey{r, kv_head, (tile + 1) * kTileRows}) break;
                    ++items;
                    const MergeItem& item = of->second;
                    EXPECT_EQ(item.path_partial, -1);
                    EXPECT_EQ(static_cast<size_t>(item.partials), parts.size());
                    EXPECT_EQ(item.first_partial, parts[0].partial);
                    EXPECT_EQ(item.chunks, ceil_div(item.partials, kMergeChunk));
                }
                for (size_t i = 0; i < parts.size(); ++i) {
                    EXPECT_EQ(parts[i].partial, parts[0].partial + static_cast<int32_t>(i));
                    EXPECT_EQ(parts[i].seen_end,
                              std::min(parts[i].key_end, step.context[Step::at(r)]));
                }
            }
        }
    }
    EXPECT_EQ(seen, units.size());
    EXPECT_EQ(items, merged.size());
}

/// Neighbours in the list read the same keys: row tiles fastest, then K/V heads, then parts.
void expect_row_tiles_fastest(const Step& step) {
    for (size_t i = 1; i < step.plan.units.size(); ++i) {
        const WorkUnit& a = step.plan.units[i - 1];
        const WorkUnit& b = step.plan.units[i];
        EXPECT_LT(std::tie(a.request, a.key_begin, a.kv_head, a.row_begin),
                  std::tie(b.request, b.key_begin, b.kv_head, b.row_begin));
    }
}

/// What a row's result is made of, in the order it is made: for each merge chunk the key ranges
/// that the row sees, one a partial. [chunk][partial] (segment length, first key, end).
using Recipe = std::vector<std::vector<std::array<int32_t, 3>>>;

/// A node by what its recipe may depend on, and the shape's constants.
struct NodePlace {
    int32_t position;
    int32_t oldest;  // key in its window
    int32_t boundary;
    int32_t segment_keys;

    NodePlace(const Step& step, int32_t r, int32_t node)
        : position(step.context[Step::at(r)] +
                   step.depth[Step::at(step.node_start[Step::at(r)] + node)]),
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
Recipe planned_recipe(const Step& step, const std::map<TileKey, MergeItem>& items,
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
            EXPECT_LE(unit.key_end, step.context[Step::at(r)]);
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

void expect_deterministic_recipes(const Step& step, PlanRandom& random) {
    const auto items = merge_items_of(step);
    std::map<int32_t, WorkUnit> unit_of_partial;
    for (const WorkUnit& unit : step.plan.units) {
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

TEST(AttnPlan, FastModeCoversEveryRowTileAndKeyTileOnce) {
    for (uint32_t seed = 0; seed < 3000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        PlanRandom random(seed);
        Step step = random_step(random);
        if (random.one_in(4)) step.shape.splits = random.one_of({1, 2, 16, 64, 5000});
        step.make_plan(random.one_of(kEngines));
        expect_within_capacity(step);
        expect_fast_plan_covers(step);
        expect_row_tiles_fastest(step);
        if (testing::Test::HasFailure()) return;
    }
}

TEST(AttnPlan, FastModeIgnoresTheDepth) {
    Step step;
    step.shape = mla_shape(32);
    step.shape.kind = KDT_ATTN_GQA;
    step.shape.kv_heads = 8;
    step.shape.head_dim = 128;
    step.add(4096, std::vector<int32_t>(16, 0));
    step.make_plan();
    const int32_t units = step.plan.header.units;
    for (const int32_t depth : {-1, -20, -32, INT32_MIN, INT32_MAX}) {
        SCOPED_TRACE(depth);
        step.shape.max_depth = depth;
        step.make_plan();
        EXPECT_EQ(step.workspace.path_keys, 0);
        EXPECT_EQ(step.plan_shape.path_keys, 0);
        EXPECT_EQ(step.plan.header.units, units);
        expect_fast_plan_covers(step);
    }
}

TEST(AttnPlan, DeterministicRecipeIsAFunctionOfThePath) {
    for (uint32_t seed = 0; seed < 600; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        PlanRandom random(seed);
        Step step = random_step(random);
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        if (step.requests() > 3) {  // the replay is slow on large plans
            step.shape.heads = step.shape.kv_heads = 1;
        }
        step.make_plan(random.one_of(kEngines));
        expect_within_capacity(step);
        expect_deterministic_recipes(step, random);
        if (testing::Test::HasFailure()) return;
    }
}

TEST(AttnPlan, DeterministicRecipeAroundASegmentLengthChange) {
    // One request with nodes of both lengths; each row is merged from the segments of its own.
    const struct {
        int32_t boundary;  // the last of the shorter context's length
        int32_t segments;
        int32_t then;
    } changes[] = {{1536, 32, 17},     // of one tile of 48 keys, of two
                   {3072, 32, 22},     // of two, of three
                   {9216, 64, 49},     // of three, of four
                   {49152, 64, 114}};  // of 16, of nine: no longer half as many
    for (const auto& change : changes) {
        SCOPED_TRACE(change.boundary);
        PlanRandom random(1);
        Step step;
        step.shape = mla_shape(8);
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        step.shape.max_depth = 16;
        std::vector<int32_t> chain(17);
        std::iota(chain.begin(), chain.end(), 0);
        step.add(change.boundary + kBoundaryKeys + 8, chain);
        step.make_plan();
        EXPECT_EQ(step.plan.merge_items.size(), 17u * 8);
        EXPECT_EQ(step.plan.merge_items.front().partials, change.segments);
        EXPECT_EQ(step.plan.merge_items.back().partials, change.then);
        const int32_t path_units = (16 >> step.plan.merge_items.front().path_nodes_log2) + 1;
        EXPECT_EQ(step.plan.header.partials, 3 * (change.segments + change.then) + path_units);
        expect_within_capacity(step);
        expect_deterministic_recipes(step, random);
    }
}

TEST(AttnPlan, DeterministicRunsFillTheDevice) {
    // {segments, paths} of the block that has most of them.
    auto busiest = [](int32_t nodes, int32_t context) {
        Step step;
        step.shape = mla_shape(8);
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        step.shape.max_depth = 16;
        step.add(context, std::vector<int32_t>(static_cast<size_t>(nodes), 0));
        step.make_plan();
        expect_within_capacity(step);
        std::pair<size_t, size_t> most;
        for (int32_t block = 0; block < step.multiprocessors; ++block) {
            std::pair<size_t, size_t> has;
            for (const int32_t index : units_of_block(step, block)) {
                const bool path = step.plan.units[Step::at(index)].path_node >= 0;
                ++(path ? has.second : has.first);
            }
            most = std::max(most, has);
        }
        return most;
    };
    const std::pair<size_t, size_t> one(1, 0), two(2, 0), four(4, 0);
    EXPECT_EQ(busiest(1, 65536), one);  // 125 segments and a path
    EXPECT_EQ(busiest(8, 65536), one);
    EXPECT_EQ(busiest(16, 65536), two);
    EXPECT_EQ(busiest(32, 65536), four);
    EXPECT_EQ(busiest(1, 4096), one);
    EXPECT_EQ(busiest(32, 16384), two);  // 57 segments
}

TEST(AttnPlan, DeterministicPathsWithoutPrefixTakeOneWave) {
    Step step;
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
        Step step;
        step.shape = mla_shape(32);
        step.shape.kind = KDT_ATTN_GQA;
        step.shape.kv_heads = 8;
        step.shape.head_dim = 128;
        step.shape.mode = KDT_ATTN_DETERMINISTIC;
        step.shape.max_depth = 16;
        step.add(of.context + 16, std::vector<int32_t>(Step::at(of.nodes), 0));
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

TEST(AttnPlan, ForcedSplits) {
    Step step;
    step.shape = mla_shape(8);
    step.add(4096, std::vector<int32_t>(8, 0));
    for (const int32_t splits : {1, 2, 16, 64, 65, 66, 86, 87, 1000}) {
        step.shape.splits = splits;
        step.make_plan(AttnEngine::mma_sync_sm90);  // tiles of 64 keys
        EXPECT_EQ(step.plan.header.units, std::min(splits, 65)) << splits;
        step.make_plan(AttnEngine::wgmma_sm90);  // of 48
        EXPECT_EQ(step.plan.header.units, std::min(splits, 86)) << splits;
    }
    // 256 row tiles by 64 parts do not fit: as many parts as 16 partials a multiprocessor allow.
    step = {};
    step.shape = mla_shape(128);
    step.shape.splits = 64;
    step.add(65536, std::vector<int32_t>(128, 0));
    step.make_plan();
    EXPECT_EQ(step.plan.header.units, 256 * (16 * 132 / 256));
}

TEST(AttnPlan, EmptySteps) {
    for (const int32_t mode : {KDT_ATTN_FAST, KDT_ATTN_DETERMINISTIC}) {
        Step step;
        step.shape = mla_shape(8);
        step.shape.mode = mode;
        step.add(1000, {});
        step.add(0, {});
        step.make_plan();
        EXPECT_EQ(step.plan.header.units, 0);
        EXPECT_EQ(step.plan.header.merge_items, 0);
    }
}

TEST(AttnPlan, SplitsFollowContextRowsAndDevice) {
    auto units = [](int32_t heads, int32_t nodes, int32_t context, int32_t requests = 1) {
        Step step;
        step.shape = mla_shape(heads);
        for (int32_t r = 0; r < requests; ++r) {
            step.add(context, std::vector<int32_t>(static_cast<size_t>(nodes), 0));
        }
        step.make_plan();
        return step.plan.header.units;
    };
    EXPECT_EQ(units(8, 8, 0), 1);         // one tile
    EXPECT_EQ(units(8, 8, 4096), 86);     // one tile of 48 keys each
    EXPECT_GT(units(8, 8, 131072), 110);  // most multiprocessors, one row tile
    EXPECT_LE(units(8, 8, 131072), 132);  // one wave
    EXPECT_EQ(units(8, 16, 4096), 2 * 43);
    EXPECT_EQ(units(8, 16, 65536), 132);   // 2 row tiles, 66 parts
    EXPECT_EQ(units(64, 32, 65536), 128);  // 32 row tiles, 4 parts
    EXPECT_EQ(units(32, 128, 777), 64);    // 64 row tiles: a cut would cost more than it saves
    EXPECT_EQ(units(8, 128, 16384, 64), 64 * 16);  // 7.8 waves without a cut
}

TEST(AttnPlan, WorkspacePartsAreAlignedAndApart) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        PlanRandom random(seed);
        Step step = random_step(random);
        step.shape.mode = random.between(0, 1);
        step.max_nodes = std::max(step.max_nodes, 1);
        // Nothing is read or written there.
        void* base = reinterpret_cast<void*>(uintptr_t{1} << 40);
        const AttnWorkspace w = attn_workspace(step.shape, step.requests(), step.max_nodes,
                                               step.max_context, 132, base);
        std::vector<std::pair<const void*, size_t>> parts = {
            {w.header, sizeof(PlanHeader)},
            {w.units, Step::at(w.unit_capacity) * sizeof(WorkUnit)},
            {w.merge_items, Step::at(w.merge_item_capacity) * sizeof(MergeItem)},
            {w.path_slots, Step::at(step.max_nodes) * Step::at(w.path_keys) * 4}};
        if (step.shape.kind == KDT_ATTN_MLA) {
            parts.emplace_back(w.first_slots, size_t{132} * kFirstSlots * 4);
        }
        const size_t partial_rows = Step::at(w.partial_capacity) * kTileRows;
        parts.emplace_back(w.partial_lse, partial_rows * 4);
        parts.emplace_back(w.partial_out, partial_rows * 2 * Step::at(attn_value_dim(step.shape)));
        auto next = reinterpret_cast<uintptr_t>(base);
        for (const auto& [begin, bytes] : parts) {
            EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 256, 0u);
            EXPECT_GE(reinterpret_cast<uintptr_t>(begin), next);
            next = reinterpret_cast<uintptr_t>(begin) + bytes;
        }
        EXPECT_LE(next, reinterpret_cast<uintptr_t>(base) + w.bytes);
    }
}

}  // namespace kd
