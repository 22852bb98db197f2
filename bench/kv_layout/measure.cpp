#include "kv_layout/measure.h"

#include <algorithm>
#include <cmath>

namespace kd::kv_layout {

using bench::check;

namespace {

constexpr int32_t kLeastPools = 4;
constexpr int32_t kMostPools = 256;
constexpr int32_t kLeastLaunches = 32;
constexpr int32_t kWarmUp = 2;

}  // namespace

Bench::Bench(const Options& options) : options_(options) {
    int device = 0;
    int l2 = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "size of the L2");
    l2_bytes_ = static_cast<size_t>(l2);
}

std::byte* Bench::memory(size_t bytes) {
    if (memory_ && memory_->bytes() >= bytes) return memory_->base();
    memory_.reset();
    size_t free = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "free memory");
    if (free < bytes) {
        throw std::runtime_error(std::to_string(bytes >> 20) +
                                 " MiB of device memory are needed, " + std::to_string(free >> 20) +
                                 " are free: give a smaller --pool-slots");
    }
    memory_ = std::make_unique<bench::DeviceMemory>(bytes);
    return memory_->base();
}

int32_t Bench::pools_for(double bytes) const {
    const double wanted = std::floor(4.0 * static_cast<double>(l2_bytes_) / bytes) + 1;
    return static_cast<int32_t>(std::clamp(wanted, double{kLeastPools}, double{kMostPools}));
}

Bench::Timing Bench::time(int32_t pools, const std::function<void(int32_t pool)>& launch) {
    const int32_t rounds = (kLeastLaunches + pools - 1) / pools;
    const int32_t launches = rounds * pools;
    launch(0);  // outside a graph: loads the kernels
    const bench::Graph graph(stream_, [&] {
        for (int32_t i = 0; i < launches; ++i) launch(i % pools);
    });
    std::vector<double> times = graph.time_us(kWarmUp, options_.replays);
    for (double& each : times) each /= launches;
    return {.us = bench::quantile(times, 0.5),
            .us_min = bench::quantile(times, 0),
            .launches = launches};
}

void Bench::set_timing(Row& row, const Timing& timing) {
    row.us = timing.us;
    row.us_min = timing.us_min;
    row.launches = timing.launches;
}

}  // namespace kd::kv_layout
