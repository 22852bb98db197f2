#include "kernels/kv_move/kv_move_cuda_ref.h"

#include <cstddef>
#include <cstring>
#include <vector>

namespace kd {

void kv_move_cuda_ref(const kdt_kv_move_params& params) {
    const int32_t moves = params.move_count == nullptr ? params.max_moves : *params.move_count;
    const auto row_bytes = static_cast<size_t>(params.row_bytes);
    std::vector<std::byte> rows(static_cast<size_t>(moves) * row_bytes);
    for (int32_t b = 0; b < params.buffers; ++b) {
        auto* buffer = static_cast<std::byte*>(params.buffer[b]);
        for (int32_t i = 0; i < moves; ++i) {
            std::memcpy(rows.data() + static_cast<size_t>(i) * row_bytes,
                        buffer + params.from[i] * params.slot_stride_bytes, row_bytes);
        }
        for (int32_t i = 0; i < moves; ++i) {
            std::memcpy(buffer + params.to[i] * params.slot_stride_bytes,
                        rows.data() + static_cast<size_t>(i) * row_bytes, row_bytes);
        }
    }
}

}  // namespace kd
