#include "kernels/topk_lse/topk_lse.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/topk_lse/topk_lse.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Columns that are compared with the smallest chosen value at once.
inline constexpr int64_t kStep = static_cast<int64_t>(4 * kLanes);
/// Columns whose exponentials are added in float before they join the sum in double.
inline constexpr int64_t kSumColumns = 1024;

/// The chosen values of a row in order, the smallest one last.
struct Chosen {
    int32_t* index;
    float* value;
    int32_t k;
    int32_t filled = 0;

    float least() const { return filled < k ? -kInfinity : value[k - 1]; }
    /// Columns come in ascending order, so that equal values keep it.
    void offer(float candidate, int64_t column) {
        if (!(candidate > least()) || candidate == kInfinity) return;
        int32_t place = filled < k ? filled++ : k - 1;
        for (; place > 0 && value[place - 1] < candidate; --place) {
            value[place] = value[place - 1];
            index[place] = index[place - 1];
        }
        value[place] = candidate;
        index[place] = static_cast<int32_t>(column);
    }
};

HWY_INLINE void choose(const float* x, int64_t columns, Chosen& chosen) {
    const F32 d;
    int64_t c = 0;
    for (; c + kStep <= columns; c += kStep) {
        const F32Vec least = hn::Set(d, chosen.least());
        auto any = hn::Gt(hn::LoadU(d, x + c), least);
        for (size_t i = 1; i < 4; ++i) {
            any = hn::Or(any, hn::Gt(hn::LoadU(d, x + c + i * kLanes), least));
        }
        if (hn::AllFalse(d, any)) continue;
        for (int64_t at = c; at < c + kStep; ++at) chosen.offer(x[at], at);
    }
    for (; c < columns; ++c) chosen.offer(x[c], c);
}

/// e^(x - largest) of what is finite.
HWY_INLINE F32Vec weight_of(F32 d, F32Vec x, F32Vec largest) {
    const auto finite = hn::Lt(hn::Abs(x), hn::Set(d, kInfinity));
    return hn::IfThenElseZero(finite, exp_of(d, hn::Sub(x, largest)));
}

HWY_INLINE double sum_of_exponentials(const float* x, int64_t columns, float largest) {
    const F32 d;
    const F32Vec shift = hn::Set(d, largest);
    double sum = 0;
    for (int64_t begin = 0; begin < columns; begin += kSumColumns) {
        const int64_t end = std::min(begin + kSumColumns, columns);
        F32Vec part = hn::Zero(d);
        int64_t c = begin;
        for (; c + static_cast<int64_t>(kLanes) <= end; c += static_cast<int64_t>(kLanes)) {
            part = hn::Add(part, weight_of(d, hn::LoadU(d, x + c), shift));
        }
        if (c < end) {
            HWY_ALIGN float last[kLanes];
            std::fill_n(last, kLanes, -kInfinity);
            std::copy(x + c, x + end, last);
            part = hn::Add(part, weight_of(d, hn::Load(d, last), shift));
        }
        sum += double{sum_of(d, part)};
    }
    return sum;
}

void topk_lse_rows(const TopkLseParams& params, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* x = params.x + row * params.columns;
        Chosen chosen{params.index + row * params.k, params.value + row * params.k, params.k};
        choose(x, params.columns, chosen);
        params.lse[row] = -kInfinity;
        if (chosen.filled > 0) {
            const float largest = chosen.value[0];
            const double sum = sum_of_exponentials(x, params.columns, largest);
            params.lse[row] = static_cast<float>(largest + std::log(sum));
        }
        std::fill(chosen.index + chosen.filled, chosen.index + params.k, -1);
        std::fill(chosen.value + chosen.filled, chosen.value + params.k, -kInfinity);
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(topk_lse_rows);

void topk_lse(const TopkLseParams& params, Stream& stream) {
    KD_CHECK(params.k > 0 && params.k <= params.columns, "{} of {} values", params.k,
             params.columns);
    if (stream.kernels == Kernels::reference) return topk_lse_ref(params);
    stream.threads->parallel_for(params.rows, 1, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(topk_lse_rows)(params, begin, end);
    });
}

}  // namespace kd
#endif
