#include "app/machine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

namespace kd {

namespace {

constexpr size_t kMostCpus = 65536;

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// The number at the start of a file; `fallback` if there is none ("max").
int64_t number_in(const std::string& path, int64_t fallback) {
    const std::string line = first_line(path);
    int64_t value = fallback;
    std::from_chars(line.data(), line.data() + line.size(), value);
    return value;
}

/// "48K", "2M" or plain bytes.
int64_t sized(const std::string& text) {
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0) return 0;
    const char unit = stop < text.data() + text.size() ? *stop : ' ';
    return unit == 'K'   ? value << 10
           : unit == 'M' ? value << 20
           : unit == 'G' ? value << 30
                         : value;
}

/// The value of a line "key   : value" or "key: value"; nothing if the line has another key.
bool has_key(const std::string& line, std::string_view key, std::string& value) {
    if (!line.starts_with(key)) return false;
    const size_t colon = line.find_first_not_of(" \t", key.size());
    if (colon == std::string::npos || line[colon] != ':') return false;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    value = begin == std::string::npos ? "" : line.substr(begin);
    return true;
}

void read_processor(const std::string& root, Machine& machine) {
    // x86 says "flags", Arm "Features"; in the order of their use here.
    static constexpr std::string_view kSets[] = {
        "sse4_1",      "avx2",        "fma",      "f16c",     "avx512f",  "avx512bw",
        "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16", "asimd",
        "asimddp",     "asimdhp",     "i8mm",     "bf16",     "sve",      "sve2"};
    std::ifstream info(root + "/proc/cpuinfo");
    std::string value;
    for (std::string line; std::getline(info, line);) {
        if (machine.processor.empty() && has_key(line, "model name", value)) {
            machine.processor = value;
        }
        if (!has_key(line, "flags", value) && !has_key(line, "Features", value)) continue;
        std::istringstream words(value);
        std::set<std::string> found;
        for (std::string word; words >> word;) found.insert(word);
        for (const std::string_view set : kSets) {
            if (found.contains(std::string(set))) machine.instruction_sets.emplace_back(set);
        }
        return;  // all CPUs say the same
    }
}

std::string cpu_folder(const std::string& root, int cpu) {
    return fmt::format("{}/sys/devices/system/cpu/cpu{}", root, cpu);
}

/// Physical cores of these CPUs: those that share one count once.
int32_t count_cores(const std::string& root, const std::vector<int>& cpus) {
    std::set<std::string> cores;
    for (const int cpu : cpus) {
        const std::string siblings =
            first_line(cpu_folder(root, cpu) + "/topology/thread_siblings_list");
        cores.insert(siblings.empty() ? fmt::format("{}", cpu) : siblings);
    }
    return static_cast<int32_t>(cores.size());
}

void read_caches(const std::string& root, const std::vector<int>& cpus, Machine& machine) {
    struct Found {
        int64_t bytes = 0;
        std::set<std::string> sharers;
    };
    std::map<std::pair<int32_t, std::string>, Found> levels;
    constexpr int kMostIndices = 16;
    for (const int cpu : cpus) {
        for (int index = 0; index < kMostIndices; ++index) {
            const std::string folder =
                fmt::format("{}/cache/index{}", cpu_folder(root, cpu), index);
            const auto level = static_cast<int32_t>(number_in(folder + "/level", 0));
            if (level < 1) break;
            Found& found = levels[{level, first_line(folder + "/type")}];
            found.bytes = sized(first_line(folder + "/size"));
            found.sharers.insert(first_line(folder + "/shared_cpu_list"));
        }
    }
    for (const auto& [key, found] : levels) {
        machine.caches.push_back({.level = key.first,
                                  .type = key.second,
                                  .bytes = found.bytes,
                                  .copies = static_cast<int32_t>(found.sharers.size())});
    }
}

void read_memory(const std::string& root, Machine& machine) {
    std::ifstream info(root + "/proc/meminfo");
    std::string value;
    int64_t swap_free = 0;
    for (std::string line; std::getline(info, line);) {
        for (const auto& [key, into] : {std::pair{"MemTotal", &machine.memory_bytes},
                                        {"MemAvailable", &machine.available_bytes},
                                        {"SwapTotal", &machine.swap_bytes},
                                        {"SwapFree", &swap_free}}) {
            if (has_key(line, key, value)) *into = std::atoll(value.c_str()) << 10;  // in kB
        }
    }
    machine.swap_used_bytes = std::max<int64_t>(0, machine.swap_bytes - swap_free);
}

/// Bytes of the cgroup's files in memory that go first when memory runs short.
int64_t reclaimable(const std::string& folder) {
    std::ifstream stat(folder + "/memory.stat");
    int64_t bytes = 0;
    int64_t value = 0;
    // Version 1 also sums over the groups below, as its limit does.
    for (std::string key; stat >> key >> value;) {
        if (key == "total_inactive_file") return value;
        if (key == "inactive_file") bytes = value;
    }
    return bytes;
}

/// Lowers memory to what the cgroups of this process allow. Lines of /proc/self/cgroup
/// are "id:controllers:path"; version 2 has no controllers. Inside a container the path may be the
/// host's, so the root of the mount is looked at as well.
void read_cgroups(const std::string& root, Machine& machine) {
    std::ifstream groups(root + "/proc/self/cgroup");
    int64_t limit = 0;
    int64_t used = 0;
    const auto memory = [&](const std::string& folder, const char* most, const char* now) {
        const int64_t found = number_in(folder + most, 0);
        if (found <= 0 || found >= machine.memory_bytes || (limit > 0 && found >= limit)) return;
        limit = found;
        used = number_in(folder + now, 0) - reclaimable(folder);
    };
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':');
        const size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers =
            fmt::format(",{},", std::string_view(line).substr(first + 1, second - first - 1));
        for (const std::string& path : {line.substr(second + 1), std::string("/")}) {
            const std::string mount = root + "/sys/fs/cgroup";
            if (controllers == ",,") {
                memory(mount + path, "/memory.max", "/memory.current");
            }
            if (controllers.find(",memory,") != std::string::npos) {
                memory(mount + "/memory" + path, "/memory.limit_in_bytes",
                       "/memory.usage_in_bytes");
            }
        }
    }
    if (limit == 0) return;
    machine.memory_limit_bytes = limit;
    machine.available_bytes = std::min(machine.available_bytes, std::max<int64_t>(0, limit - used));
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
    std::vector<int> cpus;
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at < end) {
        int first = 0;
        auto [stop, error] = std::from_chars(at, end, first);
        if (error != std::errc()) break;
        int last = first;
        if (stop < end && *stop == '-') {
            const auto range = std::from_chars(stop + 1, end, last);
            if (range.ec != std::errc()) break;
            stop = range.ptr;
        }
        for (int cpu = first; cpu <= last && cpus.size() < kMostCpus; ++cpu) cpus.push_back(cpu);
        if (stop == end || *stop != ',') break;
        at = stop + 1;
    }
    return cpus;
}

