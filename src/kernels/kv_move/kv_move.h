// kv_move: copies the rows of slots (K and V, or latent rows) in all layers at once: the commit of
// accepted rows, and relocation.
#pragma once

#include "backends/stream.h"
#include "base/views.h"
#include "kernels/kv_view.h"

namespace kd {

struct KvMoveParams {
    KvView kv;
    MoveList moves;  // no slot twice in `to`; no slot of `to` in `from`
};

void kv_move(const KvMoveParams& params, Stream& stream);
void kv_move_ref(const KvMoveParams& params);

}  // namespace kd
