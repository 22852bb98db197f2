// What doctor reads from an operating system, and what it makes of it: written trees of /proc and
// /sys stand in for the machine's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

#include "app/doctor_parts.h"

namespace kd {
namespace {

namespace fs = std::filesystem;

class FakeSystem {
  public:
    explicit FakeSystem(const std::map<std::string, std::string>& files) {
        std::string name = (fs::temp_directory_path() / "kdtree-system-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
        root_ = name;
        for (const auto& [file, content] : files) {
            const fs::path path = fs::path(root_) / file;
            fs::create_directories(path.parent_path());
            std::ofstream(path) << content;
        }
    }
    ~FakeSystem() { fs::remove_all(root_); }
    FakeSystem(const FakeSystem&) = delete;
    FakeSystem& operator=(const FakeSystem&) = delete;

    const std::string& root() const { return root_; }

  private:
    std::string root_;
};

/// Four CPUs that are two cores with a last-level cache each.
std::map<std::string, std::string> two_cores() {
    std::map<std::string, std::string> files = {
        {"proc/cpuinfo",
         "processor\t: 0\nmodel name\t: Test CPU 3000\nflags\t\t: fpu fma avx2 sse4_1 f16c\n\n"
         "processor\t: 1\nmodel name\t: Other\nflags\t\t: avx512f\n"},
        {"proc/loadavg", "1.25 0.5 0.1 1/100 1234\n"},
        {"proc/meminfo",
         "MemTotal:        8388608 kB\nMemFree:          100 kB\nMemAvailable:    4194304 kB\n"
         "SwapTotal:       2097152 kB\nSwapFree:        1048576 kB\n"},
        {"proc/self/cgroup", "0::/box\n"},
        {"sys/devices/system/cpu/online", "0-3\n"},
        {"sys/devices/system/node/online", "0-1\n"},
        {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"},
        {"sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
    };
    for (int cpu = 0; cpu < 4; ++cpu) {
        const std::string siblings = cpu % 2 == 0 ? "0,2\n" : "1,3\n";
        const std::string folder = fmt::format("sys/devices/system/cpu/cpu{}/", cpu);
        files[folder + "topology/thread_siblings_list"] = siblings;
        const auto cache = [&](int index, const char* level, const char* type, const char* size) {
            const std::string at = fmt::format("{}cache/index{}/", folder, index);
            files[at + "level"] = level;
            files[at + "type"] = type;
            files[at + "size"] = size;
            files[at + "shared_cpu_list"] = siblings;
        };
        cache(0, "1\n", "Data\n", "32K\n");
        cache(1, "1\n", "Instruction\n", "64K\n");
        cache(2, "3\n", "Unified\n", "16M\n");
    }
    return files;
}

TEST(Machine, IsReadFromProcAndSys) {
    const FakeSystem system(two_cores());
    const Machine machine = read_machine({0, 1, 2}, system.root());
    EXPECT_EQ(machine.processor, "Test CPU 3000");
    EXPECT_EQ(machine.instruction_sets,
              (std::vector<std::string>{"sse4_1", "avx2", "fma", "f16c"}));
    EXPECT_EQ(machine.cpus, 4);
    EXPECT_EQ(machine.cores, 2);
    EXPECT_EQ(machine.allowed_cpus, 3);
    EXPECT_EQ(machine.allowed_cores, 2);
    EXPECT_EQ(machine.load, 1.25);
    EXPECT_EQ(machine.numa_nodes, 2);
    EXPECT_EQ(machine.governor, "powersave");
    EXPECT_EQ(machine.huge_pages, "madvise");
    EXPECT_EQ(machine.memory_bytes, int64_t{8} << 30);
    EXPECT_EQ(machine.available_bytes, int64_t{4} << 30);
    EXPECT_EQ(machine.memory_limit_bytes, 0);
    EXPECT_EQ(machine.swap_used_bytes, int64_t{1} << 30);
    EXPECT_EQ(last_level_cache_bytes(machine), int64_t{2} * 16 << 20);
}

TEST(Machine, CgroupsLimitMemory) {
    auto files = two_cores();
    files["sys/fs/cgroup/box/memory.max"] = "1073741824\n";
    files["sys/fs/cgroup/box/memory.current"] = "536870912\n";
    files["sys/fs/cgroup/box/memory.stat"] = "anon 1\ninactive_file 268435456\n";
    const FakeSystem second(files);
    Machine machine = read_machine({0}, second.root());
    EXPECT_EQ(machine.memory_limit_bytes, int64_t{1} << 30);
    EXPECT_EQ(machine.available_bytes, int64_t{768} << 20);

    files = two_cores();  // version 1, seen from inside a container
    files["proc/self/cgroup"] = "4:memory:/host/path\n0::/\n";
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "2147483648\n";
    files["sys/fs/cgroup/memory/memory.usage_in_bytes"] = "1073741824\n";
    const FakeSystem first(files);
    machine = read_machine({0}, first.root());
    EXPECT_EQ(machine.memory_limit_bytes, int64_t{2} << 30);
    EXPECT_EQ(machine.available_bytes, int64_t{1} << 30);

    files = two_cores();  // "no limit" as version 1 writes it, and as version 2 does
    files["sys/fs/cgroup/box/memory.max"] = "max\n";
    files["proc/self/cgroup"] = "4:memory:/\n0::/box\n";
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712\n";
    const FakeSystem none(files);
    EXPECT_EQ(read_machine({0}, none.root()).memory_limit_bytes, 0);
}

TEST(Machine, NothingToReadIsNoFault) {
    const FakeSystem system({});
    const Machine machine = read_machine({}, system.root());
    EXPECT_EQ(machine.processor, "");
    EXPECT_EQ(machine.memory_bytes, 0);
    EXPECT_EQ(last_level_cache_bytes(machine), 0);
    Findings findings(/*show=*/false);
    check_machine(machine, 2, 0, "AVX2", findings);
    EXPECT_EQ(findings.count(Level::problem), 0);
}

TEST(Machine, CpuLists) {
    EXPECT_EQ(parse_cpu_list("0-2,5"), (std::vector<int>{0, 1, 2, 5}));
    EXPECT_EQ(parse_cpu_list("3"), std::vector<int>{3});
    EXPECT_EQ(parse_cpu_list("0,x,2"), std::vector<int>{0});
    EXPECT_TRUE(parse_cpu_list("").empty());
    EXPECT_EQ(parse_cpu_list("0-2000000000").size(), 65536u);
}

/// Levels by name of what check_machine says.
std::map<std::string, std::string> levels(const Machine& machine, int threads, double quota,
                                          const std::string& target = "AVX2") {
    Findings findings(/*show=*/false);
    check_machine(machine, threads, quota, target, findings);
    std::map<std::string, std::string> out;
    for (const auto& each : findings.json()) {
        EXPECT_EQ(each["level"] == "ok", each["advice"] == "") << each;
        out[each["name"]] = each["level"];
    }
    return out;
}

Machine quiet_machine() {
    return {.processor = "Test",
            .cpus = 8,
            .cores = 4,
            .allowed_cpus = 8,
            .allowed_cores = 4,
            .numa_nodes = 1,
            .governor = "performance",
            .memory_bytes = int64_t{8} << 30,
            .available_bytes = int64_t{4} << 30};
}

TEST(Doctor, AQuietMachineHasNoWarnings) {
    for (const auto& [name, level] : levels(quiet_machine(), 4, 0)) EXPECT_EQ(level, "ok") << name;
    for (const auto& [name, level] : levels(quiet_machine(), 4, 4)) EXPECT_EQ(level, "ok") << name;
}

TEST(Doctor, WarnsOfThreadsThatHinderEachOther) {
    EXPECT_EQ(levels(quiet_machine(), 8, 0)["threads"], "warning");  // two on a core
    EXPECT_EQ(levels(quiet_machine(), 9, 0)["threads"], "warning");  // more than CPUs
    EXPECT_EQ(levels(quiet_machine(), 2, 1.5)["threads"], "warning");
    EXPECT_EQ(levels(quiet_machine(), 1, 0.5)["threads"], "warning");
    EXPECT_EQ(levels(quiet_machine(), 2, 2)["threads"], "ok");
}

TEST(Doctor, WarnsOfWhatMakesItSlow) {
    EXPECT_EQ(levels(quiet_machine(), 4, 0, "EMU128")["instructions"], "warning");
    Machine machine = quiet_machine();
    machine.load = 6;
    machine.numa_nodes = 2;
    machine.governor = "powersave";
    machine.swap_bytes = int64_t{2} << 30;
    machine.swap_used_bytes = int64_t{1} << 30;
    auto found = levels(machine, 4, 0);
    for (const char* name : {"load", "NUMA", "frequency", "swap"}) {
        EXPECT_EQ(found[name], "warning") << name;
    }
    machine.swap_used_bytes = int64_t{1} << 20;  // left there long ago
    EXPECT_EQ(levels(machine, 4, 0).count("swap"), 0u);
}

TEST(Doctor, GpuArchitecturesAreExact) {
    EXPECT_EQ(kernel_architecture({.major = 9, .minor = 0}), "sm_90a");
    EXPECT_EQ(kernel_architecture({.major = 12, .minor = 0}), "sm_120a");
    EXPECT_EQ(kernel_architecture({.major = 12, .minor = 1}), "");
    EXPECT_EQ(kernel_architecture({.major = 8, .minor = 9}), "");
    EXPECT_EQ(kernel_architecture({.major = 10, .minor = 0}), "");
    Findings findings(/*show=*/false);
    check_gpus({}, findings);
    EXPECT_EQ(findings.count(Level::ok), 1);
    check_gpus({.driver = "1.2", .problem = "the driver says error 3"}, findings);
    EXPECT_EQ(findings.count(Level::warning), 1);
}

}  // namespace
}  // namespace kd
