#include <cmath>

#include "kernels/rmsnorm/rmsnorm.h"

namespace kd {

void rmsnorm_ref(const RmsnormParams& params) {
    for (int64_t v = 0; v < params.vectors(); ++v) {
        const float* x = params.x + params.offset(v);
        float* y = params.y + params.offset(v);
        double squares = 0;
        for (int64_t c = 0; c < params.columns; ++c) squares += double{x[c]} * x[c];
        const double mean = squares / static_cast<double>(params.columns);
        const double inverse = 1.0 / std::sqrt(mean + params.epsilon);
        for (int64_t c = 0; c < params.columns; ++c) {
            y[c] = static_cast<float>(x[c] * inverse * params.weight[c]);
        }
    }
}

}  // namespace kd
