#include "support/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "support/report.h"

namespace kd {
namespace {

TEST(Statistics, MedianOfOddAndEvenCounts) {
    EXPECT_EQ(median({3}), 3);
    EXPECT_EQ(median({5, 1, 3}), 3);
    EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(Statistics, RatiosKeepTheirPairs) {
    const double a[] = {2, 9, 5};
    const double b[] = {1, 3, 10};
    EXPECT_EQ(ratios(a, b), (std::vector<double>{2, 3, 0.5}));
}

TEST(Statistics, OneSampleHasNoSpread) {
    const double one[] = {7};
    const Interval interval = median_interval(one);
    EXPECT_EQ(interval.value, 7);
    EXPECT_EQ(interval.low, 7);
    EXPECT_EQ(interval.high, 7);
}

TEST(Statistics, TheSameSamplesGiveTheSameInterval) {
    const double values[] = {1, 2, 4, 8, 16, 32};
    const Interval a = median_interval(values);
    const Interval b = median_interval(values);
    EXPECT_EQ(a.value, 6);
    EXPECT_EQ(a.low, b.low);
    EXPECT_EQ(a.high, b.high);
    EXPECT_LT(a.low, a.value);
    EXPECT_GT(a.high, a.value);
}

// What a 95 % interval promises: of many sets from one distribution, so many of the intervals
// contain its median.
TEST(Statistics, NineteenOfTwentyIntervalsHoldTheTruth) {
    std::mt19937 random(11);
    constexpr int kSets = 100;
    int held = 0;
    for (int set = 0; set < kSets; ++set) {
        std::vector<double> values;
        // Skewed, as times are; the median of -log(u) is log 2.
        std::exponential_distribution<double> times(1.0);
        for (int i = 0; i < 25; ++i) values.push_back(times(random));
        const Interval interval = median_interval(values);
        held += interval.low <= std::log(2.0) && std::log(2.0) <= interval.high ? 1 : 0;
    }
    // 95 expected, standard deviation 2.2.
    EXPECT_GE(held, 85);
    EXPECT_LT(held, kSets);
}

// A disturbance that hits a few samples does not move the interval of the median far.
TEST(Statistics, AFewDisturbedSamplesDoNotMatter) {
    std::vector<double> values(30, 1.0);
    values[3] = values[17] = 100;
    const Interval interval = median_interval(values);
    EXPECT_EQ(interval.value, 1);
    EXPECT_EQ(interval.high, 1);
}

TEST(Report, IntervalsAsTextAndJson) {
    const Interval interval = {.value = 1.526, .low = 1.5, .high = 1.549};
    EXPECT_EQ(interval_text(interval, 2), "1.53 [1.50, 1.55]");
    EXPECT_EQ(interval_json(interval).dump(), "[1.526,1.5,1.549]");
}

TEST(Report, TheHeaderNamesCommandAndMachine) {
    char program[] = "forward";
    char option[] = "--rows";
    char* arguments[] = {program, option};
    const nlohmann::ordered_json header = report_header(2, arguments, 3);
    EXPECT_EQ(header["command"], "forward --rows");
    EXPECT_EQ(header["threads"], 3);
    for (const char* key : {"commit", "device", "target"}) {
        EXPECT_FALSE(header[key].get<std::string>().empty()) << key;
    }
}

}  // namespace
}  // namespace kd
