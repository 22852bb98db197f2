// Which processor this is, for reports and for keys of what was measured on it.
#pragma once

#include <string>

namespace kd {

/// As the operating system calls it; "unknown processor" where it does not say.
std::string processor_name();

}  // namespace kd
