// attn_combine on random partials against its reference, and to the bit where it has to be.
#include <cmath>
#include <limits>

#include "device_array.h"
#include "kernels/attn_combine/attn_combine.h"
#include "kernels/attn_combine/attn_combine_ref.h"
#include "kernels/attn_plan/attn_merge.h"
#include "kernels/attn_plan/quad_layout.h"
#include "kernels/cases/random.h"

namespace kd {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr uint16_t kNaNBits = 0x7fff;
constexpr int32_t kFirstNode = 3;      // of the request, in the step
constexpr uint8_t kPathNodesLog2 = 2;  // nodes of a path unit

/// A row tile whose keys were split.
struct RowTile {
    int32_t kv_head;
    int32_t row_begin;
    int32_t rows;
    int32_t first_partial;
    int32_t partials;
    int32_t path_partial;
    int32_t phase;
};

/// Row tiles of one request, and partials for them.
struct Partials {
    int32_t value_dim;
    int32_t kv_heads;
    int32_t group;
    int32_t nodes;
    std::vector<RowTile> tiles;
    int32_t partials = 0;
    PartialLayout layout = PartialLayout::rows;
    std::vector<float> lse;
    std::vector<uint16_t> out;

    int32_t heads() const { return kv_heads * group; }

    /// `counts[i % ...]`: partials of row tile i; deterministic: and a path.
    Partials(int32_t dim, int32_t kv_heads_, int32_t group_, int32_t nodes_,
             std::vector<int32_t> counts, bool deterministic, uint32_t seed)
        : value_dim(dim), kv_heads(kv_heads_), group(group_), nodes(nodes_) {
        for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
            for (int32_t row = 0; row < nodes * group; row += kTileRows) {
                const int32_t count = counts[tiles.size() % counts.size()];
                tiles.push_back({.kv_head = kv_head,
                                 .row_begin = row,
                                 .rows = std::min(kTileRows, nodes * group - row),
                                 .first_partial = partials,
                                 .partials = count,
                                 .path_partial = -1,
                                 .phase = 0});
                partials += count;
            }
        }
        if (deterministic) {
            for (RowTile& tile : tiles) {
                tile.path_partial = partials;
                tile.phase = 5;
            }
            partials += nodes * kv_heads * ((group + kTileRows - 1) / kTileRows);
        }
        CaseRandom random(seed);
        lse.assign(static_cast<size_t>(partials) * kTileRows, kNothing);
        out.assign(lse.size() * static_cast<size_t>(dim), kNaNBits);
        for (size_t row = 0; row < lse.size(); ++row) {
            if (random.below(4) == 0) continue;  // saw no key; its values are NaN
            lse[row] = random.value(12);
            for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
                out[row * static_cast<size_t>(dim) + i] = f32_to_bf16(random.value());
            }
        }
    }

    /// The same values in another layout.
    void set_layout(PartialLayout to) {
        const Partials before = *this;
        layout = to;
        for (size_t row = 0; row < lse.size(); ++row) {
            for (int32_t column = 0; column < value_dim; ++column)
                out[value_at(row, column)] = before.out[before.value_at(row, column)];
        }
    }
    /// Where value `column` of row `row` of all partials is.
    size_t value_at(size_t row, int32_t column) const {
        const int32_t in_row =
            layout == PartialLayout::rows ? column : quad_pair_at(0, column / 2 * 2) + column % 2;
        return row * static_cast<size_t>(value_dim) + static_cast<size_t>(in_row);
    }

    /// The combine's list, as attn_plan makes it.
    std::vector<MergeItem> merge_items() const {
        std::vector<MergeItem> items;
        for (const RowTile& tile : tiles) {
            MergeItem item = {.first_node = kFirstNode,
                              .row_begin = 0,
                              .first_partial = tile.first_partial,
                              .path_partial = tile.path_partial,
                              .request = 0,
                              .partials = static_cast<uint16_t>(tile.partials),
                              .phase = static_cast<uint8_t>(tile.phase),
                              .kv_head = static_cast<uint8_t>(tile.kv_head),
                              .rows = 0,
                              .teams_log2 = 0,
                              .chunks = 0,
                              .path_nodes_log2 = kPathNodesLog2,
                              .unused = {}};
            item.chunks = static_cast<uint8_t>(merge_chunks(item));
            item.teams_log2 =
                static_cast<uint8_t>(merge_teams_log2(item.chunks, item.path_partial >= 0));
            const int32_t most_rows = merge_rows(item.teams_log2);
            for (int32_t row = 0; row < tile.rows; row += most_rows) {
                item.row_begin = tile.row_begin + row;
                item.rows = static_cast<uint8_t>(std::min(most_rows, tile.rows - row));
                items.push_back(item);
            }
        }
        return items;
    }

    struct Result {
        std::vector<uint16_t> out;
        std::vector<float> lse;
    };
    Result run(int32_t multiprocessors) const {
        const std::vector<MergeItem> items = merge_items();
        const std::vector<PlanHeader> header = {{.units = 0,
                                                 .runs = 0,
                                                 .merge_items = static_cast<int32_t>(items.size()),
                                                 .partials = partials,
                                                 .reserved = {}}};
        const DeviceArray<PlanHeader> d_header(header);
        const DeviceArray<MergeItem> d_items(items);
        const DeviceArray<float> d_partial_lse(lse);
        const DeviceArray<uint16_t> d_partial_out(out);
        const auto rows = static_cast<size_t>((kFirstNode + nodes) * heads());
        const DeviceArray<uint16_t> d_out(
            std::vector<uint16_t>(rows * static_cast<size_t>(value_dim), kNaNBits));
        const DeviceArray<float> d_lse(std::vector<float>(rows, std::nanf("")));
        AttnCombineParams params = {};
        params.workspace.header = d_header.data();
        params.workspace.merge_items = d_items.data();
        params.workspace.partial_lse = d_partial_lse.data();
        params.workspace.partial_out = d_partial_out.data();
        params.workspace.merge_item_capacity = static_cast<int32_t>(items.size());
        params.heads = heads();
        params.kv_heads = kv_heads;
        params.value_dim = value_dim;
        params.layout = layout;
        params.multiprocessors = multiprocessors;
        params.out = d_out.data();
        params.lse = d_lse.data();
        EXPECT_TRUE(ok(attn_combine(params, nullptr)));
        return {d_out.read(), d_lse.read()};
    }

    /// Index of a row's partial among all, in merge order: [0, partials), then the path.
    size_t partial_row(const RowTile& tile, int32_t row, int32_t partial) const {
        if (partial < tile.partials) {
            return static_cast<size_t>((tile.first_partial + partial) * kTileRows + row);
        }
        const int32_t node = (tile.row_begin + row) / group;
        const int32_t head = (tile.row_begin + row) % group;
        const int32_t blocks = (group + kTileRows - 1) / kTileRows;
        const int32_t unit = (node >> kPathNodesLog2) * kv_heads + tile.kv_head;
        const int32_t path = tile.path_partial + unit * blocks + head / kTileRows;
        const int32_t before = node % (1 << kPathNodesLog2);
        return static_cast<size_t>(path * kTileRows + before * group + head % kTileRows);
    }
    size_t output_row(const RowTile& tile, int32_t row) const {
        const int32_t node = (tile.row_begin + row) / group;
        const int32_t head = (tile.row_begin + row) % group;
        return static_cast<size_t>((kFirstNode + node) * heads() + tile.kv_head * group + head);
    }
};

