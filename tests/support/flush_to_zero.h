// A thread as a host may have set it up.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kd {

/// While it lives, the processor takes subnormal floats of this thread for zero, read or written.
/// On x86; elsewhere nothing changes.
class FlushToZero {
  public:
#if defined(__x86_64__)
    FlushToZero() : before_(_mm_getcsr()) {
        constexpr unsigned kDenormalsAreZero = 0x0040, kFlush = 0x8000;
        _mm_setcsr(before_ | kDenormalsAreZero | kFlush);
    }
    ~FlushToZero() {
        _mm_setcsr(before_);
    }
#else
    FlushToZero() {}
    ~FlushToZero() {}
#endif
    FlushToZero(const FlushToZero&) = delete;
    FlushToZero& operator=(const FlushToZero&) = delete;

  private:
    [[maybe_unused]] unsigned before_ = 0;
};

}  // namespace kd
