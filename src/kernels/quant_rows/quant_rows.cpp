#include "kernels/quant_rows/quant_rows.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quant_rows/quant_rows.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// 32 values of one row to that row of a tile.
HWY_INLINE void quant_block(const float* x, QuantTile& tile, int64_t row) {
    const F32 d;
    const I32 di;
    const hn::Rebind<int8_t, F32> bytes;
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
            q = hn::NearestInt(hn::Min(hn::Set(d, 127.0f), hn::Max(hn::Set(d, -127.0f), ratio)));
        }
        sums = hn::Add(sums, q);
        hn::StoreU(hn::DemoteTo(bytes, q), bytes, tile.q[row] + i);
    }
    const int32_t sum = hn::GetLane(hn::SumOfLanes(di, sums));
    tile.scale[row] = scale;
    tile.sum[row] = sum;
    tile.scaled_sum[row] = scale * static_cast<float>(sum);
}

void quant_tiles(const QuantRowsParams& params, int64_t begin, int64_t end) {
    const QuantRows& out = params.out;
    const int64_t blocks = out.columns / 32;
    for (int64_t t = begin; t < end; ++t) {
        const int64_t first = t / blocks * kQuantTileRows;
        const int64_t rows = std::min(kQuantTileRows, out.rows - first);
        for (int64_t r = 0; r < rows; ++r) {
            const float* x = params.x + (first + r) * out.columns + t % blocks * 32;
            quant_block(x, out.tiles[t], r);
        }
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(quant_tiles);

namespace {

constexpr int64_t kChunkBlocks = 72;  // of one row each; less than a microsecond

int64_t tile_count(int64_t rows, int64_t columns) {
    return (rows + kQuantTileRows - 1) / kQuantTileRows * (columns / 32);
}

}  // namespace

size_t QuantRows::bytes(int64_t rows, int64_t columns) {
    return static_cast<size_t>(tile_count(rows, columns)) * sizeof(QuantTile);
}

QuantRows QuantRows::in(std::byte* memory, int64_t rows, int64_t columns) {
    KD_CHECK(rows >= 0 && columns % 32 == 0, "quantised rows [{}, {}]", rows, columns);
    return {.rows = rows, .columns = columns, .tiles = reinterpret_cast<QuantTile*>(memory)};
}

void quant_rows(const QuantRowsParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return quant_rows_ref(params);
    // Threads share whole tiles: two that write rows of one would take its cache lines from each
    // other.
    const int64_t tiles = tile_count(params.out.rows, params.out.columns);
    const int64_t grain = kChunkBlocks / std::clamp<int64_t>(params.out.rows, 1, kQuantTileRows);
    stream.threads->parallel_for(tiles, grain, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(quant_tiles)(params, begin, end);
    });
}

}  // namespace kd
#endif
