#include "ops/ceilings.h"

#include <algorithm>
#include <atomic>

#include "kernels/simd/memory_read.h"
#include "kernels/simd/targets.h"
#include "ops/timing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/ceilings.cpp"
#include "hwy/foreach_target.h"
#include "kernels/simd/math_inl.h"

// The int8 dot product as the linear kernel names it (kernels/linear/linear_tiles_inl.h).
#undef KD_BENCH_VNNI
#undef KD_BENCH_PAIRS
#undef KD_BENCH_TARGET_STR
#if HWY_TARGET == HWY_AVX3_DL
#define KD_BENCH_VNNI 1
#define KD_BENCH_TARGET_STR HWY_TARGET_STR ",avx512vnni"
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
#define KD_BENCH_PAIRS 1
#define KD_BENCH_TARGET_STR HWY_TARGET_STR
#elif defined(HWY_TARGET_STR)
#define KD_BENCH_TARGET_STR HWY_TARGET_STR
#endif

#if defined(KD_BENCH_TARGET_STR)
HWY_PUSH_ATTRIBUTES(KD_BENCH_TARGET_STR)
#endif
namespace kd::HWY_NAMESPACE {

// Enough independent chains to hide the latency of an operation; few enough for 16 registers.
constexpr int kChains = 12;

/// Operations of `steps` steps of multiply-adds; `sink` gets a result, so that they happen.
HWY_NOINLINE double multiply_add(int64_t steps, float* sink) {
    const F32 d;
    const F32Vec factor = hn::Set(d, 0.5f + *sink);
    F32Vec sums[kChains];
    HWY_UNROLL(16) for (int i = 0; i < kChains; ++i) sums[i] = hn::Set(d, static_cast<float>(i));
    for (int64_t step = 0; step < steps; ++step) {
        HWY_UNROLL(16) for (int i = 0; i < kChains; ++i) {
            sums[i] = hn::MulAdd(sums[i], factor, factor);
        }
    }
    F32Vec sum = hn::Zero(d);
    HWY_UNROLL(16) for (int i = 0; i < kChains; ++i) sum = hn::Add(sum, sums[i]);
    *sink = hn::GetLane(sum);
    return 2.0 * static_cast<double>(steps * kChains) * static_cast<double>(kLanes);
}

constexpr int64_t kDotBytes = 4096;  // stays in the first-level cache

#if defined(KD_BENCH_VNNI)

/// The same for int8: `values` holds kDotBytes activations.
HWY_NOINLINE double dot(int64_t steps, const int8_t* values, float* sink) {
    const I32 d;
    const I32Vec weights = hn::Set(d, 0x01020304);
    I32Vec sums[kChains];
    HWY_UNROLL(16) for (int i = 0; i < kChains; ++i) sums[i] = hn::Set(d, i);
    for (int64_t step = 0; step < steps; ++step) {
        const auto* at = reinterpret_cast<const int32_t*>(values + step * 64 % kDotBytes);
        const I32Vec activations = hn::Load(d, at);
        HWY_UNROLL(16) for (int i = 0; i < kChains; ++i) {
            sums[i].raw = _mm512_dpbusd_epi32(sums[i].raw, weights.raw, activations.raw);
        }
    }
    I32Vec sum = hn::Zero(d);
    HWY_UNROLL(16) for (int i = 0; i < kChains; ++i) sum = hn::Add(sum, sums[i]);
    *sink = static_cast<float>(hn::GetLane(sum));
    return 2.0 * static_cast<double>(steps * kChains) * static_cast<double>(4 * kLanes);
}

#elif defined(KD_BENCH_PAIRS)

using I16 = hn::ScalableTag<int16_t>;
using I16Vec = hn::Vec<I16>;

HWY_INLINE I16Vec pairs(I32Vec u, I32Vec s) {
#if HWY_TARGET == HWY_AVX3
    return I16Vec{_mm512_maddubs_epi16(u.raw, s.raw)};
#elif HWY_TARGET == HWY_AVX2
    return I16Vec{_mm256_maddubs_epi16(u.raw, s.raw)};
#else
    return I16Vec{_mm_maddubs_epi16(u.raw, s.raw)};
#endif
}

/// The same for int8. The sums stay in 16 bits (and wrap): that they become 32 bits once in a block
/// is work of the kernel's, not of the ceiling.
HWY_NOINLINE double dot(int64_t steps, const int8_t* values, float* sink) {
    const I32 d;
    const I16 d16;
    const I32Vec weights = hn::Set(d, 0x01020304);
    I16Vec sums[kChains];
    HWY_UNROLL(16)
    for (int i = 0; i < kChains; ++i) sums[i] = hn::Set(d16, static_cast<int16_t>(i));
    constexpr int64_t kStep = kChains * 64;
    static_assert(2 * kStep <= kDotBytes);
    int64_t from = 0;
    for (int64_t step = 0; step < steps; ++step) {
        // Every product has its own activations: equal ones would be computed once.
        HWY_UNROLL(16) for (int i = 0; i < kChains; ++i) {
            const auto* at = reinterpret_cast<const int32_t*>(values + from + i * 64);
            sums[i] = hn::Add(sums[i], pairs(weights, hn::Load(d, at)));
        }
        from = from + 2 * kStep <= kDotBytes ? from + kStep : 0;
    }
    I16Vec sum = hn::Zero(d16);
    HWY_UNROLL(16) for (int i = 0; i < kChains; ++i) sum = hn::Add(sum, sums[i]);
    *sink = static_cast<float>(hn::GetLane(sum));
    return 2.0 * static_cast<double>(steps * kChains) * static_cast<double>(4 * kLanes);
}

#else

/// The same for int8, in plain loops, as the kernel has it here.
HWY_NOINLINE double dot(int64_t steps, const int8_t* values, float* sink) {
    constexpr int64_t kHalf = kDotBytes / 2;
    int32_t sum = 0;
    for (int64_t step = 0; step < steps; ++step) {
        const int64_t shift = step % 2;
        for (int64_t i = 0; i < kHalf; ++i) {
            sum += static_cast<uint8_t>(values[i + shift]) * values[i + kHalf - 1];
        }
    }
    *sink = static_cast<float>(sum);
    return 2.0 * static_cast<double>(steps * kHalf);
}

#endif

}  // namespace kd::HWY_NAMESPACE
#if defined(KD_BENCH_TARGET_STR)
HWY_POP_ATTRIBUTES
#endif

