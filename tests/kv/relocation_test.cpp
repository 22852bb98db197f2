// plan_moves on pools small enough to say by hand what should move; then random ones, where it must
// end, break nothing and repeat itself.
#include "kv/relocation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

namespace kd {
namespace {

using Pages = std::vector<int32_t>;

/// Tables of given lengths that lie one behind the other.
struct Row {
    explicit Row(const KvPoolOptions& options, const std::vector<int32_t>& tokens) : pool(options) {
        for (const int32_t each : tokens) {
            tables.push_back(std::make_unique<PageTable>(pool));
            EXPECT_TRUE(pool.extend(*tables.back(), each, each));
        }
    }
    void drop(size_t index) { tables[index].reset(); }

    KvPool pool;
    std::vector<std::unique_ptr<PageTable>> tables;
};

Pages counted(int32_t first, int32_t count) {
    Pages pages(static_cast<size_t>(count));
    std::iota(pages.begin(), pages.end(), first);
    return pages;
}

TEST(PlanMoves, JoinsFreeRunsByTheShortestStretchBetweenThem) {
    // Free: 10 to 29, 35 to 54, 62 to 66 and 90 to 99; between them 5, 7 and 23 pages.
    Row row({.slots = 100}, {10, 20, 5, 20, 7, 5, 23, 10});
    for (const size_t each : {1, 3, 5, 7}) row.drop(each);
    const PageMoves moves = plan_moves(row.pool, 11);
    EXPECT_EQ(moves.from, counted(30, 5));
    EXPECT_EQ(moves.to, counted(62, 5));  // fits exactly
    row.pool.rename(moves.from, moves.to);
    EXPECT_EQ(row.pool.free_pages().run_at_or_after(0), (PageRun{.first = 10, .count = 45}));
    EXPECT_EQ(row.tables[2]->pages()[0], 62);
    row.pool.check_books();
}

TEST(PlanMoves, LeavesAStretchThatIsBeyondTheBudgetOrHasNoPlace) {
    Row row({.slots = 100}, {10, 20, 12, 20, 38});
    row.drop(1);
    row.drop(3);
    EXPECT_TRUE(plan_moves(row.pool, 11).from.empty());
    EXPECT_TRUE(plan_moves(row.pool, 100).from.empty());  // both free runs touch it
    EXPECT_TRUE(plan_moves(row.pool, 0).from.empty());
}

TEST(PlanMoves, CompletesATileBesideItsLongestPiece) {
    // A table in two runs, 0 to 39 and 80 to 119; the tile is its first 64 positions.
    Row row({.slots = 400}, {40, 40});
    ASSERT_TRUE(row.pool.extend(*row.tables[0], 80, 80));
    ASSERT_EQ(row.tables[0]->fragmentation().runs, 2);
    ASSERT_EQ(row.tables[0]->fragmentation().whole_tiles, 0);
    EXPECT_TRUE(plan_moves(row.pool, 64).from.empty());  // 40 to 79 are another table's
    row.drop(1);
    EXPECT_TRUE(plan_moves(row.pool, 23).from.empty());
    const PageMoves moves = plan_moves(row.pool, 64);
    // Positions 40 to 63 to where position 40 would be; not positions 0 to 39, which are more.
    EXPECT_EQ(moves.from, counted(80, 24));
    EXPECT_EQ(moves.to, counted(40, 24));
    row.pool.rename(moves.from, moves.to);
    EXPECT_EQ(row.tables[0]->fragmentation().whole_tiles, 1);
}

TEST(PlanMoves, MovesATileIntoAFreeRunThatIsTooShortForTwo) {
    Row row({.slots = 400}, {40, 60, 100, 100});
    row.drop(2);  // 100 to 199
    // Fill what is behind so that the first table goes on in the hole alone.
    PageTable end(row.pool);
    ASSERT_TRUE(row.pool.extend(end, 100, 100));
    ASSERT_TRUE(row.pool.extend(*row.tables[0], 64, 64));
    const PageMoves before = plan_moves(row.pool, 64);
    const PageMoves again = plan_moves(row.pool, 64);
    EXPECT_EQ(before.from, again.from);
    EXPECT_EQ(before.to, again.to);
    row.pool.rename(before.from, before.to);
    EXPECT_EQ(row.tables[0]->fragmentation().whole_tiles, 1);
    row.pool.check_books();
}

TEST(PlanMoves, LeavesATileWhoseBeginningAnotherHasWhole) {
    KvPool pool({.slots = 400});
    PageTable whole(pool), between(pool), broken(pool), behind(pool), end(pool);
    const Pages prefix = counted(1000, 40);
    ASSERT_TRUE(pool.extend(whole, 64, 64));
    pool.publish(whole, prefix);
    ASSERT_TRUE(pool.extend(between, 36, 36));
    SlotCopies copies;
    ASSERT_EQ(pool.reuse(broken, prefix, copies), 40);
    ASSERT_TRUE(pool.extend(broken, 64, 64));  // 0 to 39, then 100 to 123
    ASSERT_TRUE(pool.extend(behind, 76, 76));
    ASSERT_TRUE(pool.extend(end, 200, 200));
    between.clear();
    behind.clear();  // 124 to 199: a place for a tile
    EXPECT_EQ(pool.fragmentation().whole_tiles, 4);
    const PageMoves moves = plan_moves(pool, 400);
    pool.rename(moves.from, moves.to);
    pool.check_books();
    EXPECT_EQ(whole.fragmentation().whole_tiles, 1);
}

TEST(PlanMoves, NothingMovesThatIsHeld) {
    Row row({.slots = 200}, {40, 20});
    ASSERT_TRUE(row.pool.extend(*row.tables[0], 80, 80));
    row.drop(1);
    row.tables[0]->hold();
    EXPECT_TRUE(plan_moves(row.pool, 1000).from.empty());
    row.tables[0]->release();
    EXPECT_FALSE(plan_moves(row.pool, 1000).from.empty());
}

TEST(PlanMoves, AnUnsortedPoolStaysAsItIs) {
    Row row({.slots = 200, .placement = Placement::unsorted}, {40, 20});
    ASSERT_TRUE(row.pool.extend(*row.tables[0], 80, 80));
    row.drop(1);
    EXPECT_TRUE(plan_moves(row.pool, 1000).from.empty());
}

TEST(PlanMoves, SlotsAreThoseOfThePagesInOrder) {
    const SlotCopies slots = slots_of({.from = {3, 1}, .to = {0, 7}}, 16);
    ASSERT_EQ(slots.from.size(), 32u);
    EXPECT_EQ(slots.from[0], 48);
    EXPECT_EQ(slots.to[0], 0);
    EXPECT_EQ(slots.from[31], 31);
    EXPECT_EQ(slots.to[31], 127);
}

/// Scatters tables of one to a few hundred pages over a pool.
void scatter(KvPool& pool, std::vector<std::unique_ptr<PageTable>>& tables, std::mt19937& random) {
    for (int step = 0; step < 400; ++step) {
        if (tables.size() < 8) tables.push_back(std::make_unique<PageTable>(pool));
        PageTable& table = *tables[random() % tables.size()];
        if (random() % 12 == 0) {
            table.clear();
            continue;
        }
        const auto more = static_cast<int32_t>(random() % 60) + 1;
        if (!pool.extend(table, table.tokens() + more, 0)) table.clear();
    }
}

TEST(PlanMoves, ComesToAnEndAndNeverBreaksWhatIsWhole) {
    for (const int32_t page_size : {1, 16, 32, 64}) {
        std::mt19937 random(static_cast<uint32_t>(page_size));
        int64_t moved = 0;
        for (int round = 0; round < 20; ++round) {
            KvPool pool({.slots = 3000 * (page_size == 1 ? 1 : 4), .page_size = page_size});
            std::vector<std::unique_ptr<PageTable>> tables;
            scatter(pool, tables, random);
            const auto budget = static_cast<int32_t>(random() % 200) + 1;
            Fragmentation last = pool.fragmentation();
            int32_t runs = pool.free_pages().runs();
            for (int calls = 0;; ++calls) {
                ASSERT_LT(calls, 1000) << "page " << page_size << ", round " << round;
                const PageMoves moves = plan_moves(pool, budget);
                ASSERT_LE(std::ssize(moves.from), budget);
                if (moves.from.empty()) break;
                pool.rename(moves.from, moves.to);
                pool.check_books();
                const Fragmentation now = pool.fragmentation();
                ASSERT_GE(now.whole_tiles, last.whole_tiles);
                // Something got better: more whole tiles, or else fewer free runs.
                ASSERT_TRUE(now.whole_tiles > last.whole_tiles || pool.free_pages().runs() < runs)
                    << "page " << page_size << ", round " << round << ", call " << calls << ", "
                    << moves.from.size() << " moves, " << runs << " free runs";
                last = now;
                runs = pool.free_pages().runs();
            }
            moved += pool.totals().moved;
        }
        EXPECT_GT(moved, 0) << "page " << page_size;
    }
}

}  // namespace
}  // namespace kd
