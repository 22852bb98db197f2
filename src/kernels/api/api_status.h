// Statuses and messages of the C ABI, without CUDA. The message of a thread's last failed call is
// kept for it.
#pragma once

#include <cstdint>

#include "kdtree/kernels.h"

namespace kd::api {

/// Remembers the message (printf's format) and returns `status`.
[[gnu::format(printf, 2, 3)]] kdt_status fail(kdt_status status, const char* format, ...);

const char* last_error();

/// Preconditions of one call: the first that does not hold decides, later ones are not looked at.
class Checks {
  public:
    kdt_status status() const { return status_; }
    bool ok() const { return status_ == KDT_OK; }

    /// What `holds` or the arguments read must not depend on a check that may have failed.
    [[gnu::format(printf, 3, 4)]] void require(bool holds, const char* format, ...);
    void range(const char* name, int64_t value, int64_t least, int64_t most) {
        if (value < least || value > most) refuse_range(name, value, least, most);
    }
    void multiple(const char* name, int64_t value, int64_t unit);
    void pointer(const char* name, const void* value, int64_t alignment) {
        const auto address = reinterpret_cast<uintptr_t>(value);
        if (address == 0 || address % static_cast<uintptr_t>(alignment) != 0) {
            refuse_pointer(name, value, alignment);
        }
    }
    void finite(const char* name, float value);
    void scale(const char* name, float value);  // finite and above 0
    void struct_bytes(const char* name, uint32_t value, size_t expected);
    void add(kdt_status status) {
        if (ok()) status_ = status;
    }

  private:
    // Out of line: a call of a page takes less time than passing a format and its arguments does.
    void refuse_range(const char* name, int64_t value, int64_t least, int64_t most);
    void refuse_pointer(const char* name, const void* value, int64_t alignment);

    kdt_status status_ = KDT_OK;
};

}  // namespace kd::api
