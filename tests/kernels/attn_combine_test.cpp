// The combine's plain truth: parts of a softmax merged are the softmax.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "kernels/attn_combine/attn_combine_ref.h"

namespace kd {

TEST(AttnCombine, PartsOfASoftmaxMakeTheWhole) {
    constexpr size_t kKeys = 40;
    constexpr size_t kParts = 5;
    constexpr size_t kDim = 3;
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    std::mt19937 engine(1);
    std::uniform_real_distribution<double> uniform(-3, 3);
    std::vector<double> score(kKeys);
    std::vector<double> value(kKeys * kDim);
    for (double& s : score) s = uniform(engine);
    for (double& v : value) v = uniform(engine);

    // Part 2 saw no key; its values are NaN and must not matter.
    std::vector<float> lse(kParts, kNothing);
    std::vector<float> out(kParts * kDim, std::numeric_limits<float>::quiet_NaN());
    std::vector<double> whole(kDim);
    double whole_sum = 0;
    for (size_t part = 0; part < kParts; ++part) {
        if (part == 2) continue;
        double sum = 0;
        std::vector<double> values(kDim);
        for (size_t key = part; key < kKeys; key += kParts) {
            sum += std::exp(score[key]);
            for (size_t i = 0; i < kDim; ++i) {
                values[i] += std::exp(score[key]) * value[key * kDim + i];
            }
        }
        lse[part] = static_cast<float>(std::log2(sum));
        whole_sum += sum;
        for (size_t i = 0; i < kDim; ++i) {
            out[part * kDim + i] = static_cast<float>(values[i] / sum);
            whole[i] += values[i];
        }
    }
    const CombinedRow row = attn_combine_ref(lse, out);
    EXPECT_NEAR(row.lse, std::log(whole_sum), 1e-6);
    for (size_t i = 0; i < kDim; ++i) EXPECT_NEAR(row.out[i], whole[i] / whole_sum, 1e-6);
}

TEST(AttnCombine, ARowThatSawNothing) {
    const std::vector<float> lse(3, -std::numeric_limits<float>::infinity());
    const std::vector<float> out(6, std::numeric_limits<float>::quiet_NaN());
    const CombinedRow row = attn_combine_ref(lse, out);
    EXPECT_EQ(row.lse, -std::numeric_limits<double>::infinity());
    EXPECT_EQ(row.out, std::vector<double>(2, 0.0));
}

}  // namespace kd
