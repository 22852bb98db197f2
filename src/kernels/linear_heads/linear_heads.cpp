#include "kernels/linear_heads/linear_heads.h"

namespace kd {

// The reference on single heads, with the same result to the bit.
void linear_heads(const LinearHeadsParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return linear_heads_ref(params);
    stream.threads->parallel_for(params.rows * params.heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t each = begin; each < end; ++each) {
            LinearHeadsParams one = params;
            one.rows = 1;
            one.heads = 1;
            one.weights += each % params.heads * params.outputs * params.inputs;
            one.x += each * params.x_stride;
            one.y += each * params.y_stride;
            linear_heads_ref(one);
        }
    });
}

}  // namespace kd
