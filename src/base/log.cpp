#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

namespace kd {

namespace {

spdlog::logger& logger() {
    static const std::shared_ptr<spdlog::logger> instance = [] {
        auto log = spdlog::stderr_logger_mt("kdtree");
        log->set_pattern("kdtree: %v");
        log->set_level(spdlog::level::warn);
        return log;
    }();
    return *instance;
}

}  // namespace

void log_info(std::string_view message) {
    logger().info(message);
}
void log_notice(std::string_view message) {
    logger().log(isatty(STDERR_FILENO) != 0 ? spdlog::level::warn : spdlog::level::info, message);
}
void log_warning(std::string_view message) {
    logger().warn(message);
}
void set_verbose(bool verbose) {
    logger().set_level(verbose ? spdlog::level::info : spdlog::level::warn);
}

}  // namespace kd
