// The row-wise ops: quant_rows, rmsnorm, swiglu, embed.
#include "kernel_test.h"
#include "kernels/cases/random.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/embed_cases.h"
#include "kernels/quant_rows/quant_rows.h"
#include "kernels/quant_rows/quant_rows_cases.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rmsnorm/rmsnorm_cases.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu/swiglu_cases.h"

namespace kd {
namespace {

/// Runs `op(first row, rows, stream)` on every row alone and in batches of 1..20 and all rows on 1,
/// 2 and 3 threads; `read()` returns the whole output. All must agree to the bit.
template <class Op, class Reset, class Read>
void check_row_invariance(int64_t rows, Op&& op, Reset&& reset, Read&& read) {
    ThreadPool one(1), two(2), three(3);
    Stream stream{&one, Kernels::fast};
    reset();
    for (int64_t row = 0; row < rows; ++row) op(row, 1, stream);
    const auto alone = read();
    for (ThreadPool* pool : {&one, &two, &three}) {
        Stream other{pool, Kernels::fast};
        for (int64_t batch = 1; batch <= rows; batch = batch < 20 ? batch + 1 : rows + 1) {
            reset();
            for (int64_t row = 0; row < rows; row += batch) {
                op(row, std::min(batch, rows - row), other);
            }
            ASSERT_TRUE(same_bits(read(), alone)) << batch << " rows, " << pool->threads();
        }
        reset();
        op(0, rows, other);
        ASSERT_TRUE(same_bits(read(), alone)) << "all rows, " << pool->threads();
    }
}

/// Tiles whose every byte has the same odd value, before rows are quantised into them.
struct Quantised {
    std::vector<QuantTile> tiles;
    QuantRows view;

    Quantised(int64_t rows, int64_t columns)
        : tiles(QuantRows::bytes(rows, columns) / sizeof(QuantTile)),
          view{.rows = rows, .columns = columns, .tiles = tiles.data()} {
        std::memset(tiles.data(), 0x55, tiles.size() * sizeof(QuantTile));
    }
};

/// All bytes, so also that rows beyond the last were left alone.
bool same_tiles(const Quantised& a, const Quantised& b) {
    return std::memcmp(a.tiles.data(), b.tiles.data(), a.tiles.size() * sizeof(QuantTile)) == 0;
}

TEST(QuantRows, AgreesWithTheReferenceToTheBit) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    for (const QuantRowsCase& test : quant_rows_cases()) {
        SCOPED_TRACE(test.name);
        CaseRandom random(test.seed);
        const std::vector<float> x = random.values(test.rows * test.columns, test.magnitude);
        for_each_target([&] {
            Quantised fast(test.rows, test.columns);
            quant_rows({.x = x.data(), .out = fast.view}, stream);
            Quantised exact(test.rows, test.columns);
            quant_rows_ref({.x = x.data(), .out = exact.view});
            EXPECT_TRUE(same_tiles(fast, exact));
        });
    }
}

TEST(QuantRows, TiesZerosAndNotANumber) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    // Scale 1 in block 0, so that ties are exact; zeros in block 1; NaN and infinity in 2 and 3.
    std::vector<float> x(128, 0.0f);
    x[0] = 127;
    x[1] = 0.5f;
    x[2] = 1.5f;
    x[3] = -2.5f;
    x[4] = -127;
    x[70] = kNaN;
    x[71] = 1;
    x[100] = -std::numeric_limits<float>::infinity();
    for_each_target([&] {
        Quantised fast(1, 128);
        quant_rows({.x = x.data(), .out = fast.view}, stream);
        const auto block = [&](int64_t index) -> const QuantTile& {
            return fast.view.tile(0, index);
        };
        EXPECT_EQ(block(0).scale[0], 1.0f);
        EXPECT_EQ((std::vector<int8_t>(block(0).q[0], block(0).q[0] + 5)),
                  (std::vector<int8_t>{127, 0, 2, -2, -127}));
        EXPECT_EQ(block(1).scale[0], 0.0f);
        EXPECT_EQ(block(1).sum[0], 0);
        for (const int64_t spoilt : {2, 3}) {
            EXPECT_TRUE(std::isnan(block(spoilt).scale[0]));
            EXPECT_TRUE(std::isnan(block(spoilt).scaled_sum[0]));
            EXPECT_EQ(block(spoilt).sum[0], 0);
        }
        EXPECT_EQ(block(2).q[0][7], 0);
        Quantised exact(1, 128);
        quant_rows_ref({.x = x.data(), .out = exact.view});
        for (int64_t b = 0; b < 4; ++b) {
            EXPECT_EQ(std::memcmp(block(b).q[0], exact.view.tile(0, b).q[0], 32), 0);
            EXPECT_EQ(block(b).sum[0], exact.view.tile(0, b).sum[0]);
        }
    });
}

