// Per-target helpers of the fast kernels. Include after hwy/highway.h in a file that is compiled
// once per target. Every function is lane-wise: a lane's result does not depend on its position or
// on its neighbours.
#if defined(KD_KERNELS_SIMD_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KD_KERNELS_SIMD_MATH_INL_H
#undef KD_KERNELS_SIMD_MATH_INL_H
#else
#define KD_KERNELS_SIMD_MATH_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::ScalableTag<int32_t>;
using F32Vec = hn::Vec<F32>;
using I32Vec = hn::Vec<I32>;

/// Lanes of float vectors, a power of two, at most 16 on every target compiled here.
inline constexpr size_t kLanes = hn::MaxLanes(F32());

/// e^x to about 2 units in the last place: 2^n * p(r) with x = n ln 2 + r, |r| <= ln 2 / 2. 0 below
/// the smallest normal number (so at -inf), the largest power's value above 88, NaN stays NaN.
HWY_INLINE F32Vec exp_of(F32 d, F32Vec x) {
    const F32Vec low = hn::Set(d, -87.3365f);
    const F32Vec bounded = hn::Min(hn::Set(d, 88.37626f), hn::Max(low, x));
    // At 1.5 * 2^23 floats are integers: adding it rounds, and leaves n + 127, the exponent of 2^n,
    // in the low bits.
    const F32Vec magic = hn::Set(d, 0x1.8p23f + 127);
    const F32Vec biased = hn::MulAdd(bounded, hn::Set(d, 1.44269504f), magic);
    const F32Vec n = hn::Sub(biased, magic);
    F32Vec r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), bounded);
    r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
    // Taylor coefficients 1/k!, those of r^3 and r^5 changed so that they stand for the term of r^7
    // as well as odd Chebyshev polynomials can: good to 2e-8.
    F32Vec p = hn::Set(d, 1.0f / 720);
    p = hn::MulAdd(p, r, hn::Set(d, 8.37503926e-3f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24));
    p = hn::MulAdd(p, r, hn::Set(d, 0.166664162f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
    const F32Vec power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(I32(), biased)));
    const F32Vec result = hn::Mul(p, power);
    // Compared with the argument itself: a NaN is not below and keeps its NaN polynomial, whatever
    // the bounding did to it.
    const F32Vec kept = hn::IfThenElse(hn::Eq(x, x), result, x);
    return hn::IfThenZeroElse(hn::Lt(x, low), kept);
}

/// kLanes f16 values (raw bits). Highway's emulation for targets without the conversion instruction
/// turns infinities and NaN into finite numbers, so those targets convert here.
HWY_INLINE F32Vec load_f16(F32 d, const uint16_t* from) {
#if HWY_TARGET <= HWY_AVX2
    const hn::Rebind<hwy::float16_t, F32> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
#else
    const I32 di;
    const hn::Rebind<uint16_t, F32> half;
    const I32Vec bits = hn::PromoteTo(di, hn::LoadU(half, from));
    // As f16_to_f32 of base/dtype.h, subnormals by way of their integer, too.
    const I32Vec integer = hn::And(bits, hn::Set(di, 0x7fff));
    const I32Vec magnitude = hn::ShiftLeft<13>(integer);
    const F32Vec normal = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
    const F32Vec subnormal = hn::Mul(hn::ConvertTo(d, integer), hn::Set(d, 0x1p-24f));
    const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, 0x00800000)));
    const F32Vec value = hn::IfThenElse(is_subnormal, subnormal, normal);
    const I32Vec special =
        hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(di, 0x0f7fffff)), hn::Set(di, 0x7f800000));
    const I32Vec sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(di, 0x8000)));
    return hn::BitCast(d, hn::Or(hn::BitCast(di, value), hn::Or(special, sign)));
#endif
}

/// kLanes bf16 values (raw bits).
HWY_INLINE F32Vec load_bf16(F32 d, const uint16_t* from) {
    const hn::Rebind<uint16_t, F32> half;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(I32(), hn::LoadU(half, from))));
}

/// The first `lanes` < kLanes values at `from`, zeros after them; reads nothing beyond.
HWY_INLINE F32Vec load_first(F32 d, const float* from, size_t lanes) {
    HWY_ALIGN float padded[kLanes] = {};
    for (size_t i = 0; i < lanes; ++i) padded[i] = from[i];
    return hn::Load(d, padded);
}

/// Writes the first `lanes` lanes only.
HWY_INLINE void store_first(F32 d, F32Vec v, float* to, size_t lanes) {
    HWY_ALIGN float padded[kLanes];
    hn::Store(v, d, padded);
    for (size_t i = 0; i < lanes; ++i) to[i] = padded[i];
}

/// Sum of all lanes by halving: one fixed tree per target.
HWY_INLINE float sum_of(F32 d, F32Vec v) {
    return hn::GetLane(hn::SumOfLanes(d, v));
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
