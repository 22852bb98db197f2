// Cases of kv_move, for tests and benchmarks. The result is exact.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/kv_view.h"

namespace kd {

struct KvMoveCase {
    const char* name;
    DType type;
    int32_t layers;
    int64_t slots;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t moves;
    uint32_t seed;
    KvRows rows = KvRows::keys_and_values;
};

std::span<const KvMoveCase> kv_move_cases();

/// The cache of a case, without memory.
KvView kv_move_view(const KvMoveCase& test);

int64_t kv_move_bytes(const KvMoveCase& test);
double kv_move_flops(const KvMoveCase& test);

}  // namespace kd
