// Ctrl-C as a flag that the loops of the commands look at between rounds.
#pragma once

namespace kd {

/// From here on SIGINT and SIGTERM set the flag (a second one ends the process at once), and
/// writing to a closed pipe fails instead of killing the process.
void watch_interrupts();
bool interrupted();

}  // namespace kd
