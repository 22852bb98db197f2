#include "base/dtype.h"

#include <bit>
#include <cstring>

#include "base/kquants.h"

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

void dequantise_q4_k(const Q4KBlock& block, float* out) {
    const float d = f16_to_f32(block.d_bits);
    const float dmin = f16_to_f32(block.dmin_bits);
    // Both products are exact (11 + 6 + 4 bits); the difference is the only rounding.
    for (size_t i = 0; i < 256; ++i) {
        out[i] = d * block.scale[i / 32] * block.q[i] - dmin * block.minimum[i / 32];
    }
}

void dequantise_q6_k(const Q6KBlock& block, float* out) {
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
    }
    return "?";
}

float f16_to_f32(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) {
        return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    }
    // Zero and subnormals: mantissa * 2^-24, exact in float.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
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

void dequantise(DType type, const std::byte* data, int64_t elements, float* out) {
    const int64_t blocks = elements / block_elements(type);
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
        case DType::q8_0:
            for (int64_t b = 0; b < blocks; ++b, data += 34, out += 32) {
                const float scale = f16_to_f32(read_u16(data));
                for (int i = 0; i < 32; ++i) {
                    out[i] = scale * static_cast<float>(static_cast<int8_t>(data[2 + i]));
                }
            }
            return;
        case DType::q4_0:
            for (int64_t b = 0; b < blocks; ++b, data += 18, out += 32) {
                const float scale = f16_to_f32(read_u16(data));
                for (int i = 0; i < 16; ++i) {
                    const int byte = read_u8(data + 2 + i);
                    out[i] = scale * static_cast<float>((byte & 15) - 8);
                    out[i + 16] = scale * static_cast<float>((byte >> 4) - 8);
                }
            }
            return;
        case DType::q4_1:
            for (int64_t b = 0; b < blocks; ++b, data += 20, out += 32) {
                const float scale = f16_to_f32(read_u16(data));
                const float minimum = f16_to_f32(read_u16(data + 2));
                for (int i = 0; i < 16; ++i) {
                    const int byte = read_u8(data + 4 + i);
                    out[i] = scale * static_cast<float>(byte & 15) + minimum;
                    out[i + 16] = scale * static_cast<float>(byte >> 4) + minimum;
                }
            }
            return;
        case DType::q4_k:
            for (int64_t b = 0; b < blocks; ++b) {
                dequantise_q4_k(read_q4_k(data + 144 * b), out + 256 * b);
            }
            return;
        case DType::q6_k:
            for (int64_t b = 0; b < blocks; ++b) {
                dequantise_q6_k(read_q6_k(data + 210 * b), out + 256 * b);
            }
            return;
    }
}

}  // namespace kd
