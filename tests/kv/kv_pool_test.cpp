// KvPool, one promise of its header at a time; kv_pool_property_test.cpp has all of them together.
#include "kv/kv_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace kd {
namespace {

using Slots = std::vector<int32_t>;
using Tokens = std::vector<int32_t>;

Slots slots_of(const PageTable& table) {
    return {table.slots().begin(), table.slots().end()};
}

Slots counted(int32_t first, int32_t count) {
    Slots slots(static_cast<size_t>(count));
    std::iota(slots.begin(), slots.end(), first);
    return slots;
}

Tokens some_tokens(int32_t count) {
    return counted(100, count);
}

// A session that computed these tokens, published them and went.
void leave(KvPool& pool, const Tokens& tokens) {
    PageTable table(pool);
    const auto count = static_cast<int32_t>(tokens.size());
    ASSERT_TRUE(pool.extend(table, count, count));
    pool.publish(table, tokens);
}

TEST(KvPool, AFreshPoolIsContiguous) {
    for (const Placement placement :
         {Placement::unsorted, Placement::sorted, Placement::best_fit}) {
        for (const int32_t page_size : {1, 16, 32, 64}) {
            // Half a page is left over.
            KvPool pool(
                {.slots = 4 * 64 + page_size / 2, .page_size = page_size, .placement = placement});
            EXPECT_EQ(pool.total(), 4 * 64);
            PageTable table(pool);
            ASSERT_TRUE(pool.extend(table, 100, 0));
            ASSERT_TRUE(pool.extend(table, 4 * 64, 0));
            EXPECT_EQ(slots_of(table), counted(0, 4 * 64));
            EXPECT_EQ(pool.fragmentation().runs, 1);
            EXPECT_EQ(pool.fragmentation().whole_tiles, 4);
            pool.check_books();
        }
    }
}

TEST(KvPool, ATableOwnsItsSlots) {
    KvPool pool({.slots = 10});
    {
        PageTable table(pool);
        EXPECT_TRUE(pool.extend(table, 6, 6));
        EXPECT_EQ(pool.used(), 6);
        PageTable other(pool);
        EXPECT_FALSE(pool.extend(other, 5, 5));
        EXPECT_EQ(other.tokens(), 0);
        EXPECT_TRUE(pool.extend(other, 4, 4));
        EXPECT_EQ(pool.free(), 0);
        other.clear();
        EXPECT_EQ(other.tokens(), 0);
        EXPECT_EQ(pool.free(), 4);
        EXPECT_TRUE(pool.extend(other, 2, 2));  // and is good for another session
    }
    EXPECT_EQ(pool.free(), 10);
    EXPECT_TRUE(pool.tables().empty());
}

TEST(KvPool, MoreThanNeededWhereThereIsRoom) {
    KvPool pool({.slots = 64, .page_size = 16});
    PageTable table(pool);
    ASSERT_TRUE(pool.extend(table, 17, 33));
    EXPECT_EQ(table.tokens(), 48);
    PageTable other(pool);
    ASSERT_TRUE(pool.extend(other, 1, 64));  // what is wanted takes from nobody
    EXPECT_EQ(other.tokens(), 16);
    EXPECT_EQ(table.tokens(), 48);
    ASSERT_TRUE(pool.extend(other, 17, 17));  // what is needed does
    EXPECT_EQ(table.tokens(), 32);
    EXPECT_EQ(pool.totals().trimmed, 16);
    EXPECT_EQ(pool.available(), 0);
    EXPECT_FALSE(pool.extend(other, 33, 33));
}

TEST(KvPool, ThePrefixIsSharedAndItsLastPageCopied) {
    KvPool pool({.slots = 160, .page_size = 16});
    const Tokens tokens = some_tokens(40);
    leave(pool, tokens);
    EXPECT_EQ(pool.cached(), 32);  // whole pages
    Tokens other = tokens;
    other[20] = 7;
    EXPECT_EQ(pool.cached_prefix(other), 20);
    PageTable table(pool);
    SlotCopies copies;
    EXPECT_EQ(pool.reuse(table, other, copies), 20);
    EXPECT_EQ(table.shared_pages(), 1);
    EXPECT_EQ(table.slots().size(), 32u);
    EXPECT_EQ(copies.from, counted(16, 4));
    EXPECT_EQ(copies.to, Slots(table.slots().begin() + 16, table.slots().begin() + 20));
    EXPECT_NE(copies.to, copies.from);
    EXPECT_EQ(pool.totals().asked, 40);
    EXPECT_EQ(pool.totals().reused, 20);
    pool.drop_cached();
    EXPECT_EQ(pool.cached(), 16);  // what the table reads
    pool.check_books();
}

TEST(KvPool, WithoutRoomForTheCopyWholePagesAreReused) {
    KvPool pool({.slots = 48, .page_size = 16});
    leave(pool, some_tokens(32));
    PageTable rest(pool);
    ASSERT_TRUE(pool.extend(rest, 16, 16));
    PageTable table(pool);
    SlotCopies copies;
    EXPECT_EQ(pool.reuse(table, some_tokens(24), copies), 16);
    EXPECT_TRUE(copies.from.empty());
    EXPECT_EQ(table.tokens(), 16);
    pool.check_books();
}

TEST(KvPool, WhatTwoComputedIsKeptOnce) {
    KvPool pool({.slots = 16});
    PageTable first(pool);
    PageTable second(pool);
    const Tokens tokens = some_tokens(6);
    ASSERT_TRUE(pool.extend(first, 6, 6));
    ASSERT_TRUE(pool.extend(second, 6, 6));
    pool.publish(first, tokens);
    EXPECT_EQ(pool.free(), 4);
    pool.publish(second, tokens);
    EXPECT_EQ(pool.free(), 10);
    EXPECT_EQ(slots_of(second), slots_of(first));
    pool.check_books();
}

TEST(KvPool, WithoutAnIndexNothingIsKept) {
    KvPool pool({.slots = 16, .prefix_index = false});
    leave(pool, some_tokens(6));
    EXPECT_EQ(pool.free(), 16);
    EXPECT_EQ(pool.cached_prefix(some_tokens(6)), 0);
}

TEST(KvPool, EvictsInBatches) {
    for (const double batch : {0.0, 0.25}) {
        KvPool pool({.slots = 16, .evict_batch = batch});
        for (int32_t i = 0; i < 16; ++i) leave(pool, {i});
        EXPECT_EQ(pool.free(), 0);
        PageTable table(pool);
        ASSERT_TRUE(pool.extend(table, 1, 1));
        const int32_t evicted = batch > 0 ? 4 : 1;
        EXPECT_EQ(pool.cached(), 16 - evicted);
        EXPECT_EQ(pool.totals().evicted, evicted);
        EXPECT_EQ(pool.cached_prefix(Tokens{evicted - 1}), 0);  // the longest unused first
        EXPECT_EQ(pool.cached_prefix(Tokens{evicted}), 1);
    }
}

TEST(KvPool, NothingIsTakenFromAHeldTable) {
    KvPool pool({.slots = 8});
    PageTable table(pool);
    ASSERT_TRUE(pool.extend(table, 2, 8));
    table.hold();
    table.hold();
    PageTable other(pool);
    EXPECT_FALSE(pool.extend(other, 1, 1));
    table.release();
    EXPECT_FALSE(pool.extend(other, 1, 1));
    table.release();
    EXPECT_TRUE(pool.extend(other, 6, 6));
    EXPECT_EQ(table.tokens(), 2);
}

TEST(KvPool, RenamedPagesAreRenamedEverywhere) {
    KvPool pool({.slots = 8});
    PageTable table(pool);
    ASSERT_TRUE(pool.extend(table, 4, 4));
    pool.publish(table, some_tokens(3));
    PageTable other(pool);
    SlotCopies copies;
    EXPECT_EQ(pool.reuse(other, some_tokens(2), copies), 2);
    pool.rename(Slots{1, 3}, Slots{7, 5});
    EXPECT_EQ(slots_of(table), (Slots{0, 7, 2, 5}));
    EXPECT_EQ(slots_of(other), (Slots{0, 7}));
    EXPECT_EQ(table.fragmentation().runs, 4);
    EXPECT_EQ(pool.totals().moved, 2);
    EXPECT_TRUE(pool.free_pages().is_free(1));
    pool.check_books();
}

std::string refusal_of(const KvPoolOptions& options) {
    try {
        const KvPool pool(options);
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::invalid_argument);
        return error.what();
    }
    return "";
}

