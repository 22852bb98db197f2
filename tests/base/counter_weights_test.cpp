// The values that tools/counter_weights.py prints: both sides hold the same weights.
#include "support/counter_weights.h"

#include <gtest/gtest.h>

namespace kd {
namespace {

TEST(CounterWeights, EqualThoseOfPython) {
    EXPECT_EQ(counter_hash("fc.weight"), 0x79fb28a75603c7a0u);
    const std::vector<float> matrix = counter_matrix("fc.weight", 2, 48);
    ASSERT_EQ(matrix.size(), 96u);
    EXPECT_EQ(matrix[0], -0.0076904296875f);
    EXPECT_EQ(matrix[1], 0.1865234375f);
    EXPECT_EQ(matrix[95], -0.125f);
    EXPECT_EQ(counter_norm("norm.weight", 3),
              (std::vector<float>{0.8828125f, 0.76171875f, 1.0390625f}));
    EXPECT_EQ(counter_bias("blk.0.attn_q.bias", 2),
              (std::vector<float>{0.30859375f, 0.2490234375f}));
}

}  // namespace
}  // namespace kd
