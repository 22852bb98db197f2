#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "app/doctor_parts.h"
#include "app/text.h"

namespace kd {

namespace {

namespace fs = std::filesystem;

/// 33554432 -> "32 MiB": caches and memories come in powers of two.
std::string binary_text(int64_t bytes) {
    if (bytes >= int64_t{10} << 30) return fmt::format("{} GiB", (bytes + (1 << 29)) >> 30);
    if (bytes >= int64_t{1} << 30) {
        return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
    }
    if (bytes >= int64_t{1} << 20) return fmt::format("{} MiB", bytes >> 20);
    return fmt::format("{} KiB", bytes >> 10);
}

void check_instructions(const Machine& machine, const std::string& target, Findings& findings) {
    std::string sets;
    for (const std::string& set : machine.instruction_sets) sets += (sets.empty() ? "" : " ") + set;
    const std::string text =
        fmt::format("{}; the kernels take {}", sets.empty() ? "?" : sets, target);
    if (target == "AVX3_DL" || target == "AVX3" || target == "AVX2") {
        findings.ok("instructions", text);
        return;
    }
    findings.warning("instructions", text,
                     "the fast kernels want AVX2 at least (in a virtual machine: pass the host's "
                     "processor through)");
}

void check_threads(const Machine& machine, int threads, double quota, Findings& findings) {
    const int cores = machine.allowed_cores;
    std::string text = plural(threads, "thread");
    if (machine.allowed_cpus < machine.cpus) {
        text += fmt::format(", affinity allows {} of {} CPUs", machine.allowed_cpus, machine.cpus);
    }
    if (quota > 0) text += fmt::format(", the cgroup gives {:.3g} CPUs' time", quota);
    // The kernel stops all threads of a group that has used its time up.
    if (quota > 0 && threads > quota + 1e-6) {
        findings.warning("threads", text + ": they will be stopped again and again",
                         quota < 1 ? "raise the container's CPU quota"
                                   : fmt::format("use --threads {}, or raise the container's CPU "
                                                 "quota",
                                                 static_cast<int>(quota)));
    } else if (threads > machine.allowed_cpus && machine.allowed_cpus > 0) {
        findings.warning("threads",
                         fmt::format("{} on {}", text, plural(machine.allowed_cpus, "CPU")),
                         fmt::format("use --threads {}", machine.allowed_cpus));
    } else if (threads > cores && cores > 0) {
        findings.warning("threads", fmt::format("{} on {}", text, plural(cores, "core")),
                         fmt::format("hyper-threads share a core's arithmetic: compare with "
                                     "--threads {}",
                                     cores));
    } else {
        findings.ok("threads", text);
    }
    if (machine.allowed_cpus > 0 && machine.load > 0.5 * machine.allowed_cpus) {
        findings.warning("load", fmt::format("{:.2f} processes want the CPUs", machine.load),
                         "other programs are at work: what is measured below is too low");
    }
}

void check_memory(const Machine& machine, Findings& findings) {
    std::string caches;
    for (const CacheLevel& cache : machine.caches) {
        if (cache.type == "Instruction") continue;
        caches += fmt::format("{}L{} ", caches.empty() ? "" : ", ", cache.level);
        if (cache.copies > 1) caches += fmt::format("{} x ", cache.copies);
        caches += binary_text(cache.bytes);
    }
    if (!caches.empty()) findings.ok("caches", caches);

    std::string text = fmt::format("{}, {} available", binary_text(machine.memory_bytes),
                                   binary_text(machine.available_bytes));
    if (machine.memory_limit_bytes > 0) {
        text += fmt::format(", the cgroup's limit is {}", binary_text(machine.memory_limit_bytes));
    }
    findings.ok("memory", text);
    if (machine.numa_nodes > 1) {
        findings.warning("NUMA", plural(machine.numa_nodes, "memory node"),
                         "a model that fits into one is read fastest from there: numactl "
                         "--cpunodebind=0 --membind=0 kdtree ...");
    }
    if (machine.swap_used_bytes > machine.memory_bytes / 20) {
        findings.warning("swap",
                         fmt::format("{} of {} in use", binary_text(machine.swap_used_bytes),
                                     binary_text(machine.swap_bytes)),
                         "memory was short: weights that are swapped out are read from disk for "
                         "every token");
    }
}

}  // namespace

void check_machine(const Machine& machine, int threads, double quota, const std::string& target,
                   Findings& findings) {
    findings.ok("processor",
                fmt::format("{}: {}, {}", machine.processor.empty() ? "unknown" : machine.processor,
                            plural(machine.cores, "core"), plural(machine.cpus, "CPU")));
    check_instructions(machine, target, findings);
    check_threads(machine, threads, quota, findings);
    if (machine.governor == "powersave" || machine.governor == "conservative") {
        findings.warning("frequency", fmt::format("governor {}", machine.governor),
                         "the clock may stay low: cpupower frequency-set -g performance");
    } else if (!machine.governor.empty()) {
        findings.ok("frequency", fmt::format("governor {}", machine.governor));
    }
    check_memory(machine, findings);
}

void check_gpus(const GpuReport& gpus, Findings& findings) {
    if (!gpus.problem.empty()) {
        findings.warning("GPU", gpus.problem,
                         "the NVIDIA driver is not usable; decoding on the CPU does not need it");
    } else if (gpus.devices.empty()) {
        findings.ok("GPU", "no NVIDIA device; everything runs on the CPU");
    }
    for (const GpuDevice& device : gpus.devices) {
        const std::string architecture = kernel_architecture(device);
        findings.ok("GPU",
                    fmt::format("{}, {}, compute capability {}.{}, driver {}; {}", device.name,
                                binary_text(device.memory_bytes), device.major, device.minor,
                                gpus.driver.empty() ? "?" : gpus.driver,
                                architecture.empty()
                                    ? "the CUDA kernels have no code for it (sm_90a, sm_120a)"
                                    : "the CUDA kernels have code for it: " + architecture));
    }
}

void check_cache_folder(const std::string& folder, Findings& findings) {
    // What does not exist yet is made where its nearest parent allows it.
    fs::path nearest = folder;
    std::error_code error;
    while (!fs::exists(nearest, error) && nearest.has_relative_path()) {
        nearest = nearest.parent_path();
    }
    if (nearest.empty()) nearest = ".";
    if (!fs::is_directory(nearest, error) || access(nearest.c_str(), W_OK | X_OK) != 0) {
        findings.warning("cache folder", fmt::format("{} cannot be written", folder),
                         "set KDTREE_CACHE to a folder of yours: without one, the cost of "
                         "verification is measured anew at every start");
        return;
    }
    struct statvfs disk {};
    std::string text = folder;
    if (statvfs(nearest.c_str(), &disk) == 0) {
        text += fmt::format(", {} free", bytes_text(static_cast<int64_t>(disk.f_bavail) *
                                                    static_cast<int64_t>(disk.f_frsize)));
    }
    int64_t tables = 0;
    for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
         at.increment(error)) {
        const std::string name = at->path().filename().string();
        tables += name.starts_with("cost-") && name.ends_with(".json") ? 1 : 0;
    }
    findings.ok("cache folder", fmt::format("{}, {}", text, plural(tables, "cost table")));
}