TEST(KvPool, SaysWhichOptionIsOutOfRange) {
    for (const int32_t page_size : {-16, 0, 2, 17, 128}) {
        EXPECT_EQ(refusal_of({.slots = 1024, .page_size = page_size}),
                  "page size " + std::to_string(page_size) + " is none of 1, 16, 32, 64");
    }
    EXPECT_EQ(refusal_of({.slots = 15, .page_size = 16}),
              "a pool of 15 tokens does not hold a page of 16");
    EXPECT_EQ(refusal_of({.slots = -1}), "a pool of -1 tokens does not hold a page of 1");
    EXPECT_EQ(refusal_of({.slots = 1, .evict_batch = -0.5}), "evict batch -0.5 is outside 0..1");
    EXPECT_EQ(refusal_of({.slots = 1, .evict_batch = 1.5}), "evict batch 1.5 is outside 0..1");
    EXPECT_EQ(refusal_of({.slots = 1, .evict_batch = std::nan("")}),
              "evict batch nan is outside 0..1");
    EXPECT_EQ(refusal_of({.slots = 1, .evict_batch = 1}), "");
}

TEST(KvPoolDeathTest, CallsThatCannotBeRight) {
    KvPool pool({.slots = 8});
    PageTable table(pool);
    ASSERT_TRUE(pool.extend(table, 4, 4));
    SlotCopies copies;
    EXPECT_DEATH(pool.reuse(table, some_tokens(2), copies), "a table of 4 pages looks for");
    EXPECT_DEATH(pool.publish(table, some_tokens(5)), "5 tokens in a table of 4 pages");
    EXPECT_DEATH(table.release(), "the table is not held");
    EXPECT_DEATH(pool.rename(Slots{0}, Slots{}), "1 pages to 0 places");
    EXPECT_DEATH(pool.rename(Slots{5}, Slots{6}), "page 5 is free");
    EXPECT_DEATH(pool.rename(Slots{0}, Slots{1}), "page 1 is not free");
    table.hold();
    EXPECT_DEATH(table.clear(), "a held table is cleared");
    EXPECT_DEATH(pool.publish(table, some_tokens(2)), "a held table is published");
    EXPECT_DEATH(pool.rename(Slots{0}, Slots{5}), "page 0 of a held table moves");
    table.release();
    KvPool unsorted({.slots = 8, .placement = Placement::unsorted});
    PageTable other(unsorted);
    ASSERT_TRUE(unsorted.extend(other, 1, 1));
    EXPECT_DEATH(unsorted.rename(Slots{0}, Slots{5}), "an unsorted pool does not relocate");
}

TEST(KvPoolDeathTest, TablesDoNotOutliveTheirPool) {
    const auto outlive = [] {
        std::optional<KvPool> pool(std::in_place, KvPoolOptions{.slots = 8});
        PageTable table(*pool);
        EXPECT_TRUE(pool->extend(table, 1, 1));
        pool.reset();
    };
    EXPECT_DEATH(outlive(), "1 tables outlive their pool");
}

}  // namespace
}  // namespace kd
