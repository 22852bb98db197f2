#include "kv/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

namespace kd {
namespace {

TEST(SlotPool, AllocationIsAllOrNothing) {
    SlotPool pool(8);
    std::vector<int32_t> slots;
    EXPECT_TRUE(pool.allocate(5, slots));
    EXPECT_FALSE(pool.allocate(4, slots));
    EXPECT_EQ(slots.size(), 5u);
    EXPECT_EQ(pool.free(), 3);
    EXPECT_TRUE(pool.allocate(3, slots));
    EXPECT_EQ(pool.free(), 0);
    EXPECT_FALSE(pool.allocate(1, slots));
    EXPECT_TRUE(pool.allocate(0, slots));
    EXPECT_EQ(std::set<int32_t>(slots.begin(), slots.end()).size(), 8u);
}

TEST(SlotPool, FreshPoolIsContiguous) {
    SlotPool pool(16);
    std::vector<int32_t> slots;
    ASSERT_TRUE(pool.allocate(16, slots));
    for (int32_t i = 0; i < 16; ++i) EXPECT_EQ(slots[static_cast<size_t>(i)], i);
}

TEST(SlotPoolDeathTest, DoubleReleaseAborts) {
    SlotPool pool(4);
    std::vector<int32_t> slots;
    ASSERT_TRUE(pool.allocate(1, slots));
    pool.release(slots);
    EXPECT_DEATH(pool.release(slots), "free already");
    const int32_t outside = 4;
    EXPECT_DEATH(pool.release(std::span(&outside, 1)), "slot 4 of 4");
}

TEST(PageTable, OwnsItsSlots) {
    SlotPool pool(10);
    {
        PageTable table(pool);
        EXPECT_TRUE(table.extend_to(6));
        EXPECT_TRUE(table.extend_to(3));  // never shrinks
        EXPECT_EQ(table.tokens(), 6);
        const PageTable moved = std::move(table);
        EXPECT_EQ(pool.used(), 6);
        PageTable other(pool);
        EXPECT_FALSE(other.extend_to(5));
        EXPECT_EQ(other.tokens(), 0);
        EXPECT_TRUE(other.extend_to(4));
        other = PageTable(pool);
        EXPECT_EQ(pool.used(), 6);
    }
    EXPECT_EQ(pool.used(), 0);
}

TEST(PageTable, RandomOperationsKeepTheBooks) {
    std::mt19937 random(7);
    SlotPool pool(97);
    std::vector<PageTable> tables;
    for (int i = 0; i < 8; ++i) tables.emplace_back(pool);
    for (int step = 0; step < 20000; ++step) {
        PageTable& table = tables[random() % tables.size()];
        const int32_t before = table.tokens();
        const auto tokens = static_cast<int32_t>(random() % 40);
        switch (random() % 4) {
            case 0:
                table.truncate(tokens);
                break;
            case 1:
                table = PageTable(pool);
                break;
            default: {
                const int32_t shortage = tokens - before - pool.free();
                EXPECT_EQ(table.extend_to(tokens), shortage <= 0);
                EXPECT_EQ(table.tokens(), shortage <= 0 ? std::max(before, tokens) : before);
            }
        }
        std::set<int32_t> seen;
        int32_t used = 0;
        for (const PageTable& each : tables) {
            used += each.tokens();
            seen.insert(each.slots().begin(), each.slots().end());
        }
        ASSERT_EQ(static_cast<int32_t>(seen.size()), used);  // no slot in two places
        ASSERT_EQ(pool.used(), used);
        ASSERT_EQ(pool.used() + pool.free(), pool.total());
    }
}

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
