#include "core/recent_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kd {
namespace {

TEST(RecentTime, FollowsWhatIsMeasured) {
    RecentTime time;
    EXPECT_EQ(time.seconds(), 0);
    time.observe(3);
    EXPECT_EQ(time.seconds(), 3);
    for (int i = 0; i < 100; ++i) time.observe(7);
    EXPECT_NEAR(time.seconds(), 7, 0.01);
    for (int i = 0; i < 100; ++i) time.observe(0.1);
    EXPECT_NEAR(time.seconds(), 0.1, 0.01);
}

TEST(RecentTime, AStallCountsLittle) {
    RecentTime time;
    time.observe(1);
    time.observe(1000);
    EXPECT_LE(time.seconds(), 1.1 + 1e-9);
    time.observe(1);
    EXPECT_EQ(time.seconds(), 1);
    // Not even as the first sample.
    RecentTime stalled;
    stalled.observe(1000);
    stalled.observe(1);
    EXPECT_EQ(stalled.seconds(), 1);
}

TEST(RecentTime, IgnoresWhatIsNoTime) {
    RecentTime time;
    time.observe(2);
    for (const double nothing :
         {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        time.observe(nothing);
        EXPECT_EQ(time.seconds(), 2);
    }
}

}  // namespace
}  // namespace kd
