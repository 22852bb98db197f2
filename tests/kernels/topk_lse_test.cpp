#include "kernels/topk_lse/topk_lse.h"

#include "kernel_test.h"
#include "kernels/cases/random.h"
#include "kernels/topk_lse/topk_lse_cases.h"

namespace kd {
namespace {

struct Output {
    std::vector<int32_t> index;
    std::vector<float> value;
    std::vector<float> lse;
};

Output run(const std::vector<float>& x, int64_t rows, int32_t k, Stream& stream) {
    Output out{std::vector<int32_t>(static_cast<size_t>(rows * k), -7), nan_filled(rows * k),
               nan_filled(rows)};
    topk_lse({.x = x.data(),
              .rows = rows,
              .columns = std::ssize(x) / rows,
              .k = k,
              .index = out.index.data(),
              .value = out.value.data(),
              .lse = out.lse.data()},
             stream);
    return out;
}

std::vector<float> values_of(const TopkLseCase& test) {
    CaseRandom random(test.seed);
    std::vector<float> x = random.values(test.rows * test.columns, test.magnitude);
    if (test.ties) {
        for (float& value : x) value = std::round(value);
    }
    return x;
}

TEST(TopkLse, AgreesWithTheReference) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast}, reference{&threads, Kernels::reference};
    for (const TopkLseCase& test : topk_lse_cases()) {
        SCOPED_TRACE(test.name);
        const std::vector<float> x = values_of(test);
        const Output exact = run(x, test.rows, test.k, reference);
        for_each_target([&] {
            const Output fast = run(x, test.rows, test.k, stream);
            EXPECT_TRUE(same_bits(fast.index, exact.index));
            EXPECT_TRUE(same_bits(fast.value, exact.value));
            EXPECT_TRUE(
                within(fast.lse, exact.lse, 1, [&](size_t) { return topk_lse_tolerance(test); }));
        });
    }
}

TEST(TopkLse, ARowIsTheSameInAnyBatchOnAnyThreads) {
    const TopkLseCase test{"", 9, 3001, 20, 5, false, 8};
    const std::vector<float> x = values_of(test);
    ThreadPool one(1), three(3);
    for_each_target([&] {
        Stream single{&one, Kernels::fast}, many{&three, Kernels::fast};
        const Output all = run(x, test.rows, test.k, many);
        for (int64_t row = 0; row < test.rows; ++row) {
            const std::vector<float> alone(x.begin() + row * test.columns,
                                           x.begin() + (row + 1) * test.columns);
            const Output out = run(alone, 1, test.k, single);
            const auto at = static_cast<size_t>(row);
            EXPECT_EQ(out.lse[0], all.lse[at]);
            EXPECT_TRUE(
                std::equal(out.index.begin(), out.index.end(), all.index.begin() + row * test.k));
        }
    });
}

TEST(TopkLse, WhatIsNotFiniteIsLeftOut) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<float> x(3 * 200, -kInfinity);
    x[150] = 2;  // row 0: two numbers
    x[17] = 1;
    x[18] = kInfinity;
    x[199] = kNaN;
    x[200] = kNaN;  // row 1: none
    x[401] = -3e38f;
    ThreadPool threads(1);
    for (const Kernels kernels : {Kernels::fast, Kernels::reference}) {
        Stream stream{&threads, kernels};
        const Output out = run(x, 3, 3, stream);
        EXPECT_EQ(out.index, (std::vector<int32_t>{150, 17, -1, -1, -1, -1, 1, -1, -1}));
        EXPECT_NEAR(out.lse[0], 2.3132617, 1e-6);
        EXPECT_EQ(out.lse[1], -kInfinity);
        EXPECT_EQ(out.lse[2], -3e38f);
        EXPECT_EQ(out.value[1], 1.0f);
        EXPECT_EQ(out.value[2], -kInfinity);
    }
}

}  // namespace
}  // namespace kd
