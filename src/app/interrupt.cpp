#include "app/interrupt.h"

#include <unistd.h>

#include <csignal>

#include "app/progress.h"

namespace kd {

namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void exit_now(int /*signal*/) {
    erase_progress_from_signal();
    _exit(kInterruptedExitCode);
}

void set_flag(int signal) {
    g_interrupted = 1;
    std::signal(signal, SIG_DFL);
}

}  // namespace

void exit_on_interrupts() {
    std::signal(SIGINT, exit_now);
    std::signal(SIGTERM, exit_now);
    // A write that cannot be done says so itself.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
}

void watch_interrupts() {
    std::signal(SIGINT, set_flag);
    std::signal(SIGTERM, set_flag);
}

bool interrupted() {
    return g_interrupted != 0;
}

}  // namespace kd
