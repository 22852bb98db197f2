#include "kernels/mla_append/mla_append.h"

#include "kernels/simd/grain.h"

namespace kd {

// The reference on ranges of rows, with the same result to the bit.
void mla_append(const MlaAppendParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return mla_append_ref(params);
    const int64_t latent_row = params.latent + params.rope;
    const int64_t row_values = params.heads * params.rope + latent_row;
    stream.threads->parallel_for(params.rows, rows_per_chunk(row_values, 8192),
                                 [&](int64_t begin, int64_t end) {
                                     MlaAppendParams part = params;
                                     part.rows = end - begin;
                                     part.q += begin * params.heads * params.q_stride;
                                     part.q_latent += begin * params.heads * latent_row;
                                     part.kv += begin * latent_row;
                                     part.angles += begin * params.rope;
                                     part.slots = params.slots.subspan(static_cast<size_t>(begin));
                                     mla_append_ref(part);
                                 });
}

}  // namespace kd
