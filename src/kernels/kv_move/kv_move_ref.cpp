#include <cstring>

#include "base/check.h"
#include "kernels/kv_move/kv_move.h"

namespace kd {

void kv_move_ref(const KvMoveParams& params) {
    const KvView& kv = params.kv;
    const MoveList& moves = params.moves;
    KD_CHECK(moves.from.size() == moves.to.size(), "{} sources, {} targets", moves.from.size(),
             moves.to.size());
    const int64_t row_bytes = kv.row_bytes();
    for (int32_t layer = 0; layer < kv.layers; ++layer) {
        const KvLayer rows = kv.layer(layer);
        for (size_t i = 0; i < moves.from.size(); ++i) {
            const int64_t from = moves.from[i];
            const int64_t to = moves.to[i];
            KD_CHECK(from >= 0 && from < kv.slots && to >= 0 && to < kv.slots,
                     "move {} -> {} in {} slots", from, to, kv.slots);
            std::memcpy(rows.k + to * row_bytes, rows.k + from * row_bytes,
                        static_cast<size_t>(row_bytes));
            if (rows.v == nullptr) continue;
            std::memcpy(rows.v + to * row_bytes, rows.v + from * row_bytes,
                        static_cast<size_t>(row_bytes));
        }
    }
}

}  // namespace kd