void expect_matches_reference(const Partials& p, const Partials::Result& got) {
    const auto dim = static_cast<size_t>(p.value_dim);
    for (const RowTile& tile : p.tiles) {
        for (int32_t row = 0; row < tile.rows; ++row) {
            std::vector<float> lse;
            std::vector<float> values;
            for (int32_t i = 0; i < tile.partials + (tile.path_partial >= 0 ? 1 : 0); ++i) {
                const size_t from = p.partial_row(tile, row, i);
                lse.push_back(p.lse[from]);
                for (size_t c = 0; c < dim; ++c) {
                    values.push_back(bf16_to_f32(p.out[from * dim + c]));
                }
            }
            const CombinedRow expected = attn_combine_ref(lse, values);
            const size_t at = p.output_row(tile, row);
            if (std::isinf(expected.lse)) {
                ASSERT_EQ(got.lse[at], kNothing);
            } else {
                ASSERT_NEAR(got.lse[at], expected.lse, 1e-5);
            }
            for (size_t c = 0; c < dim; ++c) {  // half a step of bf16, and float sums
                ASSERT_NEAR(bf16_to_f32(got.out[at * dim + c]), expected.out[c],
                            std::fabs(expected.out[c]) * 0x1p-8 + 1e-5)
                    << "row tile at " << tile.row_begin << ", row " << row << ", column " << c;
            }
        }
    }
}

}  // namespace

