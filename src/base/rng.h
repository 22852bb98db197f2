// Counter-based random numbers: a value is a function of its key and counter alone, so a draw does
// not depend on the tree, the batch or the order in which nodes were visited.
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011.
#pragma once

#include <array>
#include <cstdint>

namespace kd {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Ten rounds of Philox4x32: four uniform 32-bit words for (counter, key).
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
        const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
        counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

/// What a stream of draws is for; streams with one seed are independent.
enum class RngStream : uint32_t { sample = 0, oracle = 1, test = 2 };

/// The uniform draw in [0, 1) for `position` of the request with `seed`: 53 bits, never 1.
/// `index` separates several draws for one position.
constexpr double uniform(uint64_t seed, RngStream stream, uint64_t position, uint32_t index = 0) {
    const PhiloxCounter words =
        philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), index,
                    static_cast<uint32_t>(stream)},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t bits = (uint64_t{words[0]} << 21) ^ (words[1] >> 11);
    return static_cast<double>(bits & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
}

}  // namespace kd
