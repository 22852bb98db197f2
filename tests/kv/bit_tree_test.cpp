// BitTree against std::set.
#include "kv/bit_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace kd {
namespace {

constexpr uint32_t kSeed = 20240611;

int32_t at_or_after(const std::set<int32_t>& set, int32_t value) {
    const auto found = set.lower_bound(value);
    return found == set.end() ? -1 : *found;
}

int32_t at_or_before(const std::set<int32_t>& set, int32_t value) {
    const auto found = set.upper_bound(value);
    return found == set.begin() ? -1 : *std::prev(found);
}

// Mostly the values where a word of some level begins or ends.
int32_t any_value(std::mt19937& random, int32_t bound) {
    auto value = static_cast<int32_t>(random() % static_cast<uint32_t>(bound));
    switch (random() % 4) {
        case 0:
            value &= ~63;
            break;
        case 1:
            value = (value & ~4095) + static_cast<int32_t>(random() % 3) - 1;
            break;
        case 2:
            value |= 63;
            break;
        default:
            break;
    }
    return std::clamp(value, 0, bound - 1);
}

void expect_same(const BitTree& tree, const std::set<int32_t>& set, int32_t bound) {
    EXPECT_EQ(tree.last(), set.empty() ? -1 : *set.rbegin());
    int32_t value = -1;
    for (const int32_t member : set) {
        value = tree.at_or_after(value + 1);
        ASSERT_EQ(value, member);
    }
    EXPECT_EQ(tree.at_or_after(value + 1), -1);
    value = bound;
    for (auto member = set.rbegin(); member != set.rend(); ++member) {
        value = tree.at_or_before(value - 1);
        ASSERT_EQ(value, *member);
    }
    EXPECT_EQ(tree.at_or_before(value - 1), -1);
}

class BitTreeOfBound : public testing::TestWithParam<int32_t> {};

TEST_P(BitTreeOfBound, AgreesWithASet) {
    const int32_t bound = GetParam();
    BitTree tree(bound);
    std::set<int32_t> set;
    std::mt19937 random(kSeed);
    // Long phases of inserting and of erasing, so that it is now almost full and now almost empty.
    for (int step = 0; step < 40000; ++step) {
        const int32_t value = any_value(random, bound);
        if (random() % 8 < (step / 5000 % 2 == 0 ? 6u : 1u)) {
            tree.insert(value);
            set.insert(value);
        } else {
            // What is in it, as a rule: a large tree would hardly ever shrink by chance.
            const int32_t member = at_or_after(set, value);
            const int32_t erased = member < 0 || random() % 8 == 0 ? value : member;
            tree.erase(erased);
            set.erase(erased);
        }
        const int32_t asked = any_value(random, bound);
        ASSERT_EQ(tree.contains(asked), set.contains(asked)) << asked;
        ASSERT_EQ(tree.at_or_after(asked), at_or_after(set, asked)) << asked;
        ASSERT_EQ(tree.at_or_before(asked), at_or_before(set, asked)) << asked;
        if (step % 1000 == 0) expect_same(tree, set, bound);
    }
    while (!set.empty()) {
        tree.erase(*set.begin());
        set.erase(set.begin());
        if (set.size() % 512 == 0) expect_same(tree, set, bound);
    }
    for (int32_t value = 0; value < bound; ++value) {
        tree.insert(value);
        set.insert(set.end(), value);
    }
    expect_same(tree, set, bound);
}

TEST_P(BitTreeOfBound, OneMember) {
    const int32_t bound = GetParam();
    BitTree tree(bound);
    for (const int32_t value : {0, 1, 62, 63, 64, 65, 4095, 4096, 4097, bound / 2, bound - 1}) {
        if (value >= bound) continue;
        tree.insert(value);
        tree.insert(value);  // once is enough
        expect_same(tree, {value}, bound);
        EXPECT_EQ(tree.at_or_after(0), value);
        EXPECT_EQ(tree.at_or_after(value), value);
        EXPECT_EQ(tree.at_or_before(value), value);
        EXPECT_EQ(tree.at_or_before(bound - 1), value);
        tree.erase(value);
        tree.erase(value);
        expect_same(tree, {}, bound);
    }
}

INSTANTIATE_TEST_SUITE_P(Bounds, BitTreeOfBound, testing::Values(1, 63, 64, 65, 4096, 4097, 300000),
                         testing::PrintToStringParamName());

TEST(BitTree, NothingBelowZeroAndNothingFromTheBoundOn) {
    for (const int32_t bound : {0, 1, 63, 64, 65, 4096, 4097}) {
        BitTree tree(bound);
        EXPECT_EQ(tree.last(), -1);
        EXPECT_EQ(tree.at_or_after(0), -1);
        EXPECT_EQ(tree.at_or_after(bound), -1);
        for (int32_t value = 0; value < bound; ++value) tree.insert(value);
        EXPECT_EQ(tree.last(), bound - 1);
        EXPECT_EQ(tree.at_or_after(bound), -1);
        EXPECT_EQ(tree.at_or_after(bound + 1), -1);
        EXPECT_EQ(tree.at_or_before(-1), -1);
    }
}

TEST(BitTreeDeathTest, ABoundIsNotNegative) {
    EXPECT_DEATH(BitTree(-1), "bound -1");
}

}  // namespace
}  // namespace kd
