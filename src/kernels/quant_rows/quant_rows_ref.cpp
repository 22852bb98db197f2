#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/quant_rows/quant_rows.h"

namespace kd {

void quant_rows_ref(const QuantRowsParams& params) {
    const QuantRows& out = params.out;
    const int64_t blocks = out.columns / 32;
    for (int64_t at = 0; at < out.rows * blocks; ++at) {
        const float* x = params.x + at * 32;
        QuantTile& tile = out.tile(at / blocks, at % blocks);
        const int64_t r = at / blocks % kQuantTileRows;
        int8_t* q = tile.q[r];
        float largest = 0;
        bool finite = true;
        for (int i = 0; i < 32; ++i) {
            largest = std::max(largest, std::fabs(x[i]));
            finite = finite && std::isfinite(x[i]);
        }
        const float scale = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
        int32_t sum = 0;
        for (int i = 0; i < 32; ++i) {
            q[i] = 0;
            if (finite && scale > 0) {
                // The scale of a block of subnormals may be rounded far down: hence the clamp.
                q[i] = static_cast<int8_t>(std::clamp(std::nearbyint(x[i] / scale), -127.f, 127.f));
            }
            sum += q[i];
        }
        tile.scale[r] = scale;
        tile.sum[r] = sum;
        tile.scaled_sum[r] = scale * static_cast<float>(sum);
    }
}

}  // namespace kd
