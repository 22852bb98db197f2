#include "kernels/linear_heads/linear_heads.h"

namespace kd {

void linear_heads_ref(const LinearHeadsParams& params) {
    for (int64_t row = 0; row < params.rows; ++row) {
        for (int64_t head = 0; head < params.heads; ++head) {
            const float* x = params.x + (row * params.heads + head) * params.x_stride;
            float* y = params.y + (row * params.heads + head) * params.y_stride;
            for (int64_t o = 0; o < params.outputs; ++o) {
                const float* w = params.weights + (head * params.outputs + o) * params.inputs;
                double sum = 0;
                for (int64_t i = 0; i < params.inputs; ++i) sum += double{w[i]} * x[i];
                y[o] = static_cast<float>(sum);
            }
        }
    }
}

}  // namespace kd
