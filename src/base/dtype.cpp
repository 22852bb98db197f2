#include "base/dtype.h"

#include <bit>
#include <cstring>

#include "base/quant_blocks.h"

namespace kd {

namespace {

uint16_t read_u16(const std::byte* data) {
    uint16_t bits;
    std::memcpy(&bits, data, sizeof bits);
    return bits;
}

uint8_t read_u8(const std::byte* data) {
    return static_cast<uint8_t>(*data);
}

void dequantise_block(DType type, const std::byte* data, float* out) {
    const QuantBlock block = read_quant_block(type, data);
    const float d = f16_to_f32(block.d_bits);
    for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(block.q[i]);
    if (!has_block_minimum(type)) return;
    const float m = f16_to_f32(block.m_bits);
    for (size_t i = 0; i < 32; ++i) out[i] += m;
}

void dequantise_affine(DType type, const std::byte* data, float* out) {
    const AffineSuperblock block = read_affine_superblock(type, data);
    const float d = f16_to_f32(block.d_bits);
    const float dmin = f16_to_f32(block.dmin_bits);
    // Both products are exact (11 + 6 + 5 bits); the difference is the only rounding.
    for (size_t i = 0; i < 256; ++i) {
        out[i] = d * block.scale[i / 32] * block.q[i] - dmin * block.minimum[i / 32];
    }
}

void dequantise_q6_k(const std::byte* data, float* out) {
    const Q6KBlock block = read_q6_k(data);
    const float d = f16_to_f32(block.d_bits);
    // Exact: 11 + 7 + 5 bits.
    for (size_t i = 0; i < 256; ++i) out[i] = d * block.scale[i / 16] * block.q[i];
}

}  // namespace

std::string_view name_of(DType type) {
    switch (type) {
        case DType::f32:
            return "F32";
        case DType::f16:
            return "F16";
        case DType::bf16:
            return "BF16";
        case DType::q8_0:
            return "Q8_0";
        case DType::q4_0:
            return "Q4_0";
        case DType::q4_1:
            return "Q4_1";
        case DType::q4_k:
            return "Q4_K";
        case DType::q6_k:
            return "Q6_K";
        case DType::q5_0:
            return "Q5_0";
        case DType::q5_1:
            return "Q5_1";
        case DType::q5_k:
            return "Q5_K";
        case DType::iq4_nl:
            return "IQ4_NL";
        case DType::f8_e4m3:
            return "F8_E4M3";
        case DType::int4:
            return "INT4";
    }
    return "?";
}

float f16_to_f32(uint16_t bits) {
    // Exponent and mantissa at their float places are 2^112 too small; without a branch, so that
    // rows become vector code. Subnormals by way of their integer: as float bits they would be
    // subnormal, too, and a host may have told its threads to take those for zero.
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
    const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    const float normal = std::bit_cast<float>(magnitude) * 0x1p112f;
    const float subnormal = static_cast<float>(static_cast<int32_t>(bits & 0x7fff)) * 0x1p-24f;
    const float value = magnitude < 0x00800000u ? subnormal : normal;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | special | sign);
}

uint16_t f32_to_f16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to infinity
    if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal or zero
        // Adding 0.5 aligns the last kept bit with float's last bit, so the addition rounds.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float bf16_to_f32(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t f32_to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f8_e4m3_to_f32(uint8_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
    const uint32_t exponent = (bits >> 3) & 15u;
    const uint32_t mantissa = bits & 7u;
    if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
    if (exponent != 0) {
        return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
    }
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;  // zero and subnormals
    return sign != 0 ? -magnitude : magnitude;
}

void dequantise(DType type, const std::byte* data, int64_t elements, float* out) {
    const int64_t blocks = elements / block_elements(type);
    const int64_t bytes = block_bytes(type);
    switch (type) {
        case DType::f32:
            std::memcpy(out, data, static_cast<size_t>(elements) * 4);
            return;
        case DType::f16:
            for (int64_t i = 0; i < elements; ++i) out[i] = f16_to_f32(read_u16(data + 2 * i));
            return;
        case DType::bf16:
            for (int64_t i = 0; i < elements; ++i) out[i] = bf16_to_f32(read_u16(data + 2 * i));
            return;
        case DType::f8_e4m3:
            for (int64_t i = 0; i < elements; ++i) out[i] = f8_e4m3_to_f32(read_u8(data + i));
            return;
        case DType::q8_0:
        case DType::q4_0:
        case DType::q4_1:
        case DType::q5_0:
        case DType::q5_1:
        case DType::iq4_nl:
        case DType::int4:
            for (int64_t b = 0; b < blocks; ++b) {
                dequantise_block(type, data + b * bytes, out + 32 * b);
            }
            return;
        case DType::q4_k:
        case DType::q5_k:
            for (int64_t b = 0; b < blocks; ++b) {
                dequantise_affine(type, data + b * bytes, out + 256 * b);
            }
            return;
        case DType::q6_k:
            for (int64_t b = 0; b < blocks; ++b) dequantise_q6_k(data + b * bytes, out + 256 * b);
            return;
    }
}

float BlockScales::at(int64_t row, int64_t column, int64_t columns) const {
    if (data == nullptr) return 1;
    const int64_t index = row / block_rows * blocks_across(columns) + column / block_columns;
    float scale;
    dequantise(type, data + bytes_of(type, index), 1, &scale);
    return scale;
}

}  // namespace kd
