// The page pool through the C ABI: what is handed out, in which order, and that no misuse of the
// host changes anything.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kdtree/kernels.h"

namespace kd {
namespace {

using Pages = std::vector<int32_t>;

struct Destroy {
    void operator()(kdt_pool* pool) const { kdt_pool_destroy(pool); }
};
using Pool = std::unique_ptr<kdt_pool, Destroy>;

constexpr kdt_pool_placement kPlacements[] = {KDT_POOL_UNSORTED, KDT_POOL_SORTED,
                                              KDT_POOL_BEST_FIT};

kdt_pool_options options_of(int32_t pages, int32_t placement = KDT_POOL_BEST_FIT,
                            int32_t reserved = 0) {
    return {.struct_bytes = sizeof(kdt_pool_options),
            .pages = pages,
            .placement = placement,
            .reserved = reserved};
}

Pool make(int32_t pages, int32_t placement = KDT_POOL_BEST_FIT, int32_t reserved = 0) {
    const kdt_pool_options options = options_of(pages, placement, reserved);
    kdt_pool* pool = nullptr;
    EXPECT_EQ(kdt_pool_create(&options, &pool), KDT_OK) << kdt_last_error();
    return Pool(pool);
}

kdt_pool_stats stats_of(const Pool& pool) {
    kdt_pool_stats stats{};
    stats.struct_bytes = sizeof stats;
    EXPECT_EQ(kdt_pool_read_stats(pool.get(), &stats), KDT_OK) << kdt_last_error();
    return stats;
}

Pages extend(const Pool& pool, int32_t count, int32_t last = -1) {
    Pages pages(static_cast<size_t>(count), -7);
    EXPECT_EQ(kdt_pool_extend(pool.get(), last, count, pages.data()), KDT_OK) << kdt_last_error();
    return pages;
}

kdt_status give(const Pool& pool, const Pages& pages) {
    return kdt_pool_free(pool.get(), pages.data(), static_cast<int64_t>(pages.size()));
}

Pages range(int32_t first, int32_t count) {
    Pages pages(static_cast<size_t>(count));
    std::iota(pages.begin(), pages.end(), first);
    return pages;
}

struct Batch {
    kdt_status status = KDT_OK;
    Pages pages;
    std::vector<int64_t> offsets;

    Pages of(size_t r) const {
        return {pages.begin() + offsets[r], pages.begin() + offsets[r + 1]};
    }
};

Batch extend_batch(const Pool& pool, const Pages& counts, const Pages& lasts = {}) {
    Batch batch;
    batch.pages.assign(
        static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0})), -7);
    batch.offsets.assign(counts.size() + 1, -7);
    batch.status =
        kdt_pool_extend_batch(pool.get(), static_cast<int32_t>(counts.size()), counts.data(),
                              lasts.empty() ? nullptr : lasts.data(), batch.pages.data(),
                              static_cast<int64_t>(batch.pages.size()), batch.offsets.data());
    return batch;
}

TEST(PoolApi, StatsOfAFreshPool) {
    for (const kdt_pool_placement placement : kPlacements) {
        const kdt_pool_stats stats = stats_of(make(10, placement, 3));
        EXPECT_EQ(stats.pages, 10);
        EXPECT_EQ(stats.reserved, 3);
        EXPECT_EQ(stats.free_pages, 7);
        EXPECT_EQ(stats.free_runs, 1);
        EXPECT_EQ(stats.longest_free_run, 7);
    }
}

TEST(PoolApi, ReservedPagesAreNeverHandedOut) {
    for (const kdt_pool_placement placement : kPlacements) {
        const Pool pool = make(6, placement, 2);
        EXPECT_EQ(extend(pool, 4), range(2, 4));
        int32_t page = -7;
        EXPECT_EQ(kdt_pool_allocate(pool.get(), 1, &page), KDT_SHORT);
        EXPECT_EQ(page, -7);
        EXPECT_STREQ(kdt_last_error(), "1 pages asked for, 0 are free");
    }
    const Pool none = make(2, KDT_POOL_BEST_FIT, 2);
    EXPECT_EQ(stats_of(none).free_pages, 0);
}

