// FreePages against a bit a page and linear searches, which say what each placement must return.
#include "kv/free_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace kd {
namespace {

constexpr uint32_t kSeed = 20240612;

struct Reference {
    Placement placement;
    std::vector<bool> free;
    std::deque<int32_t> queue;  // free pages in the order in which they came back

    Reference(int32_t pages, Placement from) : placement(from), free(static_cast<size_t>(pages)) {
        for (int32_t page = 0; page < pages; ++page) give(page);
    }

    int32_t total() const { return static_cast<int32_t>(free.size()); }
    bool is_free(int32_t page) const { return free[static_cast<size_t>(page)]; }
    int32_t count() const { return static_cast<int32_t>(queue.size()); }

    PageRun run_at_or_after(int32_t page) const {
        for (int32_t first = page; first < total(); ++first) {
            if (!is_free(first) || (first > 0 && is_free(first - 1))) continue;
            int32_t end = first;
            while (end < total() && is_free(end)) ++end;
            return {.first = first, .count = end - first};
        }
        return {};
    }
    std::vector<PageRun> runs() const {
        std::vector<PageRun> runs;
        for (PageRun run = run_at_or_after(0); run.count > 0;
             run = run_at_or_after(run.first + run.count)) {
            runs.push_back(run);
        }
        return runs;
    }
    PageRun run_of(int32_t page) const {
        while (page > 0 && is_free(page - 1)) --page;
        return run_at_or_after(page);
    }

    void give(int32_t page) {
        free[static_cast<size_t>(page)] = true;
        queue.push_back(page);
    }
    void take(int32_t page) {
        free[static_cast<size_t>(page)] = false;
        queue.erase(std::find(queue.begin(), queue.end(), page));
    }
    // The next pages for who wants `count` behind `last`, up to where the choice begins anew. Where
    // several runs are as good as each other, the one that was taken is as good as any.
    PageRun next(int32_t count, int32_t last, int32_t taken) const {
        if (placement == Placement::unsorted) return {.first = queue.front(), .count = 1};
        const std::vector<PageRun> all = runs();
        PageRun best = all.front();
        if (placement == Placement::best_fit) {
            const auto better = [count](PageRun run, PageRun than) {
                if (than.count >= count) return run.count >= count && run.count < than.count;
                return run.count > than.count;
            };
            for (const PageRun run : all) {
                if (better(run, best) || (run.count == best.count && run.first == taken)) {
                    best = run;
                }
            }
            if (last >= 0 && last + 1 < total() && is_free(last + 1)) best = run_of(last + 1);
        }
        return {.first = best.first, .count = std::min(best.count, count)};
    }
};

void expect_same(const FreePages& pages, const Reference& reference) {
    const std::vector<PageRun> runs = reference.runs();
    ASSERT_EQ(pages.count(), reference.count());
    ASSERT_EQ(pages.runs(), static_cast<int32_t>(runs.size()));
    int32_t longest = 0;
    for (const PageRun run : runs) longest = std::max(longest, run.count);
    ASSERT_EQ(pages.longest(), longest);
    for (int32_t page = 0; page < reference.total(); ++page) {
        ASSERT_EQ(pages.is_free(page), reference.is_free(page)) << "page " << page;
    }
    int32_t at = 0;
    for (const PageRun run : runs) {
        ASSERT_EQ(pages.run_at_or_after(at), run) << "at or after " << at;
        ASSERT_EQ(pages.run_at_or_after(run.first), run);
        ASSERT_EQ(pages.run_of(run.first), run);
        ASSERT_EQ(pages.run_of(run.first + run.count - 1), run);
        ASSERT_EQ(pages.run_of(run.first + run.count / 2), run);
        at = run.first + run.count;
    }
    ASSERT_EQ(pages.run_at_or_after(at).count, 0);
}

struct Case {
    Placement placement;
    int32_t pages;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
    const char* names[] = {"unsorted", "sorted", "best_fit"};
    return std::string(names[static_cast<size_t>(info.param.placement)]) +
           std::to_string(info.param.pages);
}

class FreePagesOf : public testing::TestWithParam<Case> {
  protected:
    FreePagesOf()
        : pages_(GetParam().pages, GetParam().placement),
          reference_(GetParam().pages, GetParam().placement),
          random_(kSeed) {}

    int32_t below(int32_t bound) {
        return static_cast<int32_t>(random_() % static_cast<uint32_t>(bound));
    }
    void take(int32_t count, int32_t last);
    void take_some();
    void take_exactly();
    void give_some();

