// A small stop watch: medians and minima of repeated runs by the steady clock.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace kd {

template <class Body>
double seconds_of(Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Timing {
    double median_ms = 0;
    double min_ms = 0;
};

/// seconds: at least one.
inline Timing timing_of(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    const size_t half = seconds.size() / 2;
    const double median =
        seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
    return {.median_ms = median * 1e3, .min_ms = seconds.front() * 1e3};
}

/// One call of `body`, from samples of as many calls as the clock needs, for about 40 ms.
template <class Body>
Timing time_calls(Body&& body) {
    constexpr double kSampleSeconds = 1e-4;
    constexpr double kTotalSeconds = 0.04;
    constexpr int kLeastSamples = 9;
    body();  // touches the memory
    int64_t calls = 1;
    const auto sample = [&] {
        return seconds_of([&] {
            for (int64_t i = 0; i < calls; ++i) body();
        });
    };
    while (sample() < kSampleSeconds) calls *= 2;
    std::vector<double> seconds;
    for (double total = 0; total < kTotalSeconds || seconds.size() < kLeastSamples;) {
        const double one = sample();
        total += one;
        seconds.push_back(one / static_cast<double>(calls));
    }
    return timing_of(std::move(seconds));
}

/// Bytes at a 64-byte boundary, as the kernels want their rows.
class AlignedBytes {
  public:
    AlignedBytes(size_t bytes, std::byte value)
        : data_(static_cast<std::byte*>(::operator new[](bytes, kAlign))) {
        std::fill_n(data_.get(), bytes, value);
    }
    std::byte* data() const { return data_.get(); }

  private:
    static constexpr std::align_val_t kAlign{64};
    struct Free {
        void operator()(std::byte* memory) const { ::operator delete[](memory, kAlign); }
    };
    std::unique_ptr<std::byte[], Free> data_;
};

/// Processor time of this thread, so that what else the machine does counts little.
template <class Body>
double cpu_seconds_of(Body&& body) {
    const auto now = [] {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
    };
    const double begin = now();
    body();
    return now() - begin;
}

}  // namespace kd
