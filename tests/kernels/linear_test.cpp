#include "kernels/linear/linear.h"

#include "base/error.h"
#include "base/quant_blocks.h"
#include "kernel_test.h"
#include "kernels/cases/random.h"
#include "kernels/linear/linear_cases.h"
#include "support/flush_to_zero.h"

namespace kd {
namespace {

std::vector<float> run(const LinearWeights& weights, LinearParams params, int64_t rows,
                       Stream& stream) {
    std::vector<float> y = nan_filled(rows * weights.rows());
    params.weights = &weights;
    params.rows = rows;
    params.y = y.data();
    linear(params, stream);
    return y;
}

/// sum |w x| + |bias| + |residual| of every output: what rounding errors are measured by.
std::vector<double> magnitudes(const LinearCase& test, const LinearInputs& in) {
    std::vector<double> result;
    std::vector<float> w(static_cast<size_t>(test.columns));
    for (int64_t row = 0; row < test.rows; ++row) {
        for (const WeightView& part : in.parts) {
            for (int64_t n = 0; n < part.rows; ++n) {
                dequantise_row(part, n, w.data());
                double sum = 0;
                for (size_t k = 0; k < w.size(); ++k) {
                    // A block's minimum and its scaled integers are separate terms.
                    const double weight = std::fabs(w[k]) + (is_quantised(part.type) ? 1 : 0);
                    sum += weight * std::fabs(in.x[static_cast<size_t>(row) * w.size() + k]);
                }
                const size_t at = result.size();
                if (test.bias) sum += std::fabs(in.bias[at % in.bias.size()]);
                if (test.residual) sum += std::fabs(in.residual[at]);
                result.push_back(sum);
            }
        }
    }
    return result;
}

/// Quantised rows made by hand.
struct QuantTiles {
    std::vector<QuantTile> tiles;
    QuantRows view;

    QuantTiles(int64_t rows, int64_t columns)
        : tiles(QuantRows::bytes(rows, columns) / sizeof(QuantTile)),
          view{.rows = rows, .columns = columns, .tiles = tiles.data()} {}

    /// q: [rows, columns], all scales 1.
    QuantTiles(const std::vector<int8_t>& q, int64_t columns)
        : QuantTiles(std::ssize(q) / columns, columns) {
        for (int64_t i = 0; i < std::ssize(q); ++i) {
            const int64_t column = i % columns;
            QuantTile& tile = view.tile(i / columns, column / 32);
            const int64_t r = i / columns % kQuantTileRows;
            tile.q[r][column % 32] = q[static_cast<size_t>(i)];
            tile.scale[r] = 1;
            tile.sum[r] += q[static_cast<size_t>(i)];
            tile.scaled_sum[r] = static_cast<float>(tile.sum[r]);
        }
    }

