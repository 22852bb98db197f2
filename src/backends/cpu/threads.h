// The CPU workers of a stream: a small pool that splits index ranges.
//
// Why not OpenMP: its barriers spin on a core that another program may hold, which was measured to
// cost 5-15x on shared machines, and ThreadSanitizer cannot see them. Here every thread begins with
// a contiguous share of the chunks (so a matrix is read from one place on) and then takes from the
// others', so a worker that loses its core delays only its own chunk; workers that find nothing
// spin for a few microseconds and then sleep.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace kd {

class ThreadPool {
  public:
    /// Workers and the calling thread, >= 1. Throws kd::Error where the system refuses a worker.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    /// Calls body(begin, end) for disjoint ranges that cover [0, count), each at most `grain` long
    /// and beginning at a multiple of `grain`, on the workers and the caller; returns when all are
    /// done. Which thread runs a range is unspecified: results must not depend on it. Not
    /// reentrant; one caller at a time. The body must not throw.
    template <class Body>
    void parallel_for(int64_t count, int64_t grain, Body&& body) {
        auto call = [](void* context, int64_t begin, int64_t end) {
            (*static_cast<std::remove_reference_t<Body>*>(context))(begin, end);
        };
        run(count, grain, call, const_cast<void*>(static_cast<const void*>(&body)));
    }

  private:
    using Call = void (*)(void* context, int64_t begin, int64_t end);
    void run(int64_t count, int64_t grain, Call call, void* context);

    struct State;
    int threads_;
    std::unique_ptr<State> state_;
};

/// CPUs' worth of time the cgroup of this process may use; 0: no limit is set.
double cgroup_cpu_quota();
/// Threads worth using: the CPUs this process may run on, limited by its cgroup's CPU quota; >= 1.
int default_threads();

}  // namespace kd
