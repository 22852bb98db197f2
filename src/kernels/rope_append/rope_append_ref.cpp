#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/rope_append/rope_append.h"

namespace kd {

void rope_angles(std::span<const int32_t> positions, const RopeTable& table, float* angles) {
    for (const int32_t position : positions) {
        for (const double frequency : table.inverse_frequency) {
            *angles++ = static_cast<float>(std::cos(position * frequency) * table.magnitude);
            *angles++ = static_cast<float>(std::sin(position * frequency) * table.magnitude);
        }
    }
}

namespace {

void rotate(float* head, const RopeAppendParams& params, const float* angles) {
    const int32_t pairs = params.rotated / 2;
    for (int32_t i = 0; i < pairs; ++i) {
        const bool adjacent = params.pairing == RopePairing::adjacent;
        float& first = head[adjacent ? 2 * i : i];
        float& second = head[adjacent ? 2 * i + 1 : i + pairs];
        const double c = angles[2 * i];
        const double s = angles[2 * i + 1];
        const double a = first;
        const double b = second;
        first = static_cast<float>(a * c - b * s);
        second = static_cast<float>(a * s + b * c);
    }
}

void write_row(DType type, const float* from, int64_t values, std::byte* to) {
    if (type == DType::f32) {
        std::memcpy(to, from, static_cast<size_t>(values) * sizeof(float));
        return;
    }
    KD_CHECK(type == DType::f16, "K/V cache of {}", name_of(type));
    for (int64_t i = 0; i < values; ++i) {
        const uint16_t bits = f32_to_f16(from[i]);
        std::memcpy(to + 2 * i, &bits, sizeof bits);
    }
}

}  // namespace

void rope_append_ref(const RopeAppendParams& params) {
    const int64_t q_width = int64_t{params.heads} * params.head_dim;
    const int64_t kv_width = int64_t{params.kv_heads} * params.head_dim;
    const KvLayer layer = params.kv.layer(params.layer);
    std::vector<float> k(static_cast<size_t>(kv_width));
    for (int64_t row = 0; row < params.rows; ++row) {
        float* q = params.qkv + row * (q_width + 2 * kv_width);
        const float* angles = params.angles + row * params.rotated;
        const int64_t slot = params.slots[static_cast<size_t>(row)];
        KD_CHECK(slot >= 0 && slot < params.kv.slots, "slot {} of {}", slot, params.kv.slots);
        std::copy_n(q + q_width, kv_width, k.data());
        for (int32_t h = 0; h < params.heads; ++h) rotate(q + h * params.head_dim, params, angles);
        for (int32_t h = 0; h < params.kv_heads; ++h) {
            rotate(k.data() + h * params.head_dim, params, angles);
        }
        if (kv_width == 0) continue;
        const int64_t at = slot * params.kv.row_bytes();
        write_row(params.kv.type, k.data(), kv_width, layer.k + at);
        write_row(params.kv.type, q + q_width + kv_width, kv_width, layer.v + at);
    }
}

}  // namespace kd