std::vector<int> allowed_cpu_ids() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> cpus;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
    return cpus;
}

Machine read_machine(const std::vector<int>& allowed, const std::string& root) {
    Machine machine;
    read_processor(root, machine);
    const std::string system = root + "/sys/devices/system";
    const std::vector<int> online = parse_cpu_list(first_line(system + "/cpu/online"));
    machine.cpus = static_cast<int32_t>(online.size());
    machine.cores = count_cores(root, online);
    machine.allowed_cpus = static_cast<int32_t>(allowed.size());
    machine.allowed_cores = count_cores(root, allowed);
    machine.load = std::atof(first_line(root + "/proc/loadavg").c_str());
    read_caches(root, allowed, machine);
    machine.numa_nodes =
        static_cast<int32_t>(parse_cpu_list(first_line(system + "/node/online")).size());
    machine.governor = first_line(cpu_folder(root, 0) + "/cpufreq/scaling_governor");
    const std::string pages = first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled");
    const size_t open = pages.find('[');
    const size_t close = pages.find(']', open + 1);
    if (open != std::string::npos && close != std::string::npos) {
        machine.huge_pages = pages.substr(open + 1, close - open - 1);
    }
    read_memory(root, machine);
    read_cgroups(root, machine);
    return machine;
}

int64_t last_level_cache_bytes(const Machine& machine) {
    int32_t level = 0;
    int64_t bytes = 0;
    for (const CacheLevel& cache : machine.caches) {
        if (cache.level < level || cache.type == "Instruction") continue;
        level = cache.level;
        bytes = cache.bytes * cache.copies;
    }
    return bytes;
}

}  // namespace kd