TEST(PoolApi, AllocationIsAllOrNothing) {
    for (const kdt_pool_placement placement : kPlacements) {
        const Pool pool = make(8, placement);
        EXPECT_EQ(extend(pool, 5), range(0, 5));
        Pages pages(4, -7);
        EXPECT_EQ(kdt_pool_allocate(pool.get(), 4, pages.data()), KDT_SHORT);
        EXPECT_EQ(pages, Pages(4, -7));
        EXPECT_EQ(stats_of(pool).free_pages, 3);
        EXPECT_EQ(extend(pool, 3), range(5, 3));
        EXPECT_EQ(kdt_pool_allocate(pool.get(), 0, nullptr), KDT_OK);
    }
}

TEST(PoolApi, PlacementDecidesWhichPages) {
    for (const kdt_pool_placement placement : kPlacements) {
        const Pool pool = make(12, placement);
        extend(pool, 12);
        ASSERT_EQ(give(pool, {8, 9, 10, 11}), KDT_OK);
        ASSERT_EQ(give(pool, {2, 3}), KDT_OK);
        const Pages expected = placement == KDT_POOL_UNSORTED ? Pages{8, 9} : Pages{2, 3};
        EXPECT_EQ(extend(pool, 2), expected) << placement;
    }
    const Pool pool = make(12);
    extend(pool, 12);
    ASSERT_EQ(give(pool, {2, 3, 4, 8, 9, 10}), KDT_OK);
    EXPECT_EQ(extend(pool, 1, 7), Pages{8}) << "behind the last page";
    EXPECT_EQ(extend(pool, 2), (Pages{9, 10})) << "the shortest run that holds two";
}

TEST(PoolApi, BatchKeepsTheCallersOrder) {
    for (const kdt_pool_placement placement : kPlacements) {
        const Pool pool = make(20, placement, 1);
        const Batch batch = extend_batch(pool, {3, 0, 5, 1});
        ASSERT_EQ(batch.status, KDT_OK) << kdt_last_error();
        EXPECT_EQ(batch.offsets, (std::vector<int64_t>{0, 3, 3, 8, 9}));
        EXPECT_EQ(std::set<int32_t>(batch.pages.begin(), batch.pages.end()).size(), 9u);
        if (placement != KDT_POOL_BEST_FIT) {
            EXPECT_EQ(batch.pages, range(1, 9)) << placement;
        }
        EXPECT_EQ(stats_of(pool).free_pages, 10);
    }
    const Pool pool = make(4);
    EXPECT_EQ(extend_batch(pool, {}).status, KDT_OK);
    int64_t offset = -7;
    EXPECT_EQ(kdt_pool_extend_batch(pool.get(), 0, nullptr, nullptr, nullptr, 0, &offset), KDT_OK);
    EXPECT_EQ(offset, 0);
}

TEST(PoolApi, BatchExtendsInPlaceBeforeAnythingElse) {
    const Pool pool = make(16);
    extend(pool, 16);
    ASSERT_EQ(give(pool, {4, 5, 9}), KDT_OK);
    // Alone, request 0 would get 9, the shortest run; that page is the one behind request 1.
    const Batch batch = extend_batch(pool, {1, 1}, {15, 8});
    ASSERT_EQ(batch.status, KDT_OK) << kdt_last_error();
    EXPECT_EQ(batch.of(0), Pages{4});
    EXPECT_EQ(batch.of(1), Pages{9});
}

TEST(PoolApi, BatchExtendsInPlaceAsFarAsItGoes) {
    const Pool pool = make(64);  // a whole bit word: reading behind it is seen by AddressSanitizer
    extend(pool, 64);
    ASSERT_EQ(give(pool, {4, 5, 10, 11, 12}), KDT_OK);
    const Batch batch = extend_batch(pool, {3, 2}, {3, -1});
    ASSERT_EQ(batch.status, KDT_OK) << kdt_last_error();
    EXPECT_EQ(batch.of(0), (Pages{4, 5, 12}));
    EXPECT_EQ(batch.of(1), (Pages{10, 11}));
    // Nothing lies behind the pool's last page.
    ASSERT_EQ(give(pool, {0}), KDT_OK);
    EXPECT_EQ(extend_batch(pool, {1}, {63}).of(0), Pages{0});
}

TEST(PoolApi, BatchPlacesTheLargestFirst) {
    const Pool pool = make(20);
    extend(pool, 20);
    ASSERT_EQ(give(pool, {1, 2, 3, 4, 10, 11, 12}), KDT_OK);
    // In the given order request 0 would take 10 and 11, request 1 then 1 to 3 and request 2 the
    // two single pages that are left over.
    const Batch batch = extend_batch(pool, {2, 3, 2});
    ASSERT_EQ(batch.status, KDT_OK) << kdt_last_error();
    EXPECT_EQ(batch.of(1), (Pages{10, 11, 12}));
    EXPECT_EQ(batch.of(0), (Pages{1, 2}));
    EXPECT_EQ(batch.of(2), (Pages{3, 4}));
}

