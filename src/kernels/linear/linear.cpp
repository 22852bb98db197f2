#include "kernels/linear/linear.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/linear/linear_packed.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/linear.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/linear/linear_tiles_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// Rows that a chunk's panels are multiplied with before the next rows are.
constexpr int64_t kBlockRows = 64;

/// y = sums + bias + residual for the outputs of one panel, in that order.
HWY_INLINE void finish(const LinearParams& params, const Sums& sums, int64_t row, int64_t rows,
                       int64_t output, int64_t outputs) {
    const F32 d;
    const int64_t stride = params.weights->rows();
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (row + r) * stride + output;
        int64_t n = 0;
        for (; n + static_cast<int64_t>(kLanes) <= outputs; n += static_cast<int64_t>(kLanes)) {
            F32Vec y = hn::Load(d, sums.at[r] + n);
            if (params.bias != nullptr) y = hn::Add(y, hn::LoadU(d, params.bias + output + n));
            if (params.residual != nullptr) y = hn::Add(y, hn::LoadU(d, params.residual + at + n));
            hn::StoreU(y, d, params.y + at + n);
        }
        for (; n < outputs; ++n) {
            float y = sums.at[r][n];
            if (params.bias != nullptr) y += params.bias[output + n];
            if (params.residual != nullptr) y += params.residual[at + n];
            params.y[at + n] = y;
        }
    }
}

/// Panels [begin, end) for all rows: by blocks of rows that the second-level cache holds beside the
/// panels, and in these the panel outside, so that it comes from memory once and from the
/// first-level cache for every further tile of rows.
void linear_panels(const LinearParams& params, int64_t begin, int64_t end) {
    const LinearWeights::Packed& packed = params.weights->packed();
    Sums sums;
    for (const PanelGroup& group : packed.groups) {
        const int64_t first = std::max<int64_t>(0, begin - group.first_panel);
        const int64_t last = std::min(group.panels, end - group.first_panel);
        for (int64_t block = 0; block < params.rows; block += kBlockRows) {
            const int64_t block_end = std::min(block + kBlockRows, params.rows);
            for (int64_t p = first; p < last; ++p) {
                const std::byte* panel = packed.panel(group, p);
                const int64_t output = group.first_output + p * kPanelOutputs;
                const int64_t outputs = std::min(kPanelOutputs, group.outputs - p * kPanelOutputs);
                for (int64_t row = block; row < block_end; row += kTileRows) {
                    const int64_t rows = std::min(kTileRows, block_end - row);
                    run_tile(params, group.type, panel, row, rows, sums);
                    finish(params, sums, row, rows, output, outputs);
                }
            }
        }
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(linear_panels);

namespace {

// What a thread takes at a time: small enough that the last chunk does not keep the others waiting
// (a few microseconds of memory traffic), large enough that the hand-out does not count.
constexpr int64_t kChunkBytes = 96 * 1024;
constexpr int64_t kChunksPerThread = 8;

int64_t panels_per_chunk(const LinearWeights::Packed& packed, int threads) {
    const int64_t panel_bytes = static_cast<int64_t>(packed.bytes) / packed.panels;
    const int64_t balanced = packed.panels / (int64_t{threads} * kChunksPerThread);
    return std::max<int64_t>(1, std::min(balanced, kChunkBytes / panel_bytes));
}

}  // namespace

void linear(const LinearParams& params, Stream& stream) {
    const LinearWeights::Packed& packed = params.weights->packed();
    if (stream.kernels == Kernels::reference) {
        stream.threads->parallel_for(packed.rows, 8, [&](int64_t begin, int64_t end) {
            linear_ref_outputs(params, begin, end);
        });
        return;
    }
    if (params.weights->wants_quantised_rows()) {
        KD_CHECK(params.quantised != nullptr && params.quantised->columns == packed.columns &&
                     params.quantised->rows >= params.rows,
                 "{} rows quantised in {} columns", params.rows, packed.columns);
    } else {
        KD_CHECK(params.x != nullptr, "float rows");
    }
    const int64_t grain = panels_per_chunk(packed, stream.threads->threads());
    stream.threads->parallel_for(packed.panels, grain, [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(linear_panels)(params, begin, end);
    });
}

}  // namespace kd
#endif
