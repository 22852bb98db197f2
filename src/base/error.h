// The one exception type: what should not have been asked (a bad file, flag, request or machine).
// Messages are one line and name the offending value.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace kd {

enum class ErrorCode {
    invalid_argument,  // a flag, a request or a setting that cannot be served
    not_found,         // a file or a name that does not exist
    io,                // the operating system refused a read or write
    corrupt,           // a file that contradicts its own format
    unsupported,       // a valid file or request that this build does not implement
    out_of_resources,  // memory, disk or pool space that is not there
};

class Error : public std::runtime_error {
  public:
    Error(ErrorCode error_code, const std::string& message, const char* from_file, int from_line)
        : std::runtime_error(message), code(error_code), file(from_file), line(from_line) {}

    const ErrorCode code;
    const char* const file;  // where it was thrown, for logs
    const int line;
};

}  // namespace kd

/// Throws kd::Error with a formatted message. code: the bare enumerator name.
#define KD_THROW(error_code, ...) \
    throw ::kd::Error(::kd::ErrorCode::error_code, ::fmt::format(__VA_ARGS__), __FILE__, __LINE__)
