// Blocks of quantised weights as integers and their factors. The layouts are ggml's, but for int4.
//
// Blocks of 32. "Nibbles": 16 bytes, element i in the low nibble of byte i, element i + 16 in its
// high one. "Fifth bits": 4 bytes, bit i belongs to element i.
//   Q8_0, 34 bytes: f16 d, 32 int8                       w = d * q
//   Q4_0, 18 bytes: f16 d, nibbles                       w = d * (q - 8)
//   Q4_1, 20 bytes: f16 d, f16 m, nibbles                w = d * q + m
//   Q5_0, 22 bytes: f16 d, fifth bits, nibbles           w = d * (q - 16)
//   Q5_1, 24 bytes: f16 d, f16 m, fifth bits, nibbles    w = d * q + m
//   IQ4_NL, 18 bytes: f16 d, nibbles                     w = d * kIq4NlValues[q]
//   INT4, 16 bytes: element 2i in the low nibble of byte i, 2i + 1 in its high one; w = q - 8, and
//     the scales lie beside the matrix (compressed-tensors' pack-quantized: int32 words of 8
//     elements, the first in the lowest bits).
//
// Superblocks of 256, whose sub-blocks share f16 factors:
//   Q4_K, 144 bytes: f16 d, f16 dmin, 12 bytes (eight 6-bit scales and minima), 128 bytes of
//     nibbles. Sub-blocks of 32; of each pair the first has the low nibbles of 32 bytes, the second
//     the high.
//   Q5_K, 176 bytes: as Q4_K, with 32 bytes before the nibbles: bit s of byte i is the fifth bit of
//     element i of sub-block s.
//   Q6_K, 210 bytes: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, f16 d.
//     Sub-blocks of 16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace kd {

inline constexpr int64_t kSuperblock = 256;

inline constexpr std::array<int8_t, 16> kIq4NlValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                        1,    13,   25,  38,  53,  69,  89,  113};

/// w[i] = d * q[i] + m. INT4: d is 1.
struct QuantBlock {
    uint16_t d_bits = 0;  // f16
    uint16_t m_bits = 0;  // f16; 0 for types without a minimum
    std::array<int8_t, 32> q;
};

/// Whether a block of 32 of this type has a minimum m.
constexpr bool has_block_minimum(DType type) {
    return type == DType::q4_1 || type == DType::q5_1;
}

/// `type`: one with blocks of 32.
QuantBlock read_quant_block(DType type, const std::byte* block);

/// Q4_K and Q5_K: w[i] = d * scale[i / 32] * q[i] - dmin * minimum[i / 32]
struct AffineSuperblock {
    uint16_t d_bits = 0;             // f16
    uint16_t dmin_bits = 0;          // f16
    std::array<uint8_t, 8> scale;    // 0..63
    std::array<uint8_t, 8> minimum;  // 0..63
    std::array<uint8_t, 256> q;      // 0..15; Q5_K: 0..31
};
/// `type`: q4_k or q5_k.
AffineSuperblock read_affine_superblock(DType type, const std::byte* superblock);

/// w[i] = d * scale[i / 16] * q[i]
struct Q6KBlock {
    uint16_t d_bits = 0;  // f16
    std::array<int8_t, 16> scale;
    std::array<int8_t, 256> q;  // -32..31
};
Q6KBlock read_q6_k(const std::byte* superblock);

}  // namespace kd
