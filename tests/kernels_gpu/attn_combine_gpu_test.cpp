// attn_combine on random partials against its reference, and to the bit where it has to be.
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "device_array.h"
#include "kernels/attn_combine/attn_combine.h"
#include "kernels/attn_combine/attn_combine_ref.h"
#include "kernels/attn_plan/attn_merge.h"
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
    std::vector<float> lse;
    std::vector<uint16_t> out;
    std::vector<float> exponent;  // of folded partials
    uint8_t group_log2 = 0;

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

    /// Makes them folded ones (folded_partials.cuh), with values of few bits, so that sums of two
    /// are exact in float. Exponents are near the log-sum-exp's, now and then far below.
    void fold(uint32_t seed) {
        CaseRandom random(seed);
        exponent.resize(lse.size() * kFoldedExponents);
        for (int32_t partial = 0; partial < partials; ++partial) {
            for (int32_t row = 0; row < kTileRows; ++row) {
                const auto at = static_cast<size_t>(partial * kTileRows + row);
                const bool seen = lse[at] != kNothing;
                for (int32_t half = 0; half < kFoldedExponents; ++half) {
                    const float below = static_cast<float>(random.below(16) == 0 ? 30 : 0);
                    exponent[exponent_at(partial, half, row)] =
                        seen ? std::floor(lse[at]) - below : std::nanf("");
                }
                for (int32_t c = 0; c < kFoldedDim; ++c) {
                    const auto steps = static_cast<float>(random.below(255) - 127);
                    out[value_at(at, c)] = seen ? f32_to_f16(steps / 128) : kNaNBits;
                }
            }
        }
    }
    static size_t exponent_at(int32_t partial, int32_t half, int32_t row) {
        return static_cast<size_t>((partial * kFoldedExponents + half) * kTileRows + row);
    }
    /// Where value `column` of row `row` of all partials is.
    size_t value_at(size_t row, int32_t column) const {
        const size_t begin = row * static_cast<size_t>(value_dim);
        if (exponent.empty()) return begin + static_cast<size_t>(column);
        const int32_t quad = column % 8 / 2;
        return begin +
               static_cast<size_t>(column / 32 * 32 + quad * 8 + column % 32 / 8 * 2 + column % 2);
    }
    /// The value, normalised.
    float value(size_t row, int32_t column) const {
        const uint16_t bits = out[value_at(row, column)];
        if (exponent.empty()) return bf16_to_f32(bits);
        const auto partial = static_cast<int32_t>(row / kTileRows);
        const auto in_partial = static_cast<int32_t>(row % kTileRows);
        const float e = exponent[exponent_at(partial, column / 256, in_partial)];
        return f16_to_f32(bits) * std::exp2(e - lse[row]);
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
                              .group_log2 = group_log2,
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
        const DeviceArray<float> d_partial_exponent(exponent.empty() ? lse : exponent);
        const auto rows = static_cast<size_t>((kFirstNode + nodes) * heads());
        const DeviceArray<uint16_t> d_out(
            std::vector<uint16_t>(rows * static_cast<size_t>(value_dim), kNaNBits));
        const DeviceArray<float> d_lse(std::vector<float>(rows, std::nanf("")));
        AttnCombineParams params = {};
        params.workspace.header = d_header.data();
        params.workspace.merge_items = d_items.data();
        params.workspace.partial_lse = d_partial_lse.data();
        params.workspace.partial_out = d_partial_out.data();
        params.workspace.partial_exponent = d_partial_exponent.data();
        params.workspace.merge_item_capacity = static_cast<int32_t>(items.size());
        params.heads = heads();
        params.kv_heads = kv_heads;
        params.value_dim = value_dim;
        params.layout = exponent.empty() ? PartialLayout::rows : PartialLayout::folded;
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
                for (int32_t c = 0; c < p.value_dim; ++c) values.push_back(p.value(from, c));
            }
            const CombinedRow expected = attn_combine_ref(lse, values);
            const size_t at = p.output_row(tile, row);
            if (std::isinf(expected.lse)) {
                ASSERT_EQ(got.lse[at], kNothing);
            } else {
                ASSERT_NEAR(got.lse[at], expected.lse, 1e-5);
            }
            // Sums of two folded segments of values below 1 are rounded to 11 bits.
            const double sums = p.exponent.empty() ? 1e-5 : 0x1p-11;
            for (size_t c = 0; c < dim; ++c) {  // half a step of bf16, and float sums
                ASSERT_NEAR(bf16_to_f32(got.out[at * dim + c]), expected.out[c],
                            std::fabs(expected.out[c]) * 0x1p-8 + sums)
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

TEST_F(AttnCombineGpu, FoldedPartialsMatchTheReference) {
    uint32_t seed = 40;
    for (const int32_t count : {2, 7, 13, 40, 125, 256}) {
        for (const bool deterministic : {false, true}) {
            if (deterministic && count > 190) continue;
            SCOPED_TRACE("partials " + std::to_string(count) + (deterministic ? ", det" : ""));
            Partials p(kFoldedDim, 1, 8, 11, {count}, deterministic, ++seed);
            for (RowTile& tile : p.tiles) tile.phase = 0;
            p.fold(seed);
            const Partials::Result first = p.run(132);
            expect_matches_reference(p, first);
            const Partials::Result second = p.run(7);
            EXPECT_TRUE(same_bytes(second.out, first.out, 2 * kFoldedDim));
            if (HasFailure()) return;
        }
    }
}

// What a block writes of two segments is what the combine makes of them. The second of each pair
// has a log-sum-exp far below, so that the pair's is the first's, to the bit.
TEST_F(AttnCombineGpu, GroupsAreWhatTheCombineFolds) {
    for (const int32_t count : {2, 3, 9, 64, 125}) {
        Partials single(kFoldedDim, 1, 8, 8, {count}, true, 7);
        for (RowTile& tile : single.tiles) tile.phase = 0;
        single.fold(7);
        const int32_t groups = (count + 1) / 2;
        Partials grouped(kFoldedDim, 1, 8, 8, {groups}, true, 7);
        for (RowTile& tile : grouped.tiles) tile.phase = 0;
        grouped.fold(7);
        grouped.group_log2 = kFoldedSegmentsLog2;
        const RowTile& from = single.tiles[0];
        const RowTile& to = grouped.tiles[0];
        for (int32_t row = 0; row < from.rows; ++row) {
            for (int32_t group = 0; group <= groups; ++group) {  // the path last
                const bool path = group == groups;
                const size_t at = grouped.partial_row(to, row, group);
                const size_t a = single.partial_row(from, row, path ? count : 2 * group);
                const bool pair = !path && 2 * group + 1 < count;
                const size_t b = pair ? single.partial_row(from, row, 2 * group + 1) : a;
                if (pair && single.lse[b] != kNothing) single.lse[b] = single.lse[a] - 300;
                const bool has_a = single.lse[a] != kNothing;
                const bool has_b = pair && has_a && single.lse[b] != kNothing;
                if (pair && !has_a) single.lse[b] = kNothing;
                grouped.lse[at] = single.lse[a];
                for (int32_t half = 0; half < kFoldedExponents; ++half) {
                    const auto exponent = [&](Partials& of, size_t r) -> float& {
                        return of.exponent[Partials::exponent_at(
                            static_cast<int32_t>(r / kTileRows), half,
                            static_cast<int32_t>(r % kTileRows))];
                    };
                    const float before = exponent(single, a);
                    const float shift = has_b ? exponent(single, b) - before : 0;
                    const bool replaces = has_b && shift > 15;
                    exponent(grouped, at) = replaces ? exponent(single, b) : before;
                    for (int32_t c = 256 * half; c < 256 * (half + 1); ++c) {
                        const uint16_t first = single.out[single.value_at(a, c)];
                        const uint16_t second = single.out[single.value_at(b, c)];
                        const float scaled =
                            has_b ? f16_to_f32(f32_to_f16(f16_to_f32(second) * std::exp2(shift)))
                                  : 0.0f;
                        grouped.out[grouped.value_at(at, c)] =
                            replaces ? second
                            : has_b  ? f32_to_f16(f16_to_f32(first) + scaled)
                                     : first;
                    }
                }
            }
        }
        const Partials::Result a = single.run(132);
        const Partials::Result b = grouped.run(132);
        EXPECT_TRUE(same_bytes(b.out, a.out, 2 * kFoldedDim)) << count << " segments";
        EXPECT_TRUE(same_bytes(b.lse, a.lse, 4)) << count << " segments";
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