TEST(PoolApi, BatchMayShareTheLastPage) {
    const Pool pool = make(8);
    extend(pool, 2);
    const Batch batch = extend_batch(pool, {2, 2}, {1, 1});
    ASSERT_EQ(batch.status, KDT_OK) << kdt_last_error();
    EXPECT_EQ(batch.of(0), (Pages{2, 3}));
    EXPECT_EQ(batch.of(1), (Pages{4, 5}));
}

TEST(PoolApi, BatchIsAllOrNothing) {
    const Pool pool = make(8);
    extend(pool, 3);
    const Batch batch = extend_batch(pool, {2, 4}, {2, -1});
    EXPECT_EQ(batch.status, KDT_SHORT);
    EXPECT_STREQ(kdt_last_error(), "6 pages asked for, 5 are free");
    EXPECT_EQ(batch.pages, Pages(6, -7));
    EXPECT_EQ(batch.offsets, std::vector<int64_t>(3, -7));
    EXPECT_EQ(stats_of(pool).free_pages, 5);
    // The sum does not fit into 32 bits.
    const Pages counts(3, INT32_MAX);
    std::vector<int64_t> offsets(4);
    int32_t page = 0;
    EXPECT_EQ(kdt_pool_extend_batch(pool.get(), 3, counts.data(), nullptr, &page, INT64_MAX,
                                    offsets.data()),
              KDT_SHORT);
    EXPECT_STREQ(kdt_last_error(), "6442450941 pages asked for, 5 are free");
}

TEST(PoolApi, FreedPagesJoinTheirNeighbours) {
    for (const kdt_pool_placement placement : kPlacements) {
        const Pool pool = make(9, placement, 1);
        extend(pool, 8);
        ASSERT_EQ(give(pool, {2, 6, 4}), KDT_OK);
        EXPECT_EQ(stats_of(pool).free_runs, 3);
        EXPECT_EQ(stats_of(pool).longest_free_run, 1);
        ASSERT_EQ(give(pool, {5, 3}), KDT_OK);
        EXPECT_EQ(stats_of(pool).free_runs, 1);
        EXPECT_EQ(stats_of(pool).longest_free_run, 5);
        ASSERT_EQ(give(pool, {8, 7, 1}), KDT_OK);
        EXPECT_EQ(stats_of(pool).longest_free_run, 8);
    }
}

TEST(PoolApiMisuse, Create) {
    kdt_pool* pool = nullptr;
    const auto refused = [&](const kdt_pool_options& options, const char* message) {
        EXPECT_EQ(kdt_pool_create(&options, &pool), KDT_INVALID);
        EXPECT_STREQ(kdt_last_error(), message);
        EXPECT_EQ(pool, nullptr);
    };
    refused(options_of(0), "pages is 0, must be 1..1073741824");
    refused(options_of(-4), "pages is -4, must be 1..1073741824");
    refused(options_of((1 << 30) + 1), "pages is 1073741825, must be 1..1073741824");
    refused(options_of(8, 3), "placement is 3, must be 0..2");
    refused(options_of(8, -1), "placement is -1, must be 0..2");
    refused(options_of(8, 0, 9), "reserved is 9, must be 0..8");
    refused(options_of(8, 0, -1), "reserved is -1, must be 0..8");
    kdt_pool_options options = options_of(8);
    options.struct_bytes = 12;
    refused(options, "kdt_pool_options.struct_bytes is 12, this library's is 16");
    EXPECT_EQ(kdt_pool_create(nullptr, &pool), KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "options is NULL");
    options = options_of(8);
    EXPECT_EQ(kdt_pool_create(&options, nullptr), KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "pool is NULL");
    kdt_pool_destroy(nullptr);
}

TEST(PoolApiMisuse, NoPool) {
    int32_t page = 0;
    int64_t offsets[2];
    kdt_pool_stats stats{};
    stats.struct_bytes = sizeof stats;
    const kdt_status statuses[] = {
        kdt_pool_allocate(nullptr, 1, &page),
        kdt_pool_extend(nullptr, -1, 1, &page),
        kdt_pool_extend_batch(nullptr, 1, &page, nullptr, &page, 1, offsets),
        kdt_pool_free(nullptr, &page, 1),
        kdt_pool_read_stats(nullptr, &stats),
    };
    for (const kdt_status status : statuses) EXPECT_EQ(status, KDT_INVALID);
    EXPECT_STREQ(kdt_last_error(), "pool is NULL");
}

