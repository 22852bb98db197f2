#include "base/quant_blocks.h"

#include <cstring>

namespace kd {

namespace {

/// Eight scales and eight minima of 6 bits from 12 bytes: the first four are the low six bits of
/// bytes 0-3 (scales) and 4-7 (minima); the last four have their low nibbles in bytes 8-11 and
/// their upper two bits above the first four.
void read_scales(const uint8_t* packed, AffineSuperblock& block) {
    for (size_t j = 0; j < 4; ++j) {
        block.scale[j] = packed[j] & 63;
        block.minimum[j] = packed[4 + j] & 63;
        block.scale[4 + j] = static_cast<uint8_t>((packed[8 + j] & 15) | (packed[j] >> 6 << 4));
        block.minimum[4 + j] =
            static_cast<uint8_t>((packed[8 + j] >> 4) | (packed[4 + j] >> 6 << 4));
    }
}

/// What a 4-bit code of the type stands for, before fifth bits.
int code_value(DType type, int code) {
    switch (type) {
        case DType::q4_0:
        case DType::int4:
            return code - 8;
        case DType::q5_0:
            return code - 16;
        case DType::iq4_nl:
            return kIq4NlValues[static_cast<size_t>(code)];
        default:
            return code;
    }
}

}  // namespace

QuantBlock read_quant_block(DType type, const std::byte* block) {
    constexpr uint16_t kOne = 0x3c00;
    QuantBlock out;
    const auto* at = reinterpret_cast<const uint8_t*>(block);
    if (type == DType::int4) {
        out.d_bits = kOne;
        for (size_t i = 0; i < 32; ++i) {
            out.q[i] = static_cast<int8_t>(code_value(type, at[i / 2] >> (i % 2 * 4) & 15));
        }
        return out;
    }
    std::memcpy(&out.d_bits, at, 2);
    at += 2;
    if (has_block_minimum(type)) {
        std::memcpy(&out.m_bits, at, 2);
        at += 2;
    }
    if (type == DType::q8_0) {
        std::memcpy(out.q.data(), at, 32);
        return out;
    }
    uint32_t fifth_bits = 0;
    if (type == DType::q5_0 || type == DType::q5_1) {
        std::memcpy(&fifth_bits, at, 4);
        at += 4;
    }
    for (size_t i = 0; i < 16; ++i) {
        const int low = code_value(type, at[i] & 15);
        const int high = code_value(type, at[i] >> 4);
        out.q[i] = static_cast<int8_t>(low + (fifth_bits >> i & 1) * 16);
        out.q[i + 16] = static_cast<int8_t>(high + (fifth_bits >> (i + 16) & 1) * 16);
    }
    return out;
}

AffineSuperblock read_affine_superblock(DType type, const std::byte* superblock) {
    AffineSuperblock block;
    std::memcpy(&block.d_bits, superblock, 2);
    std::memcpy(&block.dmin_bits, superblock + 2, 2);
    const auto* at = reinterpret_cast<const uint8_t*>(superblock + 4);
    read_scales(at, block);
    at += 12;
    const uint8_t* fifth_bits = at;
    if (type == DType::q5_k) at += 32;
    for (size_t i = 0; i < 128; ++i) {
        const size_t element = i / 32 * 64 + i % 32;
        block.q[element] = at[i] & 15;
        block.q[element + 32] = at[i] >> 4;
    }
    if (type == DType::q4_k) return block;
    for (size_t i = 0; i < 256; ++i) {
        block.q[i] = static_cast<uint8_t>(block.q[i] | (fifth_bits[i % 32] >> (i / 32) & 1) << 4);
    }
    return block;
}

Q6KBlock read_q6_k(const std::byte* superblock) {
    Q6KBlock block;
    const auto* nibbles = reinterpret_cast<const uint8_t*>(superblock);
    const uint8_t* pairs = nibbles + 128;
    std::memcpy(block.scale.data(), superblock + 192, 16);
    std::memcpy(&block.d_bits, superblock + 208, 2);
    for (size_t i = 0; i < 256; ++i) {
        // Halves of 128 weights, each in quarters of 32: quarters 0 and 1 are the low nibbles of 64
        // bytes, 2 and 3 the high ones; quarter n has bits 2n and 2n + 1 of 32 bytes of pairs.
        const size_t half = i / 128;
        const size_t quarter = i / 32 % 4;
        const int byte = nibbles[half * 64 + i % 64];
        const int nibble = quarter < 2 ? byte & 15 : byte >> 4;
        const int pair = pairs[half * 32 + i % 32] >> (2 * quarter) & 3;
        block.q[i] = static_cast<int8_t>((pair << 4 | nibble) - 32);
    }
    return block;
}

}  // namespace kd