    /// Makes row 0 that of `from`.
    void copy_row(const QuantRows& from, int64_t row) {
        const int64_t r = row % kQuantTileRows;
        for (int64_t block = 0; block < from.columns / 32; ++block) {
            const QuantTile& source = from.tile(row, block);
            QuantTile& tile = view.tile(0, block);
            std::memcpy(tile.q[0], source.q[r], 32);
            tile.scale[0] = source.scale[r];
            tile.sum[0] = source.sum[r];
            tile.scaled_sum[0] = source.scaled_sum[r];
        }
    }
};

TEST(Linear, AgreesWithTheReference) {
    ThreadPool threads(2);
    Stream fast{&threads, Kernels::fast};
    Stream reference{&threads, Kernels::reference};
    for (const LinearCase& test : linear_cases()) {
        SCOPED_TRACE(test.name);
        const LinearInputs in = make_linear_inputs(test);
        const LinearWeights weights(in.parts, fast);
        const bool quantised = weights.wants_quantised_rows();
        const std::vector<double> scale = magnitudes(test, in);
        std::vector<std::vector<float>> results;
        for_each_target([&] {
            results.push_back(run(weights, in.params(quantised), test.rows, fast));
            EXPECT_TRUE(
                same_bits(results.back(), run(weights, in.params(quantised), test.rows, fast)));
        });
        const std::vector<float> exact = run(weights, in.params(quantised), test.rows, reference);
        for (const std::vector<float>& result : results) {
            EXPECT_TRUE(within(result, exact, weights.rows(), [&](size_t i) {
                return linear_tolerance(test) * scale[i] + 1e-30;
            }));
        }
        // The reference over float rows of the same values says the same.
        EXPECT_TRUE(within(run(weights, in.params(false), test.rows, reference), exact,
                           weights.rows(), [&](size_t i) { return 1e-6 * scale[i] + 1e-30; }));
    }
}

TEST(Linear, ARowIsTheSameAloneAndInAnyBatch) {
    constexpr int64_t kRows = 64;
    constexpr int64_t kColumns = 256;
    for (const DType type :
         {DType::q4_1, DType::q4_0, DType::q8_0, DType::q4_k, DType::q6_k, DType::q5_1, DType::q5_k,
          DType::int4, DType::f32, DType::bf16, DType::f8_e4m3}) {
        SCOPED_TRACE(name_of(type));
        const LinearCase test{"", {{type, 70}, {type, 19}}, kColumns, kRows, true, true, 99};
        const LinearInputs in = make_linear_inputs(test);
        ThreadPool one(1), two(2), three(3);
        for_each_target([&] {
            Stream stream{&one, Kernels::fast};
            const LinearWeights weights(in.parts, stream);
            const bool quantised = weights.wants_quantised_rows();
            const auto outputs = static_cast<size_t>(weights.rows());
            std::vector<float> alone;
            for (int64_t row = 0; row < kRows; ++row) {
                LinearParams params = in.params(quantised);
                QuantTiles single(1, kColumns);
                if (quantised) {
                    single.copy_row(in.quantised, row);
                    params.quantised = &single.view;
                }
                if (!quantised) params.x += row * kColumns;
                params.residual += row * weights.rows();
                const std::vector<float> y = run(weights, params, 1, stream);
                alone.insert(alone.end(), y.begin(), y.end());
            }
            std::vector<int64_t> batches = {kRows};
            for (int64_t rows = 1; rows <= 20; ++rows) batches.push_back(rows);
            for (const int64_t rows : batches) {
                for (ThreadPool* pool : {&one, &two, &three}) {
                    Stream other{pool, Kernels::fast};
                    const std::vector<float> y = run(weights, in.params(quantised), rows, other);
                    const std::vector<float> expected(alone.begin(),
                                                      alone.begin() + rows * outputs);
                    ASSERT_TRUE(same_bits(y, expected))
                        << rows << " rows, " << pool->threads() << " threads";
                }
            }
        });
    }
}

/// Blocks whose scales are 1 (minimum 0), so that results are integers: any saturation or wrong
/// element shows to the last unit.
TEST(Linear, IntegersAreExactAtTheExtremes) {
    constexpr int64_t kColumns = 96;
    constexpr int64_t kOutputs = 37;
    constexpr int64_t kRows = 9;
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    for (const DType type : {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                             DType::iq4_nl, DType::int4}) {
        for (int pattern = 0; pattern < 6; ++pattern) {
            SCOPED_TRACE(testing::Message() << name_of(type) << " pattern " << pattern);
            CaseRandom random(static_cast<uint32_t>(pattern) + 7);
            std::vector<std::byte> storage;
            WeightView w = random_weights(random, type, kOutputs, kColumns, 1.0f, storage);
            w.scales = {};
            const int64_t header = type == DType::int4 ? 0 : has_block_minimum(type) ? 4 : 2;
            for (int64_t at = 0; at < w.rows * w.row_bytes(); at += block_bytes(type)) {
                const uint16_t bits[2] = {f32_to_f16(1.0f), f32_to_f16(0.0f)};
                std::memcpy(&storage[static_cast<size_t>(at)], bits, static_cast<size_t>(header));
                for (int64_t i = header; i < block_bytes(type); ++i) {
                    // Lowest, highest, both mixed, nibbles mixed; from pattern 4 on random.
                    const bool bytes = type == DType::q8_0;
                    const int extremes[4] = {bytes ? 0x80 : 0xff, bytes ? 0x7f : 0x00,
                                             i % 2 == 0 ? 0x80 : 0x7f, i % 3 == 0 ? 0x0f : 0xf0};
                    if (pattern < 4) {
                        storage[static_cast<size_t>(at + i)] =
                            static_cast<std::byte>(extremes[pattern]);
                    }
                }
            }
            std::vector<int8_t> q(kRows * kColumns);
            for (size_t i = 0; i < q.size(); ++i) {
                const int choice = pattern % 2 == 0 ? 127 : random.below(255) - 127;
                q[i] = static_cast<int8_t>(i / kColumns % 3 == 1 ? -choice : choice);
            }
            const QuantTiles x(q, kColumns);
            const LinearWeights weights(std::span(&w, 1), stream);
            std::vector<float> expected;
            std::vector<float> row_weights(kColumns);
            for (int64_t r = 0; r < kRows; ++r) {
                for (int64_t n = 0; n < kOutputs; ++n) {
                    dequantise(type, w.row(n), kColumns, row_weights.data());
                    int64_t value = 0;
                    for (int64_t k = 0; k < kColumns; ++k) {
                        value += static_cast<int64_t>(row_weights[static_cast<size_t>(k)]) *
                                 q[static_cast<size_t>(r * kColumns + k)];
                    }
                    expected.push_back(static_cast<float>(value));
                }
            }
            for_each_target([&] {
                EXPECT_TRUE(
                    same_bits(run(weights, {.quantised = &x.view}, kRows, stream), expected));
            });
        }
    }
}

/// What linear says of one row and one output whose f16 factors and activation scales are 1: block
/// by block an integer that a float holds, then a minimum's.
float k_quant_chain(const WeightView& w, int64_t output, const int8_t* x) {
    float total = 0;
    for (int64_t b = 0; b < w.columns / 32; ++b) {
        const std::byte* at = w.row(output) + b / 8 * block_bytes(w.type);
        const auto sub = static_cast<size_t>(b % 8);
        int32_t products = 0;
        int32_t minimum = 0;
        if (w.type != DType::q6_k) {
            const AffineSuperblock block = read_affine_superblock(w.type, at);
            for (size_t i = 0; i < 32; ++i) {
                products +=
                    block.scale[sub] * block.q[32 * sub + i] * x[32 * b + static_cast<int64_t>(i)];
                minimum -= block.minimum[sub] * x[32 * b + static_cast<int64_t>(i)];
            }
        } else {
            const Q6KBlock block = read_q6_k(at);
            for (size_t i = 0; i < 32; ++i) {
                const int32_t scale = block.scale[2 * sub + i / 16];
                products += scale * block.q[32 * sub + i] * x[32 * b + static_cast<int64_t>(i)];
            }
        }
        total += static_cast<float>(products);
        total += static_cast<float>(minimum);
    }
    return total;
}

TEST(Linear, KQuantIntegersAreExactAtTheExtremes) {
    constexpr int64_t kColumns = 512;
    constexpr int64_t kOutputs = 37;
    constexpr int64_t kRows = 9;
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    // Bytes of integers and of scales: both lowest, both highest, across. Then random ones.
    constexpr int kExtremes[4][2] = {{0x00, 0x80}, {0xff, 0x7f}, {0xff, 0x80}, {0x00, 0xff}};
    const uint16_t one = f32_to_f16(1.0f);
    for (const DType type : {DType::q4_k, DType::q5_k, DType::q6_k}) {
        for (size_t pattern = 0; pattern < 6; ++pattern) {
            SCOPED_TRACE(testing::Message() << name_of(type) << " pattern " << pattern);
            CaseRandom random(static_cast<uint32_t>(pattern) + 70);
            std::vector<std::byte> storage;
            const WeightView w = random_weights(random, type, kOutputs, kColumns, 1.0f, storage);
            for (size_t at = 0; at < storage.size(); at += static_cast<size_t>(block_bytes(type))) {
                std::byte* block = &storage[at];
                const bool affine = type != DType::q6_k;
                if (pattern < 4) {
                    std::memset(affine ? block + 16 : block, kExtremes[pattern][0],
                                affine ? static_cast<size_t>(block_bytes(type)) - 16 : 192);
                    std::memset(affine ? block + 4 : block + 192, kExtremes[pattern][1],
                                affine ? 12 : 16);
                }
                std::memcpy(affine ? block : block + 208, &one, 2);
                if (affine) std::memcpy(block + 2, &one, 2);
            }
            std::vector<int8_t> q(kRows * kColumns);
            for (size_t i = 0; i < q.size(); ++i) {
                const int choice = pattern % 2 == 0 ? 127 : random.below(255) - 127;
                // Rows of one sign, of the other, and of halves of a block with different signs.
                const size_t kind = i / kColumns % 3;
                q[i] =
                    static_cast<int8_t>(kind == 1 || (kind == 2 && i % 32 > 15) ? -choice : choice);
            }
            const QuantTiles x(q, kColumns);
            const LinearWeights weights(std::span(&w, 1), stream);
            std::vector<float> expected;
            for (int64_t r = 0; r < kRows; ++r) {
                for (int64_t n = 0; n < kOutputs; ++n) {
                    expected.push_back(k_quant_chain(w, n, &q[static_cast<size_t>(r * kColumns)]));
                }
            }
            for_each_target([&] {
                EXPECT_TRUE(
                    same_bits(run(weights, {.quantised = &x.view}, kRows, stream), expected));
            });
        }
    }
}

/// The largest factors a file may hold overflow an f16 when multiplied out, never a float.
TEST(Linear, KQuantFactorsKeepTheirRange) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    for (const DType type : {DType::q4_k, DType::q5_k, DType::q6_k}) {
        for (const uint16_t factor : {uint16_t{0x7bff}, uint16_t{0x0001}}) {
            SCOPED_TRACE(testing::Message() << name_of(type) << " factor " << factor);
            const LinearCase test{"", {{type, 16}}, 256, 1, false, false, 6};
            LinearInputs in = make_linear_inputs(test);
            for (size_t n = 0; n < 16; ++n) {
                std::byte* block = &in.weight_bytes[0][n * static_cast<size_t>(block_bytes(type))];
                std::memcpy(type == DType::q6_k ? block + 208 : block, &factor, 2);
                if (type != DType::q6_k) std::memcpy(block + 2, &factor, 2);
            }
            const LinearWeights weights(in.parts, stream);
            LinearParams params = in.params(true);
            std::vector<float> exact(16);
            params.weights = &weights;
            params.rows = 1;
            params.y = exact.data();
            linear_ref(params);
            // What rounding is measured by: a sum of magnitudes at the largest weight.
            const double most = f16_to_f32(factor) * (type == DType::q6_k ? 128 * 32 : 63 * 32);
            for_each_target([&] {
                EXPECT_TRUE(within(run(weights, in.params(true), 1, stream), exact, 16,
                                   [&](size_t) { return linear_tolerance(test) * 256 * most; }));
            });
        }
    }
}

TEST(Linear, NaNScalesAndInfinitiesReachTheOutput) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    const LinearCase test{"", {{DType::q4_1, 16}}, 64, 2, false, false, 5};
    LinearInputs in = make_linear_inputs(test);
    QuantTile& spoilt = in.quantised.tile(0, 1);
    spoilt.scale[0] = spoilt.scaled_sum[0] = kNaN;
    const LinearWeights weights(in.parts, stream);
    for_each_target([&] {
        const std::vector<float> y = run(weights, in.params(true), 2, stream);
        for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(y[i]));
        for (size_t i = 16; i < 32; ++i) EXPECT_FALSE(std::isnan(y[i]));
    });
    // Half-precision weights: infinity, NaN and subnormals convert as base/dtype says.
    CaseRandom random(1);
    std::vector<std::byte> storage;
    const WeightView half = random_weights(random, DType::f16, 16, 4096, 1, storage);
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<uint16_t>(i);
        std::memcpy(&storage[i * 2], &bits, 2);
    }
    const LinearWeights all_halves(std::span(&half, 1), stream);
    std::vector<float> x(4096, 0.0f);
    for_each_target([&] {
        for (const size_t column : {0, 1, 1023, 1024, 3071, 3072, 4095}) {
            // Infinity and NaN times 0 elsewhere in a row would hide the value: rows 7 and 15 hold
            // them all.
            x.assign(4096, 0.0f);
            x[column] = 1;
            const std::vector<float> y = run(all_halves, {.x = x.data()}, 1, stream);
            for (size_t n = 0; n < 16; ++n) {
                if (n % 8 == 7) {
                    EXPECT_TRUE(std::isnan(y[n])) << n;
                } else {
                    EXPECT_EQ(y[n], f16_to_f32(static_cast<uint16_t>(n * 4096 + column)))
                        << n << " " << column;
                }
            }
        }
    });
}