/// A pool of 12 pages in a state with some of everything; at the end it must be in that state
/// still: its figures, and what it hands out next.
class PoolApiRefuses : public testing::TestWithParam<kdt_pool_placement> {
  protected:
    PoolApiRefuses() : pool_(used_pool()), before_(stats_of(pool_)) {}

    static Pool used_pool() {
        Pool pool = make(12, GetParam(), 2);
        extend(pool, 9);
        EXPECT_EQ(give(pool, {5, 7, 8}), KDT_OK);
        return pool;
    }

    void TearDown() override {
        const kdt_pool_stats after = stats_of(pool_);
        EXPECT_EQ(after.free_pages, before_.free_pages);
        EXPECT_EQ(after.free_runs, before_.free_runs);
        EXPECT_EQ(after.longest_free_run, before_.longest_free_run);
        const Pool other = used_pool();
        EXPECT_EQ(extend(pool_, 4), extend(other, 4));
        EXPECT_EQ(give(pool_, {2, 3, 4, 6, 9, 10}), KDT_OK) << kdt_last_error();
    }

    void refused(kdt_status status, const char* message) {
        EXPECT_EQ(status, KDT_INVALID);
        EXPECT_STREQ(kdt_last_error(), message);
    }

    Pool pool_;
    kdt_pool_stats before_;
};
INSTANTIATE_TEST_SUITE_P(Placements, PoolApiRefuses, testing::ValuesIn(kPlacements));

TEST_P(PoolApiRefuses, WrongFrees) {
    refused(give(pool_, {2, 3, 5}), "pages[2] is page 5 of 12, which is free already");
    refused(give(pool_, {2, 11}), "pages[1] is page 11 of 12, which is free already");
    refused(give(pool_, {2, 12}), "pages[1] is page 12 of 12, which is out of range");
    refused(give(pool_, {2, -1}), "pages[1] is page -1 of 12, which is out of range");
    refused(give(pool_, {2, INT32_MIN}),
            "pages[1] is page -2147483648 of 12, which is out of range");
    refused(give(pool_, {2, 3, 4, 3}), "pages[3] is page 3 of 12, which stands twice");
    refused(give(pool_, {0}), "pages[0] is page 0 of 12, which is reserved");
    refused(give(pool_, {1, 1}), "pages[0] is page 1 of 12, which is reserved");
    refused(kdt_pool_free(pool_.get(), nullptr, 1), "pages is NULL");
    int32_t page = 2;
    refused(kdt_pool_free(pool_.get(), &page, -1), "count is -1, must be 0..12");
    refused(kdt_pool_free(pool_.get(), &page, int64_t{1} << 40),
            "count is 1099511627776, must be 0..12");
    EXPECT_EQ(kdt_pool_free(pool_.get(), nullptr, 0), KDT_OK);
}

TEST_P(PoolApiRefuses, WrongExtensions) {
    Pages pages(4, -7);
    kdt_pool* pool = pool_.get();
    refused(kdt_pool_allocate(pool, -1, pages.data()), "count is -1, must be 0..1073741824");
    refused(kdt_pool_allocate(pool, 2, nullptr), "pages is NULL");
    refused(kdt_pool_extend(pool, -1, -3, pages.data()), "count is -3, must be 0..1073741824");
    for (const int32_t last : {-2, 0, 1, 5, 12}) {
        refused(kdt_pool_extend(pool, last, 1, pages.data()),
                ("last is page " + std::to_string(last) +
                 ", must be -1 or a page that is handed out (0..11)")
                    .c_str());
    }
    EXPECT_EQ(pages, Pages(4, -7));
}