    FreePages pages_;
    Reference reference_;
    std::vector<int32_t> used_;  // in the order in which they were taken
    std::mt19937 random_;
};

void FreePagesOf::take(int32_t count, int32_t last) {
    std::vector<int32_t> out = {-7};  // what is there stays
    const bool taken = pages_.take(count, last, out);
    ASSERT_EQ(taken, count <= reference_.count());
    ASSERT_EQ(out.size(), 1 + static_cast<size_t>(taken ? count : 0));
    ASSERT_EQ(out[0], -7);
    size_t i = 1;
    while (i < out.size()) {
        const PageRun next =
            reference_.next(static_cast<int32_t>(out.size() - i), i == 1 ? last : -1, out[i]);
        for (int32_t page = next.first; page < next.first + next.count; ++page, ++i) {
            ASSERT_EQ(out[i], page) << "page " << i - 1 << " of " << count << " behind " << last;
            reference_.take(page);
        }
    }
    used_.insert(used_.end(), out.begin() + 1, out.end());
}

void FreePagesOf::take_some() {
    const int32_t last = used_.empty() || random_() % 4 == 0 ? -1 : used_[random_() % used_.size()];
    // Now and then everything, or one more than there is.
    const int32_t rare = below(40);
    const int32_t most = std::max(1, reference_.total() / 8);
    take(rare < 2 ? reference_.count() + rare : below(most + 1), last);
}

void FreePagesOf::take_exactly() {
    if (GetParam().placement == Placement::unsorted || reference_.count() == 0) return;
    const PageRun whole = reference_.run_of(reference_.queue[random_() % reference_.queue.size()]);
    PageRun run = {.first = whole.first + below(whole.count)};
    run.count = 1 + below(whole.first + whole.count - run.first);
    if (random_() % 4 == 0) run = whole;
    pages_.take_run(run);
    for (int32_t page = run.first; page < run.first + run.count; ++page) {
        reference_.take(page);
        used_.push_back(page);
    }
}

void FreePagesOf::give_some() {
    std::vector<int32_t> given;
    const int32_t count = random_() % 32 == 0 ? static_cast<int32_t>(used_.size())
                                              : below(std::max(2, reference_.total() / 8));
    // A stretch as it was taken, or pages from anywhere.
    const bool scattered = random_() % 2 == 0;
    size_t at = used_.empty() ? 0 : random_() % used_.size();
    for (int32_t i = 0; i < count && !used_.empty(); ++i) {
        if (scattered) at = random_() % used_.size();
        at = std::min(at, used_.size() - 1);
        given.push_back(used_[at]);
        used_.erase(used_.begin() + static_cast<ptrdiff_t>(at));
    }
    if (random_() % 4 == 0) std::sort(given.begin(), given.end());
    pages_.give(given);
    for (const int32_t page : given) reference_.give(page);
}

TEST_P(FreePagesOf, AgreesWithTheReference) {
    const int32_t steps = std::clamp(1000000 / GetParam().pages, 2000, 20000);
    expect_same(pages_, reference_);
    for (int32_t step = 0; step < steps; ++step) {
        switch (random_() % 8) {
            case 0:
                take_exactly();
                break;
            case 1:
            case 2:
            case 3:
                take_some();
                break;
            default:
                // Phases of a full pool and of an empty one.
                if (step / 200 % 2 == 0 || random_() % 3 == 0) {
                    give_some();
                } else {
                    take_some();
                }
        }
        expect_same(pages_, reference_);
        if (HasFatalFailure()) FAIL() << "seed " << kSeed << ", step " << step;
    }
    pages_.give(used_);
    EXPECT_EQ(pages_.count(), GetParam().pages);
    EXPECT_EQ(pages_.runs(), 1);
    EXPECT_EQ(pages_.longest(), GetParam().pages);
}

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    for (const Placement placement :
         {Placement::unsorted, Placement::sorted, Placement::best_fit}) {
        for (const int32_t pages : {1, 2, 3, 63, 64, 65, 200, 1000}) {
            cases.push_back({placement, pages});
        }
    }
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Placements, FreePagesOf, testing::ValuesIn(all_cases()), name_of);

// Takes `count` pages behind `last`; all of them are there.
std::vector<int32_t> take(FreePages& pages, int32_t count, int32_t last = -1) {
    std::vector<int32_t> out;
    EXPECT_TRUE(pages.take(count, last, out));
    return out;
}

using Pages = std::vector<int32_t>;

