#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <utility>

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

/// Not in spdlog's registry, where a host of the library may have a logger of this name.
spdlog::logger& logger() {
    static const auto instance = [] {
        auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
        auto log = std::make_unique<spdlog::logger>("kdtree", std::move(sink));
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