nlohmann::ordered_json machine_json(const Machine& machine) {
    nlohmann::ordered_json caches = nlohmann::ordered_json::array();
    for (const CacheLevel& cache : machine.caches) {
        caches.push_back({{"level", cache.level},
                          {"type", cache.type},
                          {"bytes", cache.bytes},
                          {"copies", cache.copies}});
    }
    return {{"processor", machine.processor},
            {"instruction_sets", machine.instruction_sets},
            {"cpus", machine.cpus},
            {"cores", machine.cores},
            {"allowed_cpus", machine.allowed_cpus},
            {"allowed_cores", machine.allowed_cores},
            {"load", machine.load},
            {"caches", caches},
            {"numa_nodes", machine.numa_nodes},
            {"governor", machine.governor},
            {"transparent_huge_pages", machine.huge_pages},
            {"memory_bytes", machine.memory_bytes},
            {"available_bytes", machine.available_bytes},
            {"memory_limit_bytes", machine.memory_limit_bytes},
            {"swap_bytes", machine.swap_bytes},
            {"swap_used_bytes", machine.swap_used_bytes}};
}

nlohmann::ordered_json gpus_json(const GpuReport& gpus) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const GpuDevice& device : gpus.devices) {
        out.push_back({{"name", device.name},
                       {"memory_bytes", device.memory_bytes},
                       {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
                       {"kernel_architecture", kernel_architecture(device)},
                       {"driver", gpus.driver}});
    }
    return out;
}

}  // namespace kd