#if HWY_ONCE
namespace kd {

HWY_EXPORT(multiply_add);
HWY_EXPORT(dot);

namespace {

constexpr int64_t kReadBytes = int64_t{256} << 20;
// Of so many runs one may find the machine quiet.
constexpr int kRuns = 24;

/// `work(steps)` returns the operations it did. Runs it on all threads, about 20 ms at a time.
template <class Work>
double gop_s(ThreadPool& threads, Work&& work) {
    constexpr double kRunSeconds = 0.02;
    constexpr int kChunks = 8;  // a thread's share, handed out in parts
    int64_t steps = 1000;
    for (double seconds = 0; seconds < kRunSeconds / kChunks && steps < int64_t{1} << 40;) {
        steps *= 2;
        seconds = seconds_of([&] { work(steps); });
    }
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        std::atomic<int64_t> operations = 0;
        const double seconds = seconds_of([&] {
            threads.parallel_for(int64_t{threads.threads()} * kChunks, 1, [&](int64_t, int64_t) {
                operations += static_cast<int64_t>(work(steps));
            });
        });
        best = std::max(best, static_cast<double>(operations) / seconds * 1e-9);
    }
    return best;
}

}  // namespace

Ceilings measure_ceilings(ThreadPool& threads) {
    const AlignedBytes bytes(4096, std::byte{1});
    const auto* values = reinterpret_cast<const int8_t*>(bytes.data());
    return {.read_gb_s = read_gb_s(threads, kReadBytes, kRuns).back(),
            .fp32_gop_s = gop_s(threads,
                                [](int64_t steps) {
                                    float sink = 0;
                                    return HWY_DYNAMIC_DISPATCH(multiply_add)(steps, &sink);
                                }),
            .int8_gop_s = gop_s(threads, [&](int64_t steps) {
                float sink = 0;
                return HWY_DYNAMIC_DISPATCH(dot)(steps, values, &sink);
            })};
}

}  // namespace kd
#endif
