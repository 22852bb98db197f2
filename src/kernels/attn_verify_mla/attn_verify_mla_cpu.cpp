#include "kernels/attn_verify_mla/attn_verify_mla_cpu.h"

#include "kernels/attn_verify_mla/attn_verify_mla_cpu_rows.h"

namespace kd {

// The reference on single heads of rows, with the same result to the bit.
void attn_verify_mla_cpu(const AttnVerifyMlaCpuParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return attn_verify_mla_cpu_ref(params);
    check_attention(params);
    int64_t rows = 0;
    for (const AttnSegment& segment : params.segments) rows += segment.rows;
    stream.threads->parallel_for(rows * params.heads, 1, [&](int64_t begin, int64_t end) {
        attn_verify_mla_cpu_pairs(params, begin, end);
    });
}

}  // namespace kd
