#include "kernels/simd/memory_read.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/memory_read.cpp"
#include "hwy/foreach_target.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// Reads [from, from + bytes), a multiple of 1 KB; returns something that depends on every byte.
HWY_NOINLINE int64_t read_all(const std::byte* from, int64_t bytes) {
    const I32 d;
    constexpr auto kStep = static_cast<int64_t>(kLanes * sizeof(int32_t));
    I32Vec sums[4];
    HWY_UNROLL(4) for (int i = 0; i < 4; ++i) sums[i] = hn::Zero(d);
    for (int64_t at = 0; at < bytes; at += 4 * kStep) {
        HWY_UNROLL(4) for (int i = 0; i < 4; ++i) {
            const auto* word = reinterpret_cast<const int32_t*>(from + at + i * kStep);
            sums[i] = hn::Add(sums[i], hn::Load(d, word));
        }
    }
    const I32Vec sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
    return hn::GetLane(hn::SumOfLanes(d, sum));
}

const char* target_name() {
    return hwy::TargetName(HWY_TARGET);
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(read_all);
HWY_EXPORT(target_name);

namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr std::align_val_t kAlign{64};

struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlign); }
};

}  // namespace

std::string dispatch_target() {
    return HWY_DYNAMIC_DISPATCH(target_name)();
}

std::vector<double> read_gb_s(ThreadPool& threads, int64_t bytes, int runs) {
    const int64_t chunks = std::max<int64_t>(1, bytes / kChunkBytes);
    const int64_t whole = chunks * kChunkBytes;
    const std::unique_ptr<std::byte[], Free> memory(
        static_cast<std::byte*>(::operator new[](static_cast<size_t>(whole), kAlign)));
    // Untouched pages would all be one page of zeros.
    threads.parallel_for(whole, kChunkBytes, [&](int64_t begin, int64_t end) {
        std::memset(memory.get() + begin, 1, static_cast<size_t>(end - begin));
    });
    std::atomic<int64_t> sink = 0;
    std::vector<double> results;
    for (int run = 0; run < runs; ++run) {
        const auto begin = std::chrono::steady_clock::now();
        threads.parallel_for(whole, kChunkBytes, [&](int64_t from, int64_t to) {
            sink += HWY_DYNAMIC_DISPATCH(read_all)(memory.get() + from, to - from);
        });
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        results.push_back(static_cast<double>(whole) / seconds.count() * 1e-9);
    }
    std::sort(results.begin(), results.end());
    return results;
}

}  // namespace kd
#endif
