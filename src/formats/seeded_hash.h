// Hashes that the author of a file cannot foresee, so that he cannot make its entries collide. They
// differ from run to run: nothing that is put out may depend on their order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kd {

/// From the system's random numbers.
uint64_t random_word();

/// SipHash-2-4 (Aumasson and Bernstein, 2012).
uint64_t sip_hash(std::string_view text, const std::array<uint64_t, 2>& key);

/// For unordered containers of texts: SipHash under a key that this process has drawn.
struct TextHash {
    size_t operator()(std::string_view text) const;
};

}  // namespace kd
