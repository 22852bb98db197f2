// Element types of weights and caches, their block geometry, and the conversions of small floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kd {

enum class DType : uint8_t {
    f32,
    f16,
    bf16,
    q8_0,
    q4_0,
    q4_1,
    q4_k,
    q6_k,
    q5_0,
    q5_1,
    q5_k,
    iq4_nl,
    f8_e4m3,
    int4
};

/// Weights per block: 1 for the floats, 256 for the K-quants, 32 for all others.
constexpr int64_t block_elements(DType type) {
    switch (type) {
        case DType::f32:
        case DType::f16:
        case DType::bf16:
        case DType::f8_e4m3:
            return 1;
        case DType::q8_0:
        case DType::q4_0:
        case DType::q4_1:
        case DType::q5_0:
        case DType::q5_1:
        case DType::iq4_nl:
        case DType::int4:
            return 32;
        case DType::q4_k:
        case DType::q5_k:
        case DType::q6_k:
            return 256;
    }
    return 0;
}

/// Bytes of one block. What they hold: quant_blocks.h; for f8_e4m3 see f8_e4m3_to_f32 below.
constexpr int64_t block_bytes(DType type) {
    switch (type) {
        case DType::f32:
            return 4;
        case DType::f16:
        case DType::bf16:
            return 2;
        case DType::f8_e4m3:
            return 1;
        case DType::q8_0:
            return 34;
        case DType::q4_0:
        case DType::iq4_nl:
            return 18;
        case DType::q4_1:
            return 20;
        case DType::q5_0:
            return 22;
        case DType::q5_1:
            return 24;
        case DType::int4:
            return 16;
        case DType::q4_k:
            return 144;
        case DType::q5_k:
            return 176;
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
/// OCP E4M3 (float8_e4m3fn): bias 7, largest 448, 0x7f and 0xff are NaN, no infinity.
float f8_e4m3_to_f32(uint8_t bits);

/// Dequantises `elements` weights (a multiple of the block) from `data`, at any address, to `out`.
/// The weights of f8_e4m3 and int4 are those before scales that lie beside the matrix.
void dequantise(DType type, const std::byte* data, int64_t elements, float* out);

/// Scales that lie beside a matrix [rows, columns], one for each block of block_rows x
/// block_columns, the last ones being cut off: row-major [ceil(rows / block_rows), ceil(columns /
/// block_columns)], at any address. A weight is the dequantised element times its scale.
struct BlockScales {
    const std::byte* data = nullptr;  // null: none, all scales are 1
    DType type = DType::f32;          // f32, f16 or bf16
    int32_t block_rows = 1;
    int32_t block_columns = 1;

    int64_t blocks_across(int64_t columns) const {
        return (columns + block_columns - 1) / block_columns;
    }
    int64_t count(int64_t rows, int64_t columns) const {
        return (rows + block_rows - 1) / block_rows * blocks_across(columns);
    }
    /// Of element (row, column) of a matrix of `columns`; 1 where there are none.
    float at(int64_t row, int64_t column, int64_t columns) const;
};

}  // namespace kd
