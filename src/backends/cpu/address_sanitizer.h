// What AddressSanitizer has to be told about memory that comes straight from the operating system:
// of that it knows no bounds. Without it, nothing happens.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define KD_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KD_ADDRESS_SANITIZER
#endif
#endif

#ifdef KD_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace kd {

#ifdef KD_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
/// From here on an access to these bytes is reported.
inline void forbid_access(const std::byte* memory, size_t bytes) {
    __asan_poison_memory_region(memory, bytes);
}
inline void allow_access(const std::byte* memory, size_t bytes) {
    __asan_unpoison_memory_region(memory, bytes);
}
#else
inline constexpr bool kAddressSanitizer = false;
inline void forbid_access(const std::byte*, size_t) {}
inline void allow_access(const std::byte*, size_t) {}
#endif

}  // namespace kd
