// The ops that write the K/V cache: rope_append, kv_move.
#include <algorithm>
#include <numeric>

#include "kernel_test.h"
#include "kernels/cases/random.h"
#include "kernels/kv_move/kv_move.h"
#include "kernels/kv_move/kv_move_cases.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_append/rope_append_cases.h"

namespace kd {
namespace {

float cache_value(const KvView& kv, const std::byte* rows, int64_t slot, int64_t index) {
    float value;
    dequantise(kv.type, rows + slot * kv.row_bytes() + bytes_of(kv.type, index), 1, &value);
    return value;
}

struct RopeRun {
    std::vector<float> qkv;
    std::vector<std::byte> cache;
};

struct RopeSetup {
    RopeAppendCase test;
    std::vector<float> qkv;
    std::vector<float> angles;
    std::vector<int32_t> slots;

    explicit RopeSetup(const RopeAppendCase& t) : test(t) {
        CaseRandom random(test.seed);
        qkv = random.values(test.rows * (test.heads + 2 * test.kv_heads) * test.head_dim, 2);
        std::vector<int32_t> positions(static_cast<size_t>(test.rows));
        for (int32_t& position : positions) position = random.below(8192);
        std::vector<double> frequency(static_cast<size_t>(test.rotated / 2));
        for (size_t i = 0; i < frequency.size(); ++i) {
            frequency[i] = std::pow(10000.0, -2.0 * static_cast<double>(i) / test.rotated);
        }
        angles.resize(static_cast<size_t>(test.rows * test.rotated));
        rope_angles(positions, {.inverse_frequency = frequency}, angles.data());
        slots.resize(static_cast<size_t>(test.rows) + 5);
        std::iota(slots.begin(), slots.end(), 0);
        for (size_t i = slots.size() - 1; i > 0; --i) {
            std::swap(slots[i], slots[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
        }
    }

    KvView view(std::vector<std::byte>& cache) const {
        KvView kv{.type = test.cache,
                  .layers = 3,
                  .slots = std::ssize(slots),
                  .kv_heads = test.kv_heads,
                  .head_dim = test.head_dim};
        if (cache.empty()) cache.assign(static_cast<size_t>(kv.bytes()), std::byte{0xff});
        kv.data = cache.data();
        return kv;
    }

    RopeAppendParams params(RopeRun& run) const {
        return {.rows = test.rows,
                .heads = test.heads,
                .kv_heads = test.kv_heads,
                .head_dim = test.head_dim,
                .rotated = test.rotated,
                .pairing = test.pairing,
                .qkv = run.qkv.data(),
                .angles = angles.data(),
                .slots = std::span(slots).first(static_cast<size_t>(test.rows)),
                .kv = view(run.cache),
                .layer = 1};
    }
};

TEST(RopeAppend, AgreesWithTheReferenceAndTouchesOnlyItsSlots) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    for (const RopeAppendCase& test : rope_append_cases()) {
        SCOPED_TRACE(test.name);
        const RopeSetup setup(test);
        RopeRun exact{setup.qkv, {}};
        rope_append_ref(setup.params(exact));
        for_each_target([&] {
            RopeRun fast{setup.qkv, {}};
            RopeRun again{setup.qkv, {}};
            rope_append(setup.params(fast), stream);
            rope_append(setup.params(again), stream);
            EXPECT_TRUE(same_bits(fast.qkv, again.qkv));
            EXPECT_EQ(fast.cache, again.cache);
            const double tolerance = rope_append_tolerance(test) * 4;  // |a| + |b| <= 4
            EXPECT_TRUE(within(fast.qkv, exact.qkv,
                               (test.heads + 2 * test.kv_heads) * test.head_dim,
                               [&](size_t) { return tolerance; }));
            const KvView kv = setup.view(fast.cache);
            const KvView kv_exact = setup.view(exact.cache);
            for (int32_t layer = 0; layer < 3; ++layer) {
                for (int64_t slot = 0; slot < kv.slots; ++slot) {
                    for (int64_t i = 0; i < kv.row_elements(); ++i) {
                        const double step = test.cache == DType::f16 ? 0x1p-9 : 0;
                        const float k = cache_value(kv, kv.layer(layer).k, slot, i);
                        const float ke = cache_value(kv_exact, kv_exact.layer(layer).k, slot, i);
                        const float v = cache_value(kv, kv.layer(layer).v, slot, i);
                        const float ve = cache_value(kv_exact, kv_exact.layer(layer).v, slot, i);
                        ASSERT_EQ(std::isnan(k), std::isnan(ke)) << layer << " " << slot;
                        if (std::isnan(k)) continue;
                        ASSERT_NEAR(k, ke, tolerance + step * std::fabs(ke));
                        ASSERT_EQ(v, ve);
                    }
                }
            }
        });
    }
}

TEST(RopeAppend, RowsAreIndependent) {
    const RopeAppendCase test{"", 64, 9, 3, 64, 64, RopePairing::half, DType::f16, 3};
    const RopeSetup setup(test);
    for_each_target([&] {
        ThreadPool one(1);
        Stream stream{&one, Kernels::fast};
        RopeRun alone{setup.qkv, {}};
        const RopeAppendParams all = setup.params(alone);
        for (int64_t row = 0; row < test.rows; ++row) {
            RopeAppendParams part = all;
            part.rows = 1;
            part.qkv += row * 15 * 64;
            part.angles += row * 64;
            part.slots = part.slots.subspan(static_cast<size_t>(row), 1);
            rope_append(part, stream);
        }
        for (const int count : {1, 2, 3}) {
            ThreadPool pool(count);
            Stream other{&pool, Kernels::fast};
            RopeRun together{setup.qkv, {}};
            rope_append(setup.params(together), other);
            EXPECT_TRUE(same_bits(together.qkv, alone.qkv));
            EXPECT_EQ(together.cache, alone.cache);
        }
    });
}

TEST(RopeAppend, RotationKeepsDotProductsOfEqualDistance) {
    // <R(m) a, R(n) b> depends on m - n alone: a property that a wrong pairing or sign breaks.
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    CaseRandom random(8);
    const std::vector<float> a = random.values(16);
    const std::vector<float> b = random.values(16);
    std::vector<double> frequency(8);
    for (size_t i = 0; i < 8; ++i) frequency[i] = std::pow(100.0, -static_cast<double>(i) / 8);
    for (const RopePairing pairing : {RopePairing::adjacent, RopePairing::half}) {
        std::vector<double> products;
        for (const int32_t shift : {0, 17, 400}) {
            const std::vector<int32_t> positions = {shift + 9, shift + 2};
            std::vector<float> angles(2 * 16);
            rope_angles(positions, {.inverse_frequency = frequency}, angles.data());
            std::vector<float> qkv(2 * 48, 0.0f);  // one Q, K and V head a row
            std::copy(a.begin(), a.end(), qkv.begin());
            std::copy(b.begin(), b.end(), qkv.begin() + 48);
            std::vector<std::byte> cache(2 * 2 * 16 * 4);
            const std::vector<int32_t> slots = {0, 1};
            rope_append({.rows = 2,
                         .heads = 1,
                         .kv_heads = 1,
                         .head_dim = 16,
                         .rotated = 16,
                         .pairing = pairing,
                         .qkv = qkv.data(),
                         .angles = angles.data(),
                         .slots = slots,
                         .kv = {DType::f32, 1, 2, 1, 16, cache.data()},
                         .layer = 0},
                        stream);
            double product = 0;
            for (size_t i = 0; i < 16; ++i) product += double{qkv[i]} * qkv[48 + i];
            products.push_back(product);
        }
        EXPECT_NEAR(products[1], products[0], 1e-4);
        EXPECT_NEAR(products[2], products[0], 1e-4);
    }
}

TEST(KvMove, MovesRowsOfAllLayersAndNothingElse) {
    for (const KvMoveCase& test : kv_move_cases()) {
        SCOPED_TRACE(test.name);
        CaseRandom random(test.seed);
        KvView kv = kv_move_view(test);
        std::vector<std::byte> before(static_cast<size_t>(kv.bytes()));
        for (std::byte& byte : before) byte = static_cast<std::byte>(random.bits());
        std::vector<int32_t> slots(static_cast<size_t>(test.slots));
        std::iota(slots.begin(), slots.end(), 0);
        for (size_t i = slots.size() - 1; i > 0; --i) {
            std::swap(slots[i], slots[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
        }
        const auto count = static_cast<size_t>(test.moves);
        const MoveList moves{std::span(slots).first(count), std::span(slots).subspan(count, count)};
        std::vector<std::byte> expected = before;
        for (int64_t plane = 0; plane < test.layers * kv.planes(); ++plane) {
            for (size_t i = 0; i < count; ++i) {
                std::copy_n(before.begin() + (plane * kv.slots + moves.from[i]) * kv.row_bytes(),
                            kv.row_bytes(),
                            expected.begin() + (plane * kv.slots + moves.to[i]) * kv.row_bytes());
            }
        }
        for (const int threads : {1, 3}) {
            ThreadPool pool(threads);
            Stream stream{&pool, Kernels::fast};
            std::vector<std::byte> cache = before;
            kv.data = cache.data();
            kv_move({kv, moves}, stream);
            EXPECT_EQ(cache, expected);
        }
    }
}

TEST(KvMoveDeathTest, SlotOutsideThePool) {
    std::vector<std::byte> cache(4 * 2 * 8 * 4);
    const std::vector<int32_t> from = {4}, to = {0};
    const KvView kv{DType::f32, 1, 4, 1, 8, cache.data()};
    EXPECT_DEATH(kv_move_ref({kv, {from, to}}), "4 -> 0 in 4 slots");
}

}  // namespace
}  // namespace kd