TEST_P(PoolApiRefuses, WrongBatches) {
    const int32_t counts[] = {1, 2};
    const int32_t negative[] = {3, -2};
    const int32_t lasts[] = {2, 8};
    Pages pages(4, -7);
    std::vector<int64_t> offsets(3, -7);
    kdt_pool* pool = pool_.get();
    const auto batch = [&](int32_t requests, const int32_t* asked, const int32_t* behind,
                           int32_t* to, int64_t capacity, int64_t* at, const char* message) {
        refused(kdt_pool_extend_batch(pool, requests, asked, behind, to, capacity, at), message);
    };
    batch(-1, counts, nullptr, pages.data(), 4, offsets.data(),
          "requests is -1, must be 0..2147483647");
    batch(2, nullptr, nullptr, pages.data(), 4, offsets.data(), "counts is NULL");
    batch(2, counts, nullptr, nullptr, 4, offsets.data(), "pages is NULL");
    batch(2, counts, nullptr, pages.data(), 4, nullptr, "offsets is NULL");
    batch(2, counts, nullptr, pages.data(), 2, offsets.data(),
          "capacity is 2, 3 pages are asked for");
    batch(2, counts, nullptr, pages.data(), -1, offsets.data(),
          "capacity is -1, must be 0..9223372036854775807");
    batch(2, negative, nullptr, pages.data(), 4, offsets.data(),
          "counts[1] is -2, must not be negative");
    batch(2, counts, lasts, pages.data(), 4, offsets.data(),
          "lasts[1] is page 8, must be -1 or a page that is handed out (0..11)");
    EXPECT_EQ(pages, Pages(4, -7));
    EXPECT_EQ(offsets, std::vector<int64_t>(3, -7));
}

TEST_P(PoolApiRefuses, WrongStats) {
    kdt_pool_stats stats{};
    stats.struct_bytes = 8;
    refused(kdt_pool_read_stats(pool_.get(), &stats),
            "kdt_pool_stats.struct_bytes is 8, this library's is 24");
    refused(kdt_pool_read_stats(pool_.get(), nullptr), "stats is NULL");
}

/// Requests that come, grow in batches and go, against a set of who has what; now and then a call
/// that must be refused.
class PoolApiRandom : public testing::TestWithParam<kdt_pool_placement> {
  protected:
    static constexpr int32_t kPages = 500;
    static constexpr int32_t kReserved = 3;

    void grow() {
        Pages counts;
        Pages lasts;
        for (const Pages& pages : requests_) {
            counts.push_back(std::uniform_int_distribution(0, 9)(random_));
            lasts.push_back(pages.empty() ? -1 : pages.back());
        }
        const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        const int32_t free = kPages - kReserved - static_cast<int32_t>(owned_.size());
        const Batch batch = extend_batch(pool_, counts, lasts);
        ASSERT_EQ(batch.status, sum > free ? KDT_SHORT : KDT_OK) << kdt_last_error();
        if (batch.status != KDT_OK) return;
        for (size_t r = 0; r < requests_.size(); ++r) {
            for (const int32_t page : batch.of(r)) {
                ASSERT_TRUE(page >= kReserved && page < kPages) << page;
                ASSERT_TRUE(owned_.insert(page).second) << page;
                requests_[r].push_back(page);
            }
        }
    }

    void free_one() {
        Pages& pages = requests_[random_() % requests_.size()];
        if (pages.empty()) return;
        std::shuffle(pages.begin(), pages.end(), random_);
        Pages wrong = pages;
        wrong.push_back(pages[random_() % pages.size()]);
        ASSERT_EQ(give(pool_, wrong), KDT_INVALID);
        ASSERT_EQ(give(pool_, pages), KDT_OK) << kdt_last_error();
        for (const int32_t page : pages) owned_.erase(page);
        ASSERT_EQ(give(pool_, pages), KDT_INVALID);
        pages.clear();
    }

    void check_books() {
        int32_t runs = 0;
        int32_t longest = 0;
        int32_t run = 0;
        for (int32_t page = kReserved; page < kPages; ++page) {
            run = owned_.contains(page) ? 0 : run + 1;
            runs += run == 1 ? 1 : 0;
            longest = std::max(longest, run);
        }
        const kdt_pool_stats stats = stats_of(pool_);
        ASSERT_EQ(stats.free_pages, kPages - kReserved - static_cast<int32_t>(owned_.size()));
        ASSERT_EQ(stats.free_runs, runs);
        ASSERT_EQ(stats.longest_free_run, longest);
    }

    std::mt19937 random_{20261130};
    Pool pool_ = make(kPages, GetParam(), kReserved);
    std::vector<Pages> requests_ = std::vector<Pages>(12);
    std::set<int32_t> owned_;
};
INSTANTIATE_TEST_SUITE_P(Placements, PoolApiRandom, testing::ValuesIn(kPlacements));

TEST_P(PoolApiRandom, BooksBalance) {
    for (int32_t step = 0; step < 2000; ++step) {
        SCOPED_TRACE(step);
        if (random_() % 2 == 0) {
            grow();
        } else {
            free_one();
        }
        check_books();
        if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace kd
