#include "kernels/moe_experts/moe_experts.h"

#include "kernels/moe_experts/moe_experts_parts.h"
#include "kernels/simd/grain.h"

namespace kd {

// The reference on ranges of its work, with the same result to the bit.
void moe_experts(const MoeExpertsParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return moe_experts_ref(params);
    check_moe_experts(params);
    stream.threads->parallel_for(params.rows * params.used, 1, [&](int64_t begin, int64_t end) {
        moe_experts_activate(params, begin, end);
    });
    const int64_t column_values = params.rows * params.used * params.intermediate;
    stream.threads->parallel_for(
        params.hidden, rows_per_chunk(column_values, 8192),
        [&](int64_t begin, int64_t end) { moe_experts_combine(params, begin, end); });
}

}  // namespace kd
