// Logs go to stderr through spdlog; nothing is logged inside a round.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace kd {

void log_info(std::string_view message);
/// Why it takes a moment: shown to a person at a terminal, otherwise like info.
void log_notice(std::string_view message);
void log_warning(std::string_view message);
/// Also shows info messages; the default shows warnings only.
void set_verbose(bool verbose);

}  // namespace kd
