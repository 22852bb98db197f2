// Ctrl-C as a flag that the loops of the commands look at between rounds.
#pragma once

namespace kd {

/// The exit code after SIGINT or SIGTERM.
inline constexpr int kInterruptedExitCode = 130;

/// From here on SIGINT and SIGTERM end the process at once with that code: right while a command
/// waits for its input, loads and measures, and has nothing to show. Writing to a closed pipe fails
/// instead of killing the process.
void exit_on_interrupts();
/// From here on they set the flag instead; a second one kills the process.
void watch_interrupts();
bool interrupted();

}  // namespace kd
