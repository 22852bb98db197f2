#include "kernels/cuda/node_of_row.h"

#include <gtest/gtest.h>

namespace kd {
namespace {

TEST(NodeOfRow, IsTheQuotient) {
    for (int32_t heads = 1; heads <= 128; ++heads) {
        const NodeOfRow node_of(heads);
        int32_t wrong = 0;
        for (int32_t row = 0; row < 1 << 14; ++row) wrong += node_of(row) != row / heads;
        EXPECT_EQ(wrong, 0) << heads << " heads";
    }
}

}  // namespace
}  // namespace kd
