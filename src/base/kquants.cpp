#include "base/kquants.h"

#include <cstring>

namespace kd {

Q4KBlock read_q4_k(const std::byte* superblock) {
    Q4KBlock block;
    std::memcpy(&block.d_bits, superblock, 2);
    std::memcpy(&block.dmin_bits, superblock + 2, 2);
    const auto* packed = reinterpret_cast<const uint8_t*>(superblock + 4);
    for (size_t j = 0; j < 4; ++j) {
        // The first four are the low six bits of bytes 0-3 (scales) and 4-7 (minima); the last four
        // have their low nibbles in bytes 8-11 and their upper two bits above the first four.
        block.scale[j] = packed[j] & 63;
        block.minimum[j] = packed[4 + j] & 63;
        block.scale[4 + j] = static_cast<uint8_t>((packed[8 + j] & 15) | (packed[j] >> 6 << 4));
        block.minimum[4 + j] =
            static_cast<uint8_t>((packed[8 + j] >> 4) | (packed[4 + j] >> 6 << 4));
    }
    const uint8_t* nibbles = packed + 12;
    for (size_t i = 0; i < 128; ++i) {
        const size_t at = i / 32 * 64 + i % 32;
        block.q[at] = nibbles[i] & 15;
        block.q[at + 32] = nibbles[i] >> 4;
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