// Weights, and scales of blocks, that are subnormal as f16: no sum of theirs is so as a float.
TEST(Linear, SubnormalHalvesWhereSubnormalFloatsAreZero) {
    ThreadPool threads(1);  // all on this thread
    Stream stream{&threads, Kernels::fast};
    for (const DType type : {DType::f16, DType::q8_0}) {
        SCOPED_TRACE(name_of(type));
        LinearInputs in = make_linear_inputs({"", {{type, 16}}, 64, 1, false, false, 8});
        const auto step = static_cast<size_t>(block_bytes(type));
        uint16_t bits = 0;
        for (size_t at = 0; at < in.weight_bytes[0].size(); at += step) {
            bits = static_cast<uint16_t>(bits % 0x3ff + 1);
            std::memcpy(&in.weight_bytes[0][at], &bits, sizeof bits);
        }
        const LinearParams params = in.params(is_quantised(type));
        for_each_target([&] {
            // Packed on this thread, too.
            const LinearWeights weights(in.parts, stream);
            const std::vector<float> expected = run(weights, params, 1, stream);
            for (const float y : expected) EXPECT_NE(y, 0);
            std::vector<float> flushed;
            {
                const FlushToZero flush;
                flushed = run(LinearWeights(in.parts, stream), params, 1, stream);
            }
            EXPECT_TRUE(same_bits(flushed, expected));
        });
    }
}

