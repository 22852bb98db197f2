// What the operating system says about this machine. Linux; what it does not say stays empty or 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kd {

struct CacheLevel {
    int32_t level = 0;
    std::string type;  // "Data", "Instruction", "Unified"
    int64_t bytes = 0;
    int32_t copies = 0;  // in the CPUs that this process may use
};

struct Machine {
    std::string processor;
    std::vector<std::string> instruction_sets;  // those that matter to the kernels
    int32_t cpus = 0;                           // online
    int32_t cores = 0;                          // their physical cores
    int32_t allowed_cpus = 0;                   // by this process's affinity
    int32_t allowed_cores = 0;
    double load = 0;  // processes that wanted a core in the last minute
    std::vector<CacheLevel> caches;
    int32_t numa_nodes = 0;
    std::string governor;    // of the first CPU's frequency: "performance", "powersave", ...
    std::string huge_pages;  // transparent ones: "always", "madvise", "never"
    int64_t memory_bytes = 0;
    int64_t available_bytes = 0;     // without swapping; the cgroup's limit counts
    int64_t memory_limit_bytes = 0;  // the cgroup's; 0: none below memory_bytes
    int64_t swap_bytes = 0;
    int64_t swap_used_bytes = 0;
};

/// `allowed`: the CPUs that this process may use (allowed_cpu_ids()). `root` stands in front of
/// /proc and /sys (tests).
Machine read_machine(const std::vector<int>& allowed, const std::string& root = "");

/// By sched_getaffinity, ascending.
std::vector<int> allowed_cpu_ids();

/// Bytes of all last-level caches that the process may use; 0: not known.
int64_t last_level_cache_bytes(const Machine& machine);

/// "0-2,5" -> 0 1 2 5; what is malformed ends the list. At most 65,536 numbers.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace kd
