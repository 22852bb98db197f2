#include "backends/cpu/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace kd {

namespace {

// Ops of a small model follow each other within a few microseconds, and a sleeping worker costs
// several to wake; longer spinning only takes the core from whoever else wants it.
constexpr auto kSpin = std::chrono::microseconds(40);
constexpr int kPausesPerClockRead = 16;
constexpr int kMaxThreads = 1024;
constexpr int kIndexBits = 32;
constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

/// Whether `ready` came true within kSpin.
template <class Ready>
bool spin_until(Ready&& ready) {
    if (ready()) return true;
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < kPausesPerClockRead; ++i) {
            pause_cpu();
            if (ready()) return true;
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

}  // namespace

// One job at a time. Thread i begins with the i-th of equal shares of its chunks, whose `cursor`
// holds (job number, chunks left) in one word: a thread takes a chunk by compare-and-swap, so one
// that read the fields of an old job and lost its core can never take a chunk of a new one. The
// fields of a job are written only after every chunk of the job before was done, and nobody swaps a
// cursor without chunks left, hence a successful swap proves that the fields read before it belong
// to its job. (Counting up would not do: at an exhausted cursor the number of chunks read might
// already be the next job's.)
struct alignas(64) Share {
    std::atomic<uint64_t> cursor{0};
};

struct ThreadPool::State {
    explicit State(size_t threads) : shares(threads) {}
    /// Ends the workers that were started.
    ~State();

