// KD_CHECK: what cannot be true. Always on, prints the condition and the values, aborts.
// For what a user can cause (a file, a flag, a request) throw kd::Error instead (error.h).
#pragma once

#include <fmt/format.h>

#include <string>

namespace kd {

/// Prints "file:line: check failed: condition: message" to stderr and aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);

}  // namespace kd

#define KD_CHECK(condition, ...)                                                            \
    do {                                                                                    \
        if (!(condition)) [[unlikely]]                                                      \
            ::kd::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
    } while (false)