TEST(LinearDeathTest, FewerQuantisedRowsThanAskedFor) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    LinearInputs in = make_linear_inputs({"", {{DType::q8_0, 16}}, 64, 2, false, false, 9});
    const LinearWeights weights(in.parts, stream);
    EXPECT_DEATH(run(weights, in.params(true), 3, stream), "3 rows quantised in 64 columns");
}

TEST(Linear, RefusesWhatCannotBeStacked) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    std::vector<std::byte> memory(4096);
    const WeightView a{DType::q4_1, memory.data(), 2, 64};
    const WeightView other_columns{DType::q4_1, memory.data(), 2, 32};
    const WeightView floats{DType::f32, memory.data(), 2, 64};
    const WeightView ragged{DType::q8_0, memory.data(), 1, 33};
    const WeightView part_of_a_superblock{DType::q4_k, memory.data(), 1, 288};
    // Scales beside what has its own, and others than blocks of whole 32 columns.
    const BlockScales each{memory.data(), DType::f32, 1, 32};
    const WeightView scaled_twice{DType::q8_0, memory.data(), 2, 64, each};
    const WeightView scaled_floats{DType::bf16, memory.data(), 2, 64, each};
    const WeightView narrow{DType::int4, memory.data(), 2, 64, {memory.data(), DType::f32, 1, 16}};
    const WeightView none{DType::f8_e4m3, memory.data(), 2, 64, {memory.data(), DType::f32, 0, 1}};
    const WeightView halves{
        DType::f8_e4m3, memory.data(), 2, 64, {memory.data(), DType::q8_0, 1, 1}};
    EXPECT_THROW(LinearWeights({}, stream), Error);
    EXPECT_THROW(LinearWeights(std::vector{a, other_columns}, stream), Error);
    EXPECT_THROW(LinearWeights(std::vector{a, floats}, stream), Error);
    EXPECT_THROW(LinearWeights(std::vector{ragged}, stream), Error);
    EXPECT_THROW(LinearWeights(std::vector{part_of_a_superblock}, stream), Error);
    for (const WeightView& bad : {scaled_twice, scaled_floats, narrow, none, halves}) {
        EXPECT_THROW(LinearWeights(std::vector{bad}, stream), Error) << name_of(bad.type);
    }
    const LinearWeights good(std::vector{a}, stream);
    EXPECT_EQ(good.rows(), 2);
    EXPECT_EQ(good.columns(), 64);
    EXPECT_TRUE(good.wants_quantised_rows());
}

}  // namespace
}  // namespace kd
