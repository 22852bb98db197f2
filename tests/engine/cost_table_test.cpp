// The cost table: measured, kept and read back.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "engine/cost_cache.h"
#include "engine/cost_measure.h"
#include "engine/engine.h"
#include "kernels/simd/targets.h"
#include "support/engine_support.h"
// After targets.h, which configures it.
#include "hwy/targets.h"

namespace kd {
namespace {

Config tiny_config() {
    return {.model = tiny_model_path(), .context_length = 64, .threads = 1};
}

/// A machine that takes `seconds_a_row`, and what was asked of it.
struct Machine {
    double seconds_a_row;
    double spent = 0;
    double last_share = 0;

    CostTable measure() {
        return measure_points(
            {1, 2, 4, 8, 16, 32, 64}, {0, 100},
            [&](int32_t rows, int32_t context) {
                const double seconds = seconds_a_row * rows * (context == 0 ? 1 : 2);
                spent += seconds;
                return seconds;
            },
            [&](double share) {
                EXPECT_GE(share, last_share);
                last_share = share;
            });
    }
};

TEST(MeasureCost, PointsAreWhatForwardsTake) {
    Machine machine = {.seconds_a_row = 1e-3};
    const CostTable table = machine.measure();
    table.validate();
    EXPECT_EQ(table.rows.size(), 7u);
    EXPECT_NEAR(table.predict(1, 0), 1e-3, 1e-9);
    EXPECT_NEAR(table.predict(64, 0), 64e-3, 1e-9);
    EXPECT_NEAR(table.predict(8, 100), 16e-3, 1e-9);
    EXPECT_EQ(machine.last_share, 1);
    EXPECT_LT(machine.spent, kMeasureSeconds);
}

TEST(MeasureCost, TwoDisturbedPassesOfFiveDoNotCount) {
    int calls = 0;
    const CostTable table = measure_points({1, 2}, {0}, [&](int32_t rows, int32_t) {
        const int pass = calls++ / 2;  // one forward a point
        return (pass == 1 || pass == 3 ? 2.0 : 1.0) * rows * 0.1;
    });
    EXPECT_DOUBLE_EQ(table.predict(1, 0), 0.1);
    EXPECT_DOUBLE_EQ(table.predict(2, 0), 0.2);
}

TEST(MeasureCost, ASlowModelDoesNotTakeMinutes) {
    // Fewer passes, fewer row counts, one forward of two row counts each.
    for (const double seconds_a_row : {0.02, 0.2, 100.0}) {
        SCOPED_TRACE(seconds_a_row);
        Machine machine = {.seconds_a_row = seconds_a_row};
        const CostTable table = machine.measure();
        table.validate();
        EXPECT_GE(table.rows.size(), 2u);
        EXPECT_NEAR(table.predict(64, 100), seconds_a_row * 128, 1e-6 * seconds_a_row);
        EXPECT_EQ(machine.last_share, 1);
        const double least = seconds_a_row * 3 * 3;  // 1 and 2 rows at either context
        EXPECT_LT(machine.spent, std::max(2 * kMeasureSeconds, least + 1e-6));
    }
}

TEST(CostCache, ManySessionsOfAShortContextAreMeasured) {
    // One chain of all trees' rows is longer than any session could be.
    Config config = tiny_config();
    config.context_length = 40;
    config.max_running_requests = 8;
    Engine engine(config);
    EXPECT_EQ(engine.cost().rows.back(), 256);
}

TEST(CostCache, RoundTripAndRubbish) {
    const CostTable table = {.rows = {1, 2, 8},
                             .contexts = {0, 1024},
                             .seconds = {0.1, 0.2, 0.5, 0.2, 0.3, 0.6},
                             .correction = {1, 1, 1}};
    const std::string path = write_temporary("cost.json", "");
    EXPECT_TRUE(load_cost(path, "key").empty());
    EXPECT_EQ(save_cost(table, path, "key"), "");
    EXPECT_EQ(load_cost(path, "key").seconds, table.seconds);
    EXPECT_EQ(load_cost(path, "key").rows, table.rows);
    // Another key with the same hash.
    EXPECT_TRUE(load_cost(path, "another key").empty());
    for (const char* rubbish :
         {"{", "[]", "{\"schema\": 1}",
          R"({"schema":2,"key":"key","rows":[1],"contexts":[0,9],"seconds":[1]})",
          R"({"schema":2,"key":"key","rows":[1],"contexts":[0,9],"seconds":[1,-1]})",
          R"({"schema":2,"key":"key","rows":[1],"contexts":[0,1],"seconds":[1,1e308]})",
          R"({"schema":2,"key":"key","rows":"x","contexts":[0,9],"seconds":[1,1]})"}) {
        EXPECT_TRUE(load_cost(write_temporary("cost.json", rubbish), "key").empty()) << rubbish;
    }
    // A cache folder that is a file: a message, nothing written.
    EXPECT_NE(save_cost(table, path + "/cost.json", "key").find("cannot keep the cost table"),
              std::string::npos);
}

TEST(CostCache, ATableIsOfOneInstructionSet) {
    const ModelFile model(tiny_model_path());
    std::set<std::string> paths;
    const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
    for (const int64_t target : targets) {
        hwy::SetSupportedTargetsForTest(target);
        paths.insert(cost_cache_path("cache", cost_key(model, 2, 32, 64)));
    }
    hwy::SetSupportedTargetsForTest(0);
    EXPECT_EQ(paths.size(), targets.size());
    EXPECT_TRUE(paths.contains(cost_cache_path("cache", cost_key(model, 2, 32, 64))));
}

TEST(CostCache, ATableIsOfOneProgramAndModel) {
    const std::string key = cost_key(ModelFile(tiny_model_path()), 2, 32, 64);
    EXPECT_NE(key.find("/proc/self/exe|"), std::string::npos);
    EXPECT_EQ(key.find("/proc/self/exe|0|"), std::string::npos);
    EXPECT_NE(key.find(tiny_model_path() + "|"), std::string::npos);
}

TEST(CostCache, AnEngineTakesNoTableThatCannotPredict) {
    Engine engine(tiny_config());
    EXPECT_THROW(engine.set_cost({}), Error);
    engine.set_cost({.rows = {1}, .contexts = {0}, .seconds = {0.5}, .correction = {2}});
    EXPECT_EQ(engine.cost().predict(1, 0), 1.0);
}

TEST(CostCache, FullDiskLeavesNothing) {
    if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
    const std::string folder = write_temporary("full", "") + "-folder";
    std::filesystem::create_directories(folder);
    const std::string path = folder + "/cost.json";
    // Every write to the temporary file fails with "no space left".
    std::filesystem::create_symlink("/dev/full", path + "." + std::to_string(getpid()) + ".tmp");
    const CostTable table = {.rows = {1}, .contexts = {0, 1}, .seconds = {1, 1}};
    EXPECT_NE(save_cost(table, path, "key").find("No space left"), std::string::npos);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace kd
