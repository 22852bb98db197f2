#include "kv/commit.h"

#include <gtest/gtest.h>

#include <vector>

namespace kd {
namespace {

TEST(Commit, MovesThePathToItsPositions) {
    const std::vector<int32_t> path = {0, 2, 5};
    const std::vector<int32_t> tail = {100, 101, 102, 103, 104, 105};
    const std::vector<int32_t> positions = {9, 8, 7, 6, 5};
    std::vector<int32_t> from(3), to(3);
    plan_commit(path, tail, 2, positions, from, to);
    EXPECT_EQ(from, (std::vector<int32_t>{100, 102, 105}));
    EXPECT_EQ(to, (std::vector<int32_t>{7, 6, 5}));
}

TEST(CommitDeathTest, PositionsMustExist) {
    const std::vector<int32_t> path = {0, 1};
    const std::vector<int32_t> tail = {4, 5};
    const std::vector<int32_t> positions = {0, 1};
    std::vector<int32_t> from(2), to(2);
    EXPECT_DEATH(plan_commit(path, tail, 1, positions, from, to), "positions 1 to 3");
}

}  // namespace
}  // namespace kd