TEST(QuantRows, LiesInMemoryTileByTile) {
    alignas(64) std::byte memory[16384];
    const QuantRows rows = QuantRows::in(memory, 2 * kQuantTileRows + 1, 96);
    EXPECT_EQ(static_cast<void*>(rows.tiles), memory);
    EXPECT_EQ(&rows.tile(kQuantTileRows - 1, 2), rows.tiles + 2);
    EXPECT_EQ(&rows.tile(kQuantTileRows, 0), rows.tiles + 3);
    EXPECT_EQ(reinterpret_cast<std::byte*>(&rows.tile(2 * kQuantTileRows, 2) + 1),
              memory + QuantRows::bytes(rows.rows, rows.columns));
}

TEST(Rmsnorm, AgreesWithTheReferenceAndInPlace) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    for (const RmsnormCase& test : rmsnorm_cases()) {
        SCOPED_TRACE(test.name);
        CaseRandom random(test.seed);
        const std::vector<float> x = random.values(test.rows * test.columns, 3);
        const std::vector<float> weight = random.values(test.columns);
        for_each_target([&] {
            RmsnormParams params{.x = x.data(),
                                 .weight = weight.data(),
                                 .rows = test.rows,
                                 .columns = test.columns,
                                 .epsilon = 1e-5f};
            std::vector<float> fast = nan_filled(std::ssize(x));
            params.y = fast.data();
            rmsnorm(params, stream);
            std::vector<float> exact = nan_filled(std::ssize(x));
            params.y = exact.data();
            rmsnorm_ref(params);
            EXPECT_TRUE(within(fast, exact, test.columns, [&](size_t i) {
                return rmsnorm_tolerance(test) * std::fabs(exact[i]) + 1e-30;
            }));
            std::vector<float> in_place = x;
            params.x = params.y = in_place.data();
            rmsnorm(params, stream);
            EXPECT_TRUE(same_bits(in_place, fast));
        });
    }
}

TEST(Rmsnorm, NormalisesGroupsInsideWiderRowsAndNothingElse) {
    constexpr int64_t kRows = 3, kGroups = 5, kColumns = 20, kStride = 117;
    ThreadPool threads(2);
    CaseRandom random(2);
    const std::vector<float> x = random.values(kRows * kStride, 3);
    const std::vector<float> weight = random.values(kColumns);
    for (const Kernels kernels : {Kernels::fast, Kernels::reference}) {
        Stream stream{&threads, kernels};
        std::vector<float> whole = x;
        rmsnorm({.x = whole.data(),
                 .weight = weight.data(),
                 .y = whole.data(),
                 .rows = kRows,
                 .groups = kGroups,
                 .columns = kColumns,
                 .stride = kStride,
                 .epsilon = 1e-5f},
                stream);
        std::vector<float> one_by_one = x;
        for (int64_t row = 0; row < kRows; ++row) {
            for (int64_t group = 0; group < kGroups; ++group) {
                float* vector = one_by_one.data() + row * kStride + group * kColumns;
                rmsnorm({.x = vector,
                         .weight = weight.data(),
                         .y = vector,
                         .rows = 1,
                         .columns = kColumns,
                         .epsilon = 1e-5f},
                        stream);
            }
        }
        EXPECT_TRUE(same_bits(whole, one_by_one));
    }
}

TEST(Rmsnorm, RowsAreIndependent) {
    constexpr int64_t kRows = 64, kColumns = 603;
    CaseRandom random(1);
    const std::vector<float> x = random.values(kRows * kColumns);
    const std::vector<float> weight = random.values(kColumns);
    std::vector<float> y;
    for_each_target([&] {
        check_row_invariance(
            kRows,
            [&](int64_t row, int64_t rows, Stream& stream) {
                rmsnorm({.x = x.data() + row * kColumns,
                         .weight = weight.data(),
                         .y = y.data() + row * kColumns,
                         .rows = rows,
                         .columns = kColumns,
                         .epsilon = 1e-6f},
                        stream);
            },
            [&] { y = nan_filled(kRows * kColumns); }, [&] { return y; });
    });
}

