#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kd {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
    std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message.c_str());
    std::abort();
}

}  // namespace kd