TEST(FreePages, BestFitGoesOnThenTakesTheShortestThatHoldsTheRest) {
    FreePages pages(20, Placement::best_fit);
    take(pages, 20);
    for (const Pages& run : {Pages{1, 2}, Pages{5, 6, 7, 8, 9}, Pages{12, 13, 14}, Pages{17}}) {
        pages.give(run);
    }
    EXPECT_EQ(take(pages, 3, 0), (Pages{1, 2, 17}));
    EXPECT_EQ(take(pages, 1, 4), (Pages{5}));
    EXPECT_EQ(take(pages, 3), (Pages{12, 13, 14}));
    pages.give(Pages{1, 12, 13});
    EXPECT_EQ(take(pages, 6), (Pages{6, 7, 8, 9, 12, 13}));  // none holds six: the longest first
}

TEST(FreePages, SortedTakesTheLowest) {
    FreePages pages(8, Placement::sorted);
    take(pages, 8);
    pages.give(Pages{6, 1, 4});
    EXPECT_EQ(take(pages, 2, 5), (Pages{1, 4}));  // whatever the table ends with
}

TEST(FreePages, UnsortedTakesThemAsTheyCameBack) {
    FreePages pages(4, Placement::unsorted);
    take(pages, 3);
    pages.give(Pages{2, 0});
    EXPECT_EQ(take(pages, 3, 2), (Pages{3, 2, 0}));
}

TEST(FreePages, AllOrNothing) {
    for (const Placement placement :
         {Placement::unsorted, Placement::sorted, Placement::best_fit}) {
        FreePages pages(8, placement);
        Pages out;
        EXPECT_TRUE(pages.take(5, -1, out));
        EXPECT_EQ(out, (Pages{0, 1, 2, 3, 4}));
        EXPECT_FALSE(pages.take(4, 4, out));
        EXPECT_EQ(out.size(), 5u);
        EXPECT_EQ(pages.count(), 3);
        EXPECT_TRUE(pages.take(0, 4, out));
        EXPECT_EQ(out.size(), 5u);
        EXPECT_TRUE(pages.take(3, 4, out));
        EXPECT_EQ(out.size(), 8u);
        EXPECT_FALSE(pages.take(1, -1, out));
        EXPECT_EQ(pages.runs(), 0);
        EXPECT_EQ(pages.longest(), 0);
    }
}

TEST(FreePages, NoPagesAtAll) {
    for (const Placement placement :
         {Placement::unsorted, Placement::sorted, Placement::best_fit}) {
        FreePages pages(0, placement);
        Pages out;
        EXPECT_TRUE(pages.take(0, -1, out));
        EXPECT_FALSE(pages.take(1, -1, out));
        EXPECT_EQ(pages.longest(), 0);
        EXPECT_EQ(pages.run_at_or_after(0).count, 0);
    }
}

class FreePagesDeathTest : public testing::TestWithParam<Placement> {};

TEST_P(FreePagesDeathTest, GivesOnlyWhatIsTaken) {
    FreePages pages(8, GetParam());
    take(pages, 4);
    EXPECT_DEATH(pages.give(Pages{4}), "page 4 is free already");
    EXPECT_DEATH(pages.give(Pages{2, 3, 4}), "page 4 is free already");
    EXPECT_DEATH(pages.give(Pages{1, 1}), "page 1 is free already");
    EXPECT_DEATH(pages.give(Pages{8}), "pages 8 to 8 of 8");
    EXPECT_DEATH(pages.give(Pages{-1}), "pages -1 to -1 of 8");
    EXPECT_DEATH(pages.give(Pages{-1, 0}), "pages -1 to 0 of 8");
}

TEST_P(FreePagesDeathTest, TakesOnlyWhatIsFree) {
    FreePages pages(8, GetParam());
    take(pages, 4);
    Pages out;
    EXPECT_DEATH((void)pages.take(-1, -1, out), "count -1");
    EXPECT_DEATH((void)pages.run_of(3), "page 3 is not free");
    if (GetParam() == Placement::unsorted) return;
    EXPECT_DEATH(pages.take_run({.first = 3, .count = 2}), "page 3 is not free");
    EXPECT_DEATH(pages.take_run({.first = 6, .count = 3}), "pages 6 to 9 of 8");
    EXPECT_DEATH(pages.take_run({.first = -1, .count = 1}), "pages -1 to 0 of 8");
    EXPECT_DEATH(pages.take_run({.first = 5, .count = 0}), "pages 5 to 5 of 8");
    pages.give(Pages{1});
    EXPECT_DEATH(pages.take_run({.first = 1, .count = 2}), "not all free");
}

INSTANTIATE_TEST_SUITE_P(Placements, FreePagesDeathTest,
                         testing::Values(Placement::unsorted, Placement::sorted,
                                         Placement::best_fit));

}  // namespace
}  // namespace kd