TEST(Swiglu, AgreesWithTheReference) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    for (const SwigluCase& test : swiglu_cases()) {
        SCOPED_TRACE(test.name);
        CaseRandom random(test.seed);
        const std::vector<float> gate_up = random.values(test.rows * 2 * test.columns, 12);
        for_each_target([&] {
            SwigluParams params{
                .gate_up = gate_up.data(), .rows = test.rows, .columns = test.columns};
            std::vector<float> fast = nan_filled(test.rows * test.columns);
            params.y = fast.data();
            swiglu(params, stream);
            std::vector<float> exact = nan_filled(test.rows * test.columns);
            params.y = exact.data();
            swiglu_ref(params);
            EXPECT_TRUE(within(fast, exact, test.columns, [&](size_t i) {
                return swiglu_tolerance(test) * std::fabs(exact[i]) + 12 * 0x1p-126;
            }));
        });
    }
}

TEST(Swiglu, ExtremeGates) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    const float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> gate_up = {0,    1e-30f, 87.2f, -87.2f, -88,  89,
                                  -104, 1000,   -1000, 1e30f,  kNaN, infinity};
    const auto columns = std::ssize(gate_up);
    gate_up.resize(gate_up.size() * 2, 2.0f);
    for_each_target([&] {
        std::vector<float> fast = nan_filled(columns);
        std::vector<float> exact = nan_filled(columns);
        swiglu({gate_up.data(), fast.data(), 1, columns}, stream);
        swiglu_ref({gate_up.data(), exact.data(), 1, columns});
        EXPECT_TRUE(within(fast, exact, columns, [&](size_t i) {
            // Below -88 the exponential stops growing: what is left is below 1e-35.
            return 1e-6 * std::fabs(exact[i]) + 1e-34;
        }));
    });
}

TEST(Swiglu, RowsAreIndependent) {
    constexpr int64_t kRows = 64, kColumns = 165;
    CaseRandom random(1);
    const std::vector<float> gate_up = random.values(kRows * 2 * kColumns, 5);
    std::vector<float> y;
    for_each_target([&] {
        check_row_invariance(
            kRows,
            [&](int64_t row, int64_t rows, Stream& stream) {
                swiglu({gate_up.data() + row * 2 * kColumns, y.data() + row * kColumns, rows,
                        kColumns},
                       stream);
            },
            [&] { y = nan_filled(kRows * kColumns); }, [&] { return y; });
    });
}

TEST(Embed, CopiesDequantisedRows) {
    ThreadPool threads(3);
    for (const Kernels kernels : {Kernels::fast, Kernels::reference}) {
        Stream stream{&threads, kernels};
        for (const EmbedCase& test : embed_cases()) {
            SCOPED_TRACE(test.name);
            CaseRandom random(test.seed);
            std::vector<std::byte> storage;
            EmbedParams params;
            params.table =
                random_weights(random, test.type, test.vocabulary, test.hidden, 1, storage);
            std::vector<int32_t> tokens(static_cast<size_t>(test.rows));
            for (int32_t& token : tokens)
                token = random.below(static_cast<int32_t>(test.vocabulary));
            tokens.back() = static_cast<int32_t>(test.vocabulary) - 1;
            params.tokens = tokens;
            std::vector<float> fast = nan_filled(test.rows * test.hidden);
            params.out = fast.data();
            embed(params, stream);
            std::vector<float> expected;
            for (const int32_t token : tokens) {
                std::vector<float> row(static_cast<size_t>(test.hidden));
                dequantise_row(params.table, token, row.data());
                expected.insert(expected.end(), row.begin(), row.end());
            }
            EXPECT_TRUE(same_bits(fast, expected));
        }
    }
}

TEST(EmbedDeathTest, TokenOutsideTheVocabulary) {
    std::vector<std::byte> storage;
    CaseRandom random(1);
    EmbedParams params;
    params.table = random_weights(random, DType::f32, 4, 8, 1, storage);
    const std::vector<int32_t> tokens = {4};
    std::vector<float> out(8);
    params.tokens = tokens;
    params.out = out.data();
    EXPECT_DEATH(embed_ref(params), "token 4 of 4");
}

}  // namespace
}  // namespace kd
