#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

namespace kd {

namespace {

spdlog::level::level_enum level_of(LogLevel level) {
    switch (level) {
        case LogLevel::notice:
            return spdlog::level::info;
        case LogLevel::warning:
            return spdlog::level::warn;
    }
    return spdlog::level::warn;
}

spdlog::logger& logger() {
    static const std::shared_ptr<spdlog::logger> instance = [] {
        auto log = spdlog::stderr_logger_mt("kdtree");
        log->set_pattern("kdtree: %v");
        log->set_level(level_of(LogLevel::warning));
        return log;
    }();
    return *instance;
}

std::atomic<void (*)()> g_before_log = nullptr;

void log(LogLevel level, std::string_view message) {
    if (!logger().should_log(level_of(level))) return;
    if (void (*hook)() = g_before_log.load(); hook != nullptr) hook();
    logger().log(level_of(level), message);
}

}  // namespace

void log_notice(std::string_view message) {
    log(LogLevel::notice, message);
}
void log_warning(std::string_view message) {
    log(LogLevel::warning, message);
}
void set_before_log(void (*hook)()) {
    g_before_log = hook;
}
void set_log_level(LogLevel level) {
    logger().set_level(level_of(level));
}

}  // namespace kd
