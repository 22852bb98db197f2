// The planner on the CPU: what attn_plan.cu decides, through attn_plan_ref, on random steps. Fast
// mode, what is considered, where everything lies; attn_plan_deterministic_test.cpp has the rest.
#include <string>
#include <utility>

#include "attn_plan_step.h"

namespace kd {

namespace {

/// Units by the row tile they work for, in the order of the list.
std::map<TileKey, std::vector<WorkUnit>> units_of_tiles(const PlanStep& step) {
    std::map<TileKey, std::vector<WorkUnit>> tiles;
    for (const WorkUnit& unit : step.plan.units) {
        if (unit.path_node >= 0) continue;
        tiles[{unit.request, unit.kv_head, unit.row_begin}].push_back(unit);
    }
    return tiles;
}

/// Every row tile of every request: its keys are covered once, in order, in parts of whole tiles
/// that differ by at most one; split ones, and no others, have an entry for the combine.
void expect_fast_plan_covers(const PlanStep& step) {
    const auto units = units_of_tiles(step);
    const auto merged = merge_items_of(step);
    size_t items = 0;
    const int32_t tile_keys = step.plan_shape.tile_keys;
    size_t seen = 0;
    for (int32_t r = 0; r < step.requests(); ++r) {
        const int32_t keys = step.context[PlanStep::at(r)] + step.nodes(r);
        const int32_t window = step.shape.sliding_window;
        const int32_t oldest =
            window > 0 ? std::max(0, step.context[PlanStep::at(r)] - window + 1) : 0;
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
                              std::min(parts[i].key_end, step.context[PlanStep::at(r)]));
                }
            }
        }
    }
    EXPECT_EQ(seen, units.size());
    EXPECT_EQ(items, merged.size());
}

/// Neighbours in the list read the same keys: row tiles fastest, then K/V heads, then parts.
void expect_row_tiles_fastest(const PlanStep& step) {
    for (size_t i = 1; i < step.plan.units.size(); ++i) {
        const WorkUnit& a = step.plan.units[i - 1];
        const WorkUnit& b = step.plan.units[i];
        EXPECT_LT(std::tie(a.request, a.key_begin, a.kv_head, a.row_begin),
                  std::tie(b.request, b.key_begin, b.kv_head, b.row_begin));
    }
}

}  // namespace

TEST(AttnPlan, FastModeCoversEveryRowTileAndKeyTileOnce) {
    for (uint32_t seed = 0; seed < 3000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        PlanRandom random(seed);
        PlanStep step = random_step(random);
        if (random.one_in(4)) step.shape.splits = random.one_of({1, 2, 16, 64, 5000});
        step.make_plan(random.engine());
        expect_within_capacity(step);
        expect_fast_plan_covers(step);
        expect_row_tiles_fastest(step);
        if (testing::Test::HasFailure()) return;
    }
}

TEST(AttnPlan, FastModeIgnoresTheDepth) {
    PlanStep step;
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

TEST(AttnPlan, CandidatesLeftOutAreTheSameStep) {
    int32_t left_out = 0;
    for (uint32_t seed = 0; seed < 500; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        PlanRandom random(seed);
        PlanStep step = random_step(random);
        step.shape.mode = random.between(0, 1);
        step.make_plan(random.engine());
        const PlanShape& shape = step.plan_shape;
        std::vector<PlanRequest> requests;
        PlanTotals totals;
        for (int32_t r = 0; r < step.requests(); ++r) {
            if (step.nodes(r) == 0) continue;
            const PlanExtent extent = {step.context[PlanStep::at(r)], step.nodes(r),
                                       step.node_start[PlanStep::at(r)], 0};
            const auto first = step.depth.begin() + extent.first_node;
            const auto [least, most] = std::minmax_element(first, first + extent.nodes);
            requests.push_back(plan_request(shape, extent, *least, *most));
            requests.back().adjacent = random.one_in(2);
            totals.most_tiles = std::max(totals.most_tiles, requests.back().tiles);
            totals.least_segment_tiles =
                std::min(totals.least_segment_tiles, requests.back().segment_tiles);
        }
        for (int32_t parts = 2; parts <= kMostSplits; ++parts) {
            if (plan_considers(shape, totals, parts)) continue;
            ++left_out;
            for (const PlanRequest& request : requests) {
                EXPECT_EQ(
                    plan_parts(shape, request, plan_choice(shape, totals.most_tiles, parts)),
                    plan_parts(shape, request, plan_choice(shape, totals.most_tiles, parts - 1)))
                    << parts << " parts";
            }
        }
        if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(left_out, 20000);
}

TEST(AttnPlan, ForcedSplits) {
    PlanStep step;
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
        PlanStep step;
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
        PlanStep step;
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
        PlanStep step = random_step(random);
        step.shape.mode = random.between(0, 1);
        step.max_nodes = std::max(step.max_nodes, 1);
        // Nothing is read or written there.
        void* base = reinterpret_cast<void*>(uintptr_t{1} << 40);
        const AttnWorkspace w = attn_workspace(step.shape, step.requests(), step.max_nodes,
                                               step.max_context, 132, base);
        std::vector<std::pair<const void*, size_t>> parts = {
            {w.header, sizeof(PlanHeader)},
            {w.units, PlanStep::at(w.unit_capacity) * sizeof(WorkUnit)},
            {w.merge_items, PlanStep::at(w.merge_item_capacity) * sizeof(MergeItem)},
            {w.path_slots, PlanStep::at(step.max_nodes) * PlanStep::at(w.path_keys) * 4}};
        if (step.shape.kind == KDT_ATTN_MLA) {
            parts.emplace_back(w.first_slots, size_t{132} * kFirstSlots * 4);
        }
        const size_t partial_rows = PlanStep::at(w.partial_capacity) * kTileRows;
        parts.emplace_back(w.partial_lse, partial_rows * 4);
        parts.emplace_back(w.partial_out,
                           partial_rows * 2 * PlanStep::at(attn_value_dim(step.shape)));
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
