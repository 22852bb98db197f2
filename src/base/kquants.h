// ggml's K-quants as integers: superblocks of 256 weights whose sub-blocks share f16 factors.
//
// Q4_K, 144 bytes: f16 d, f16 dmin, 12 bytes (eight 6-bit scales and minima), 128 bytes of nibbles.
//   Sub-blocks of 32; of each pair the first has the low nibbles of 32 bytes, the second the high.
// Q6_K, 210 bytes: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, f16 d.
//   Sub-blocks of 16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kd {

inline constexpr int64_t kSuperblock = 256;

/// w[i] = d * scale[i / 32] * q[i] - dmin * minimum[i / 32]
struct Q4KBlock {
    uint16_t d_bits = 0;             // f16
    uint16_t dmin_bits = 0;          // f16
    std::array<uint8_t, 8> scale;    // 0..63
    std::array<uint8_t, 8> minimum;  // 0..63
    std::array<uint8_t, 256> q;      // 0..15
};
Q4KBlock read_q4_k(const std::byte* superblock);

/// w[i] = d * scale[i / 16] * q[i]
struct Q6KBlock {
    uint16_t d_bits = 0;  // f16
    std::array<int8_t, 16> scale;
    std::array<int8_t, 256> q;  // -32..31
};
Q6KBlock read_q6_k(const std::byte* superblock);

}  // namespace kd
