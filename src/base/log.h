// Logs go to stderr through spdlog; nothing is logged inside a round.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace kd {

enum class LogLevel {
    notice,   // why it takes a moment
    warning,  // what went wrong and does not stop the run
};

void log_notice(std::string_view message);
void log_warning(std::string_view message);
/// What is shown: this level and those after it. The default is warning.
void set_log_level(LogLevel level);
/// Called before every line that is shown, on the thread that logs: what has drawn on the terminal
/// clears it. Null: nothing.
void set_before_log(void (*hook)());

}  // namespace kd
