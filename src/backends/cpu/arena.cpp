#include "backends/cpu/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "backends/cpu/address_sanitizer.h"
#include "base/error.h"

namespace kd {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kLargePage = size_t{2} << 20;
constexpr size_t kBlockBytes = size_t{64} << 20;  // address space; memory is taken by large pages

// Behind every piece, where a kernel that reads on is seen.
constexpr size_t kGap = kAddressSanitizer ? 4096 : 0;

constexpr size_t rounded(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

}  // namespace

std::byte* Arena::take(size_t bytes) {
    if (bytes > SIZE_MAX / 2) {  // larger ones would wrap around below
        KD_THROW(out_of_resources, "cannot reserve {} bytes of memory", bytes);
    }
    const size_t taken = rounded(bytes, kAlignment) + kGap;
    if (taken > left_bytes_) {
        const size_t block = std::max(kBlockBytes, rounded(taken, kLargePage));
        const auto reserved = static_cast<int64_t>(block + kLargePage);
        void* begin = blocks_.emplace_back(reserved).data();
        size_t space = block + kLargePage;
        begin = std::align(kLargePage, block, begin, space);
        // Advice only: where it is refused the pages stay small.
        madvise(begin, block, MADV_HUGEPAGE);
        next_ = static_cast<std::byte*>(begin);
        left_bytes_ = block;
    }
    std::byte* piece = next_;
    forbid_access(piece + bytes, taken - bytes);
    next_ += taken;
    left_bytes_ -= taken;
    return piece;
}

}  // namespace kd
