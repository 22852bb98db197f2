// Element types of weights and caches, their block geometry, and the 16-bit float conversions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kd {

enum class DType : uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1, q4_k, q6_k };

/// Weights per block: 1 for the floats, 32 for Q8_0, Q4_0 and Q4_1, 256 for the K-quants.
constexpr int64_t block_elements(DType type) {
    switch (type) {
        case DType::f32:
        case DType::f16:
        case DType::bf16:
            return 1;
        case DType::q8_0:
        case DType::q4_0:
        case DType::q4_1:
            return 32;
        case DType::q4_k:
        case DType::q6_k:
            return 256;
    }
    return 0;
}

/// Bytes of one block. q8_0: f16 scale, 32 int8. q4_0: f16 scale, 16 bytes (element i in the low
/// nibble of byte i, element i+16 in its high nibble), w = d*(q-8). q4_1: f16 scale d, f16 minimum
/// m, 16 bytes, w = d*q + m. q4_k, q6_k: see kquants.h. These are GGUF's layouts.
constexpr int64_t block_bytes(DType type) {
    switch (type) {
        case DType::f32:
            return 4;
        case DType::f16:
        case DType::bf16:
            return 2;
        case DType::q8_0:
            return 34;
        case DType::q4_0:
            return 18;
        case DType::q4_1:
            return 20;
        case DType::q4_k:
            return 144;
        case DType::q6_k:
            return 210;
    }
    return 0;
}

constexpr bool is_quantised(DType type) {
    return block_elements(type) > 1;
}

/// Bytes of `elements` consecutive weights; elements must be a multiple of block_elements(type).
constexpr int64_t bytes_of(DType type, int64_t elements) {
    return elements / block_elements(type) * block_bytes(type);
}

std::string_view name_of(DType type);

/// IEEE binary16 and bfloat16 as raw bits. To 16 bits: round to nearest even, NaN stays NaN.
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);

/// Dequantises `elements` weights (a multiple of the block) from `data` to `out`.
void dequantise(DType type, const std::byte* data, int64_t elements, float* out);

}  // namespace kd
