#include "kernels/moe_route/moe_route.h"

#include "kernels/simd/grain.h"

namespace kd {

// The reference on ranges of rows: next to the experts' matrices the choice costs nothing.
void moe_route(const MoeRouteParams& params, Stream& stream) {
    if (stream.kernels == Kernels::reference) return moe_route_ref(params);
    stream.threads->parallel_for(params.rows, rows_per_chunk(params.experts, 512),
                                 [&](int64_t begin, int64_t end) {
                                     MoeRouteParams part = params;
                                     part.rows = end - begin;
                                     part.logits += begin * params.experts;
                                     part.ids += begin * params.used;
                                     part.weights += begin * params.used;
                                     moe_route_ref(part);
                                 });
}

}  // namespace kd
