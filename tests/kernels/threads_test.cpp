#include "backends/cpu/threads.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "base/error.h"

namespace kd {
namespace {

TEST(ThreadPool, CoversEveryIndexOnceInAlignedRanges) {
    for (const int threads : {1, 2, 3, 5}) {
        ThreadPool pool(threads);
        ASSERT_EQ(pool.threads(), threads);
        for (const int64_t count : {0, 1, 2, 3, 7, 64, 100, 1000}) {
            for (const int64_t grain : {1, 2, 3, 10, 64, 5000}) {
                std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
                std::atomic<int> bad{0};
                pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
                    if (begin % grain != 0 || end - begin > grain || begin >= end) ++bad;
                    for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
                });
                EXPECT_EQ(bad, 0) << count << " by " << grain;
                for (const auto& visit : visits) ASSERT_EQ(visit, 1) << count << " by " << grain;
            }
        }
    }
}

TEST(ThreadPool, ManyShortCallsOfChangingSize) {
    for (const int threads : {2, 4}) {
        ThreadPool pool(threads);
        std::vector<int64_t> values(64);
        int64_t expected = 0;
        for (int64_t call = 0; call < 10000; ++call) {
            const int64_t count = call % 64 + 1;
            // Each call's body is a new object with its own values: a worker that ran the body of
            // the call before would add the wrong number.
            pool.parallel_for(count, 1 + call % 3, [&values, call](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += call;
            });
            expected += count * call;
        }
        int64_t total = 0;
        for (const int64_t value : values) total += value;
        EXPECT_EQ(total, expected);
    }
}

// More threads than cores, small jobs in turn with larger ones: workers lose their core at every
// point, also between reading the cursor of a finished job and the fields of the next. A chunk that
// ran twice, or a count of finished chunks that overshot and left the caller waiting, came of that.
TEST(ThreadPool, LateWorkersOfAFinishedJobTakeNothing) {
    ThreadPool pool(4);
    std::vector<std::atomic<int32_t>> visits(64);
    for (int32_t call = 0; call < 200000; ++call) {
        const int64_t count = call % 2 == 0 ? 2 : 3 + call % 60;
        pool.parallel_for(count, 1, [&](int64_t begin, int64_t) {
            visits[static_cast<size_t>(begin)].fetch_add(1, std::memory_order_relaxed);
        });
        for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(visits[static_cast<size_t>(i)].exchange(0), 1) << "call " << call;
        }
    }
}

TEST(ThreadPool, WorkersTakePartSleepAndWake) {
    for (const int threads : {2, 3}) {
        ThreadPool pool(threads);
        const auto caller = std::this_thread::get_id();
        std::vector<int64_t> values(static_cast<size_t>(threads));
        for (int call = 0; call < 100; ++call) {
            // Each chunk waits for all the others: without one thread a chunk this never ends.
            std::atomic<int> started{0};
            pool.parallel_for(threads, 1, [&](int64_t begin, int64_t) {
                ++started;
                while (started < threads) std::this_thread::yield();
                // Now and then long enough for the caller to fall asleep before the workers end.
                if (call % 10 == 0 && std::this_thread::get_id() != caller) {
                    std::this_thread::sleep_for(std::chrono::microseconds(300));
                }
                values[static_cast<size_t>(begin)] += call;
            });
            // And for the workers to fall asleep between calls.
            if (call % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        }
        for (const int64_t value : values) EXPECT_EQ(value, 99 * 100 / 2);
    }
}

TEST(ThreadPool, TwoPoolsMayNest) {
    ThreadPool outer(2);
    ThreadPool first(2);
    ThreadPool second(2);
    std::atomic<int64_t> sum{0};
    outer.parallel_for(2, 1, [&](int64_t begin, int64_t) {
        ThreadPool& inner = begin == 0 ? first : second;
        for (int64_t size = 1; size < 50; ++size) {
            inner.parallel_for(size, 2, [&](int64_t from, int64_t to) { sum += to - from; });
        }
    });
    EXPECT_EQ(sum, 2 * 49 * 50 / 2);
}

TEST(ThreadPool, RefusesThreadCountsOutOfRange) {
    EXPECT_THROW(ThreadPool(0), Error);
    EXPECT_THROW(ThreadPool(-3), Error);
    EXPECT_THROW(ThreadPool(1 << 20), Error);
}

// Sanitizers end the process themselves where memory is refused.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Leaves address space for the stacks of a few threads only.
void limit_address_space() {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const size_t used = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const rlimit limit = {used + (size_t{64} << 20), RLIM_INFINITY};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

TEST(ThreadPoolDeathTest, AThreadThatIsRefusedIsAnError) {
    const auto start = [] {
        limit_address_space();
        try {
            ThreadPool pool(256);
        } catch (const Error& error) {
            fmt::print(stderr, "{}\n", error.what());
            std::exit(error.code == ErrorCode::out_of_resources ? 0 : 1);
        }
        std::exit(2);
    };
    EXPECT_EXIT(start(), testing::ExitedWithCode(0), "cannot start thread [0-9]+ of 256");
}
#endif

TEST(ThreadPool, DefaultIsAtLeastOne) {
    EXPECT_GE(default_threads(), 1);
}

}  // namespace
}  // namespace kd
