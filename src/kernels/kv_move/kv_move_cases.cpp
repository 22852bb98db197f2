#include "kernels/kv_move/kv_move_cases.h"

namespace kd {

std::span<const KvMoveCase> kv_move_cases() {
    static constexpr KvMoveCase kCases[] = {
        {"none", DType::f16, 2, 8, 1, 8, 0, 1},
        {"commit", DType::f16, 30, 256, 3, 64, 4, 2},
        {"commit_f32", DType::f32, 5, 64, 3, 64, 3, 3},
        {"relocate", DType::f16, 3, 512, 2, 72, 200, 4},
    };
    return kCases;
}

int64_t kv_move_bytes(const KvMoveCase& test) {
    return int64_t{test.layers} * 2 * test.moves *
           bytes_of(test.type, int64_t{test.kv_heads} * test.head_dim) * 2;
}

double kv_move_flops(const KvMoveCase&) {
    return 0;
}

}  // namespace kd
