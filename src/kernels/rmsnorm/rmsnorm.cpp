#include "kernels/rmsnorm/rmsnorm.h"

#include <cmath>

#include "kernels/simd/grain.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rmsnorm/rmsnorm.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// Four partial sums, vector i going to sum i % 4: one order, whatever the rows.
HWY_INLINE float sum_of_squares(const float* x, size_t columns) {
    const F32 d;
    F32Vec sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    size_t c = 0;
    for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
        for (size_t i = 0; i < 4; ++i) {
            const F32Vec v = hn::LoadU(d, x + c + i * kLanes);
            sums[i] = hn::MulAdd(v, v, sums[i]);
        }
    }
    for (size_t i = 0; c < columns; ++i, c += kLanes) {
        const size_t left = columns - c;
        const F32Vec v = left < kLanes ? load_first(d, x + c, left) : hn::LoadU(d, x + c);
        sums[i] = hn::MulAdd(v, v, sums[i]);
    }
    return sum_of(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

void rmsnorm_vectors(const RmsnormParams& params, int64_t begin, int64_t end) {
    const F32 d;
    const size_t columns = static_cast<size_t>(params.columns);
    for (int64_t v = begin; v < end; ++v) {
        const float* x = params.x + params.offset(v);
        float* y = params.y + params.offset(v);
        const float mean = sum_of_squares(x, columns) / static_cast<float>(columns);
        const F32Vec inverse = hn::Set(d, 1.0f / std::sqrt(mean + params.epsilon));
        size_t c = 0;
        for (; c + kLanes <= columns; c += kLanes) {
            const F32Vec scaled = hn::Mul(hn::LoadU(d, x + c), inverse);
            hn::StoreU(hn::Mul(scaled, hn::LoadU(d, params.weight + c)), d, y + c);
        }
        if (const size_t left = columns - c; left > 0) {
            const F32Vec scaled = hn::Mul(load_first(d, x + c, left), inverse);
            store_first(d, hn::Mul(scaled, load_first(d, params.weight + c, left)), y + c, left);
        }
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(rmsnorm_vectors);

void rmsnorm(const RmsnormParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return rmsnorm_ref(params);
    const int64_t grain = rows_per_chunk(params.columns, 8192);
    stream.threads->parallel_for(params.vectors(), grain, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(rmsnorm_vectors)(params, begin, end);
    });
}

}  // namespace kd
#endif
