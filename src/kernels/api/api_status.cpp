#include "kernels/api/api_status.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace kd::api {

namespace {

// A buffer of fixed size, because no call of the ABI may throw.
thread_local char last_message[512] = "";

}  // namespace

kdt_status fail(kdt_status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_message, sizeof last_message, format, arguments);
    va_end(arguments);
    return status;
}

const char* last_error() {
    return last_message;
}

void Checks::require(bool holds, const char* format, ...) {
    if (holds || !ok()) return;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_message, sizeof last_message, format, arguments);
    va_end(arguments);
    status_ = KDT_INVALID;
}

void Checks::refuse_range(const char* name, int64_t value, int64_t least, int64_t most) {
    require(false, "%s is %lld, must be %lld..%lld", name, static_cast<long long>(value),
            static_cast<long long>(least), static_cast<long long>(most));
}

void Checks::multiple(const char* name, int64_t value, int64_t unit) {
    require(value % unit == 0, "%s is %lld, must be a multiple of %lld", name,
            static_cast<long long>(value), static_cast<long long>(unit));
}

void Checks::refuse_pointer(const char* name, const void* value, int64_t alignment) {
    require(value != nullptr, "%s is NULL", name);
    require(false, "%s is %p, must be %lld-byte aligned", name, value,
            static_cast<long long>(alignment));
}

void Checks::finite(const char* name, float value) {
    require(std::isfinite(value), "%s is %g, must be finite", name, static_cast<double>(value));
}

void Checks::scale(const char* name, float value) {
    require(std::isfinite(value) && value > 0, "%s is %g, must be finite and above 0", name,
            static_cast<double>(value));
}

void Checks::struct_bytes(const char* name, uint32_t value, size_t expected) {
    require(value == expected, "%s.struct_bytes is %u, this library's is %zu", name, value,
            expected);
}

}  // namespace kd::api

const char* kdt_last_error(void) {
    return kd::api::last_error();
}

int32_t kdt_kernels_abi(void) {
    return KDT_KERNELS_ABI;
}
