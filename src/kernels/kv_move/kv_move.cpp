#include "kernels/kv_move/kv_move.h"

#include <algorithm>

namespace kd {

namespace {

constexpr int64_t kChunkBytes = 64 * 1024;

}  // namespace

// Plain copies: the reference on ranges of layers.
void kv_move(const KvMoveParams& params, Stream& stream) {
    const KvView& kv = params.kv;
    const int64_t layer_bytes =
        kv.planes() * kv.row_bytes() * static_cast<int64_t>(params.moves.from.size());
    const int64_t grain = std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, layer_bytes));
    stream.threads->parallel_for(kv.layers, grain, [&](int64_t begin, int64_t end) {
        KvMoveParams part = params;
        part.kv.data = kv.layer(static_cast<int32_t>(begin)).k;
        part.kv.layers = static_cast<int32_t>(end - begin);
        kv_move_ref(part);
    });
}

}  // namespace kd
