#include <cmath>

#include "kernels/swiglu/swiglu.h"

namespace kd {

void swiglu_ref(const SwigluParams& params) {
    for (int64_t row = 0; row < params.rows; ++row) {
        const float* gate = params.gate_up + row * 2 * params.columns;
        const float* up = gate + params.columns;
        for (int64_t c = 0; c < params.columns; ++c) {
            const double g = gate[c];
            params.y[row * params.columns + c] =
                static_cast<float>(g / (1.0 + std::exp(-g)) * up[c]);
        }
    }
}

}  // namespace kd
