// quant_rows: activations as int8 in blocks of 32 columns, once per row before the linear layers
// that read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/stream.h"

namespace kd {

/// Rows whose blocks lie together, so that a kernel reaches all of them from one address.
inline constexpr int64_t kQuantTileRows = 8;

/// One block of 32 columns of kQuantTileRows rows: x ~ scale * q. `sum` holds the exact integer sum
/// of each row's q, which the linear op needs for weights with an offset; `scaled_sum` is for
/// weights with a minimum.
struct QuantTile {
    int8_t q[kQuantTileRows][32];  // in -127..127
    float scale[kQuantTileRows];
    int32_t sum[kQuantTileRows];
    float scaled_sum[kQuantTileRows];  // scale * sum
};

/// Rows in tiles; those that a last tile has beyond `rows` are never touched.
struct QuantRows {
    int64_t rows = 0;
    int64_t columns = 0;         // a multiple of 32
    QuantTile* tiles = nullptr;  // [rows / kQuantTileRows, rounded up][columns / 32]

    /// The tile that has a block of `row`, there as row % kQuantTileRows.
    QuantTile& tile(int64_t row, int64_t block) const {
        return tiles[row / kQuantTileRows * (columns / 32) + block];
    }

    static size_t bytes(int64_t rows, int64_t columns);
    /// In `memory`, 64-byte aligned, at least bytes(rows, columns).
    static QuantRows in(std::byte* memory, int64_t rows, int64_t columns);
};

struct QuantRowsParams {
    const float* x = nullptr;  // [rows, columns]
    QuantRows out;
};

/// scale = max|x| / 127 of the block, q = round to nearest even of x / scale (both divisions in
/// float); all zero where the scale is 0. A NaN or infinity in x makes the block's scale and
/// scaled_sum NaN and its q and sum 0 (it must not pass unseen).
void quant_rows(const QuantRowsParams& params, Stream& stream);
void quant_rows_ref(const QuantRowsParams& params);

}  // namespace kd
