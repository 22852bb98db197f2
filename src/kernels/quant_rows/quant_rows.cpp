#include "kernels/quant_rows/quant_rows.h"

#include <limits>

#include "base/check.h"
#include "kernels/simd/grain.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quant_rows/quant_rows.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// Blocks [begin, end) of 32 values, counted over all rows.
void quant_blocks(const QuantRowsParams& params, int64_t begin, int64_t end) {
    const F32 d;
    const I32 di;
    const hn::Rebind<int8_t, F32> bytes;
    const QuantRows& out = params.out;
    for (int64_t block = begin; block < end; ++block) {
        const float* x = params.x + block * 32;
        // Magnitudes compare as integers, and NaN and infinity are the largest of them.
        I32Vec largest = hn::Zero(di);
        for (size_t i = 0; i < 32; i += kLanes) {
            largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
        }
        const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, largest));
        const bool finite = bits < 0x7f800000;
        const float scale = finite ? hn::GetLane(hn::BitCast(d, hn::Set(di, bits))) / 127.0f
                                   : std::numeric_limits<float>::quiet_NaN();
        I32Vec sums = hn::Zero(di);
        const F32Vec divisor = hn::Set(d, scale);
        for (size_t i = 0; i < 32; i += kLanes) {
            I32Vec q = hn::Zero(di);
            if (finite && scale > 0) {
                const F32Vec ratio = hn::Div(hn::LoadU(d, x + i), divisor);
                q = hn::NearestInt(
                    hn::Min(hn::Set(d, 127.0f), hn::Max(hn::Set(d, -127.0f), ratio)));
            }
            sums = hn::Add(sums, q);
            hn::StoreU(hn::DemoteTo(bytes, q), bytes, out.q + block * 32 + i);
        }
        const int32_t sum = hn::GetLane(hn::SumOfLanes(di, sums));
        out.scale[block] = scale;
        out.sum[block] = sum;
        out.scaled_sum[block] = scale * static_cast<float>(sum);
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(quant_blocks);

namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kChunkBlocks = 256;

constexpr size_t aligned(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

size_t QuantRows::bytes(int64_t rows, int64_t columns) {
    const size_t values = static_cast<size_t>(rows * columns);
    return aligned(values) + 3 * aligned(values / 32 * sizeof(float));
}

QuantRows QuantRows::in(std::byte* memory, int64_t rows, int64_t columns) {
    KD_CHECK(rows >= 0 && columns % 32 == 0, "quantised rows [{}, {}]", rows, columns);
    const size_t values = static_cast<size_t>(rows * columns);
    const size_t per_block = aligned(values / 32 * sizeof(float));
    std::byte* blocks = memory + aligned(values);
    return {.rows = rows,
            .columns = columns,
            .q = reinterpret_cast<int8_t*>(memory),
            .scale = reinterpret_cast<float*>(blocks),
            .sum = reinterpret_cast<int32_t*>(blocks + per_block),
            .scaled_sum = reinterpret_cast<float*>(blocks + 2 * per_block)};
}

void quant_rows(const QuantRowsParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return quant_rows_ref(params);
    const int64_t blocks = params.out.rows * (params.out.columns / 32);
    stream.threads->parallel_for(blocks, kChunkBlocks, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(quant_blocks)(params, begin, end);
    });
}

}  // namespace kd
#endif
