#include "kernels/kv_move/kv_move_cases.h"

namespace kd {

std::span<const KvMoveCase> kv_move_cases() {
    static constexpr KvMoveCase kCases[] = {
        {"none", DType::f16, 2, 8, 1, 8, 0, 1},
        {"commit", DType::f16, 30, 256, 3, 64, 4, 2},
        {"commit_f32", DType::f32, 5, 64, 3, 64, 3, 3},
        {"relocate", DType::f16, 3, 512, 2, 72, 200, 4},
        {"latent", DType::f16, 3, 96, 1, 576, 40, 5, KvRows::latent},
        {"latent_f32", DType::f32, 4, 64, 1, 48, 5, 6, KvRows::latent},
    };
    return kCases;
}

KvView kv_move_view(const KvMoveCase& test) {
    return {.type = test.type,
            .layers = test.layers,
            .slots = test.slots,
            .kv_heads = test.kv_heads,
            .head_dim = test.head_dim,
            .rows = test.rows};
}

int64_t kv_move_bytes(const KvMoveCase& test) {
    const KvView kv = kv_move_view(test);
    return 2 * test.layers * kv.planes() * test.moves * kv.row_bytes();
}

double kv_move_flops(const KvMoveCase&) {
    return 0;
}

}  // namespace kd
