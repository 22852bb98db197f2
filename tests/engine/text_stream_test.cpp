#include "engine/text_stream.h"

#include <gtest/gtest.h>

namespace kd {
namespace {

std::string feed(StopFilter& filter, const std::vector<std::string>& pieces) {
    std::string shown;
    for (const std::string& piece : pieces) shown += filter.push(piece);
    return shown;
}

TEST(StopFilter, WithoutStopsEverythingPasses) {
    StopFilter filter({});
    EXPECT_EQ(feed(filter, {"a", "", "bc"}), "abc");
    EXPECT_EQ(filter.finish(), "");
    EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, HoldsBackWhatMayBecomeAStop) {
    StopFilter filter({"END"});
    EXPECT_EQ(filter.push("xE"), "x");
    EXPECT_EQ(filter.push("N"), "");
    EXPECT_EQ(filter.push("ough E"), "ENough ");
    EXPECT_EQ(filter.push("ND and more"), "");
    EXPECT_TRUE(filter.stopped());
    EXPECT_EQ(filter.push("ignored"), "");
    EXPECT_EQ(filter.finish(), "");
}

TEST(StopFilter, TheEarliestStopWins) {
    StopFilter filter({"later", "now"});
    EXPECT_EQ(feed(filter, {"do it now or later"}), "do it ");
}

TEST(StopFilter, OverlappingBeginnings) {
    StopFilter filter({"aab"});
    EXPECT_EQ(feed(filter, {"a", "a", "a", "b", "c"}), "a");
    EXPECT_TRUE(filter.stopped());
}

TEST(StopFilter, FinishReleasesTheRest) {
    StopFilter filter({"stop"});
    EXPECT_EQ(filter.push("a sto"), "a ");
    EXPECT_EQ(filter.finish(), "sto");
}

}  // namespace
}  // namespace kd
