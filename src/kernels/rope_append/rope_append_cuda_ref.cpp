#include "kernels/rope_append/rope_append_cuda_ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtype.h"

namespace kd {

uint8_t e4m3_from(double value) {
    if (std::isnan(value)) return 0x7f;
    const uint8_t sign = std::signbit(value) ? 0x80 : 0;
    const double magnitude = std::min(std::fabs(value), 448.0);
    // Three bits behind the leading one, no exponent below 2^-6 (there the values are subnormal).
    const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
    const double steps = std::nearbyint(std::ldexp(magnitude, 3 - exponent));  // 0..16
    // 8 steps are the leading one; 16 carry into the exponent; below 8: subnormal, field 0.
    return sign | static_cast<uint8_t>((exponent + 6) * 8 + static_cast<int>(steps));
}

double e4m3_value(uint8_t bits) {
    const int exponent = bits >> 3 & 15;
    const int mantissa = bits & 7;
    const double sign = bits & 0x80 ? -1 : 1;
    if (exponent == 15 && mantissa == 7) return std::nan("");
    if (exponent == 0) return sign * std::ldexp(mantissa, -9);
    return sign * std::ldexp(8 + mantissa, exponent - 10);
}

int32_t rope_partner(const kdt_rope_append_params& params, int32_t index) {
    if (index >= params.rotated) return index;
    if (params.pairing == KDT_ROPE_ADJACENT) return index ^ 1;
    const int32_t half = params.rotated / 2;
    return index < half ? index + half : index - half;
}

double rotated_value(const kdt_rope_append_params& params, const uint16_t* head, int32_t position,
                     int32_t index) {
    const int32_t partner = rope_partner(params, index);
    const double own = bf16_to_f32(head[index]);
    if (partner == index) return own;
    const int32_t first = std::min(index, partner);
    const int32_t pair = params.pairing == KDT_ROPE_ADJACENT ? first / 2 : first;
    const double angle = double{params.inverse_frequency[pair]} * position;
    const double cosine = std::cos(angle) * params.attention_factor;
    const double sine = std::sin(angle) * params.attention_factor;
    const double other = bf16_to_f32(head[partner]);
    return own * cosine + (index == first ? -other : other) * sine;
}

namespace {

uint16_t bf16_from(double value) {
    return f32_to_bf16(static_cast<float>(value));
}

uint8_t scaled_e4m3(double value, float scale) {
    return e4m3_from(static_cast<float>(value / scale));
}

/// Writes `values` values of a head, rotated or as they are, to `to` in the cache's plain formats.
void write_head(const kdt_rope_append_params& params, const uint16_t* head, int32_t values,
                bool rotates, int32_t position, bool fp8, float scale, std::byte* to) {
    for (int32_t i = 0; i < values; ++i) {
        const double value =
            rotates ? rotated_value(params, head, position, i) : double{bf16_to_f32(head[i])};
        if (fp8) {
            to[i] = static_cast<std::byte>(scaled_e4m3(value, scale));
        } else {
            const uint16_t bits = bf16_from(value);
            std::memcpy(to + 2 * i, &bits, sizeof bits);
        }
    }
}

/// FlashMLA's row: 512 e4m3, 4 scales, 64 bf16.
void write_mla656(const kdt_rope_append_params& params, const uint16_t* latent,
                  const uint16_t* rope, int32_t position, std::byte* to) {
    for (int32_t group = 0; group < 4; ++group) {
        const uint16_t* values = latent + 128 * group;
        double largest = 0;
        for (int32_t i = 0; i < 128; ++i) {
            largest = std::max(largest, std::fabs(double{bf16_to_f32(values[i])}));
        }
        const float scale = largest > 0 ? static_cast<float>(largest / 448) : 1.0f;
        write_head(params, values, 128, false, position, true, scale, to + 128 * group);
        std::memcpy(to + 512 + 4 * group, &scale, sizeof scale);
    }
    write_head(params, rope, 64, true, position, false, 1, to + 528);
}

}  // namespace

void rope_append_cuda_ref(const kdt_rope_append_params& params) {
    const bool mla = params.kind == KDT_ATTN_MLA;
    const bool fp8 = params.kv_format == KDT_KV_FP8;
    const int64_t value_bytes = params.kv_format == KDT_KV_BF16 ? 2 : 1;
    const int32_t q_values = mla ? 64 : params.head_dim;
    const int32_t rows =
        params.row_count == nullptr ? params.rows : std::min(params.rows, *params.row_count);
    for (int32_t row = 0; row < rows; ++row) {
        const int64_t slot = params.slots[row];
        if (slot < 0) continue;
        const int32_t position = params.positions[row];
        for (int32_t h = 0; h < params.heads; ++h) {
            uint16_t* q = static_cast<uint16_t*>(params.q) + row * params.q_row_stride +
                          h * params.q_head_stride;
            uint16_t before[256];
            std::copy_n(q, q_values, before);
            for (int32_t i = 0; i < q_values; ++i) {
                q[i] = bf16_from(rotated_value(params, before, position, i));
            }
        }
        const uint16_t* k = static_cast<const uint16_t*>(params.k) + row * params.k_row_stride;
        const uint16_t* v = static_cast<const uint16_t*>(params.v) + row * params.v_row_stride;
        const int64_t at = slot * params.kv_slot_stride * value_bytes;
        std::byte* k_row = static_cast<std::byte*>(params.k_cache) + at;
        if (params.kv_format == KDT_KV_FP8_MLA656) {
            write_mla656(params, k, v, position, k_row);
        } else if (mla) {
            write_head(params, k, 512, false, position, fp8, params.k_scale, k_row);
            write_head(params, v, 64, true, position, fp8, params.k_scale,
                       k_row + 512 * value_bytes);
        } else {
            std::byte* v_row = static_cast<std::byte*>(params.v_cache) + at;
            for (int32_t h = 0; h < params.kv_heads; ++h) {
                const int64_t head = h * params.kv_head_stride * value_bytes;
                const int32_t from = h * params.head_dim;
                write_head(params, k + from, params.head_dim, true, position, fp8, params.k_scale,
                           k_row + head);
                write_head(params, v + from, params.head_dim, false, position, fp8, params.v_scale,
                           v_row + head);
            }
        }
    }
}

}  // namespace kd