    std::vector<Share> shares;
    alignas(64) std::atomic<uint32_t> chunks_done{0};
    alignas(64) std::atomic<uint32_t> job{0};  // what idle workers watch; equals the cursors' job
    std::atomic<Call> call{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<int64_t> count{0};
    std::atomic<int64_t> grain{1};
    std::atomic<uint32_t> chunks{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> workers;

    /// Where the share begins among `all` chunks; that of the last one plus one: all.
    uint32_t first_chunk(size_t share, uint32_t all) const {
        return static_cast<uint32_t>(uint64_t{all} * share / shares.size());
    }
    void take_chunks(uint32_t job_number, size_t share);
    void take_all(uint32_t job_number, size_t thread);
    void work(size_t thread);
};

ThreadPool::State::~State() {
    stop.store(true, std::memory_order_release);
    job.fetch_add(1, std::memory_order_release);
    job.notify_all();
    for (std::thread& worker : workers) worker.join();
}

void ThreadPool::State::take_chunks(uint32_t job_number, size_t share) {
    std::atomic<uint64_t>& cursor = shares[share].cursor;
    uint64_t at = cursor.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(at >> kIndexBits) == job_number) {
        const auto left = static_cast<uint32_t>(at & kIndexMask);
        if (left == 0) return;
        const Call job_call = call.load(std::memory_order_relaxed);
        void* const job_context = context.load(std::memory_order_relaxed);
        const int64_t job_count = count.load(std::memory_order_relaxed);
        const int64_t job_grain = grain.load(std::memory_order_relaxed);
        const uint32_t job_chunks = chunks.load(std::memory_order_relaxed);
        if (!cursor.compare_exchange_weak(at, at - 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
            continue;
        }
        const int64_t begin = int64_t{first_chunk(share + 1, job_chunks) - left} * job_grain;
        job_call(job_context, begin, std::min(begin + job_grain, job_count));
        if (chunks_done.fetch_add(1, std::memory_order_acq_rel) + 1 == job_chunks) {
            chunks_done.notify_one();  // the caller, if it fell asleep
        }
        at = cursor.load(std::memory_order_acquire);
    }
}

/// Its own share, then what the others have left.
void ThreadPool::State::take_all(uint32_t job_number, size_t thread) {
    for (size_t i = 0; i < shares.size(); ++i) {
        take_chunks(job_number, (thread + i) % shares.size());
    }
}

void ThreadPool::State::work(size_t thread) {
    uint32_t seen = 0;
    for (;;) {
        auto changed = [&] { return job.load(std::memory_order_acquire) != seen; };
        if (!spin_until(changed)) job.wait(seen, std::memory_order_acquire);
        if (stop.load(std::memory_order_acquire)) return;
        const uint32_t now = job.load(std::memory_order_acquire);
        if (now == seen) continue;
        seen = now;
        take_all(seen, thread);
    }
}

ThreadPool::ThreadPool(int threads) : threads_(threads) {
    if (threads < 1 || threads > kMaxThreads) {
        KD_THROW(invalid_argument, "thread count {} is not in 1..{}", threads, kMaxThreads);
    }
    state_ = std::make_unique<State>(static_cast<size_t>(threads));
    state_->workers.reserve(static_cast<size_t>(threads - 1));
    for (size_t i = 1; i < state_->shares.size(); ++i) {
        try {
            state_->workers.emplace_back([state = state_.get(), i] { state->work(i); });
        } catch (const std::system_error& error) {
            KD_THROW(out_of_resources, "cannot start thread {} of {}: {}", i + 1, threads,
                     error.what());
        }
    }
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::run(int64_t count, int64_t grain, Call call, void* context) {
    KD_CHECK(grain >= 1 && count >= 0, "parallel_for over {} by {}", count, grain);
    if (threads_ == 1 || count <= grain) {
        for (int64_t begin = 0; begin < count; begin += grain) {
            call(context, begin, std::min(begin + grain, count));
        }
        return;
    }
    const int64_t chunks = (count + grain - 1) / grain;
    KD_CHECK(chunks <= static_cast<int64_t>(kIndexMask), "{} chunks", chunks);
    State& state = *state_;
    state.call.store(call, std::memory_order_relaxed);
    state.context.store(context, std::memory_order_relaxed);
    state.count.store(count, std::memory_order_relaxed);
    state.grain.store(grain, std::memory_order_relaxed);
    state.chunks.store(static_cast<uint32_t>(chunks), std::memory_order_relaxed);
    state.chunks_done.store(0, std::memory_order_relaxed);
    const uint32_t job = state.job.load(std::memory_order_relaxed) + 1;
    const auto all = static_cast<uint32_t>(chunks);
    for (size_t i = 0; i < state.shares.size(); ++i) {
        const uint64_t left = state.first_chunk(i + 1, all) - state.first_chunk(i, all);
        state.shares[i].cursor.store((uint64_t{job} << kIndexBits) | left,
                                     std::memory_order_release);
    }
    state.job.store(job, std::memory_order_release);
    state.job.notify_all();

    state.take_all(job, 0);
    auto finished = [&] {
        return state.chunks_done.load(std::memory_order_acquire) == static_cast<uint32_t>(chunks);
    };
    while (!spin_until(finished)) {
        const uint32_t done = state.chunks_done.load(std::memory_order_acquire);
        if (done == static_cast<uint32_t>(chunks)) break;
        state.chunks_done.wait(done, std::memory_order_acquire);
    }
}

double cgroup_cpu_quota() {
    auto read_line = [](const std::string& path) {
        std::ifstream file(path);
        std::string line;
        std::getline(file, line);
        return line;
    };
    auto limit_of = [](double quota, double period) {
        return quota > 0 && period > 0 ? quota / period : 0.0;
    };
    std::ifstream groups("/proc/self/cgroup");
    double limit = 0;
    // Lines are "id:controllers:path"; version 2 has an empty controller list. Inside a container
    // the path may be that of the host, so the root of the mount is looked at as well.
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':');
        const size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        for (const std::string& path : {line.substr(second + 1), std::string("/")}) {
            double found = 0;
            if (controllers.empty()) {
                std::istringstream words(read_line("/sys/fs/cgroup" + path + "/cpu.max"));
                double quota = 0;
                double period = 0;
                if (words >> quota >> period) found = limit_of(quota, period);
            } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
                const std::string folder = "/sys/fs/cgroup/cpu" + path;
                std::istringstream quota_line(read_line(folder + "/cpu.cfs_quota_us"));
                std::istringstream period_line(read_line(folder + "/cpu.cfs_period_us"));
                double quota = 0;
                double period = 0;
                if (quota_line >> quota && period_line >> period) found = limit_of(quota, period);
            }
            if (found > 0) limit = limit == 0 ? found : std::min(limit, found);
        }
    }
    return limit;
}

int default_threads() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int cpus = static_cast<int>(std::thread::hardware_concurrency());
    if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
    const double quota = cgroup_cpu_quota();
    if (quota > 0 && quota < cpus) cpus = static_cast<int>(std::ceil(quota));
    return std::clamp(cpus, 1, kMaxThreads);
}

}  // namespace kd
