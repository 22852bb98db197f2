#include "kernels/swiglu/swiglu.h"

#include "kernels/simd/grain.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu/swiglu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

HWY_INLINE F32Vec gated(F32 d, F32Vec gate, F32Vec up) {
    const F32Vec below = hn::Add(hn::Set(d, 1.0f), exp_of(d, hn::Neg(gate)));
    return hn::Mul(hn::Div(gate, below), up);
}

void swiglu_rows(const SwigluParams& params, int64_t begin, int64_t end) {
    const F32 d;
    const size_t columns = static_cast<size_t>(params.columns);
    for (int64_t row = begin; row < end; ++row) {
        const float* gate = params.gate_up + row * 2 * params.columns;
        const float* up = gate + columns;
        float* y = params.y + row * params.columns;
        size_t c = 0;
        for (; c + kLanes <= columns; c += kLanes) {
            hn::StoreU(gated(d, hn::LoadU(d, gate + c), hn::LoadU(d, up + c)), d, y + c);
        }
        if (const size_t left = columns - c; left > 0) {
            const F32Vec last =
                gated(d, load_first(d, gate + c, left), load_first(d, up + c, left));
            store_first(d, last, y + c, left);
        }
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(swiglu_rows);

void swiglu(const SwigluParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return swiglu_ref(params);
    const int64_t grain = rows_per_chunk(params.columns, 3072);
    stream.threads->parallel_for(params.rows, grain, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(swiglu_rows)(params, begin, end);
    });
}

}  // namespace kd
#endif