using AttnCombineGpu = GpuTest;

TEST_F(AttnCombineGpu, MatchesTheReference) {
    uint32_t seed = 0;
    for (const int32_t dim : {64, 96, 128, 256, 512}) {
        for (const std::vector<int32_t>& counts :
             {std::vector<int32_t>{2}, {12, 13}, {3, 40, 7}, {132}, {190, 2}, {256}}) {
            if (reduced_cases() && counts.size() < 2) continue;
            for (const bool deterministic : {false, true}) {
                if (deterministic && counts[0] > 190) continue;
                SCOPED_TRACE("dim " + std::to_string(dim) + ", partials " +
                             std::to_string(counts[0]) + (deterministic ? ", det" : ""));
                const bool mla = dim == 512;
                const Partials p(dim, mla ? 1 : 2, mla ? 8 : 5, mla ? 11 : 17, counts,
                                 deterministic, ++seed);
                const Partials::Result first = p.run(132);
                expect_matches_reference(p, first);
                if (reduced_cases()) continue;
                const Partials::Result second = p.run(7);  // another grid
                EXPECT_TRUE(same_bytes(second.out, first.out, 2 * dim));
                EXPECT_TRUE(same_bytes(second.lse, first.lse, 4));
                if (HasFailure()) return;
            }
        }
    }
}

// Where values lie changes no bit.
TEST_F(AttnCombineGpu, QuadsAreTheSameValues) {
    uint32_t seed = 70;
    for (const int32_t count : {2, 7, 13, 125, 190}) {
        for (const bool deterministic : {false, true}) {
            SCOPED_TRACE("partials " + std::to_string(count) + (deterministic ? ", det" : ""));
            Partials p(kQuadDim, 1, 8, 11, {count}, deterministic, ++seed);
            const Partials::Result rows = p.run(132);
            p.set_layout(PartialLayout::quads);
            const Partials::Result quads = p.run(132);
            EXPECT_TRUE(same_bytes(quads.out, rows.out, 2 * kQuadDim));
            EXPECT_TRUE(same_bytes(quads.lse, rows.lse, 4));
        }
    }
}

// Deterministic mode: segments that this row does not see behind its own change no bit.
TEST_F(AttnCombineGpu, UnseenSegmentsChangeNothing) {
    constexpr int32_t kUnseen = 3;
    for (const int32_t own : {1, 11, 12, 13, 65, 125}) {
        Partials small(512, 1, 8, 4, {own}, true, 99);
        Partials large(512, 1, 8, 4, {own + kUnseen}, true, 99);
        const auto dim = static_cast<size_t>(512);
        for (RowTile& tile : small.tiles) tile.phase = 0;
        for (RowTile& tile : large.tiles) tile.phase = 0;
        for (int32_t row = 0; row < small.tiles[0].rows; ++row) {
            for (int32_t i = 0; i <= own + kUnseen; ++i) {
                const size_t to = large.partial_row(large.tiles[0], row, i);
                const bool foreign = i >= own && i < own + kUnseen;
                const size_t from =
                    small.partial_row(small.tiles[0], row, foreign ? 0 : std::min(i, own));
                large.lse[to] = foreign ? kNothing : small.lse[from];
                for (size_t c = 0; c < dim; ++c) {
                    large.out[to * dim + c] = foreign ? kNaNBits : small.out[from * dim + c];
                }
            }
        }
        const Partials::Result a = small.run(132);
        const Partials::Result b = large.run(132);
        EXPECT_TRUE(same_bytes(b.out, a.out, 2 * 512)) << own << " segments";
        EXPECT_TRUE(same_bytes(b.lse, a.lse, 4)) << own << " segments";
    }
}

}  // namespace kd
