#include "support/report.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "backends/cpu/processor.h"
#include "base/error.h"
#include "kdtree_version.h"
#include "kernels/simd/memory_read.h"

namespace kd {

double load_average() {
    double minute = 0;
    return getloadavg(&minute, 1) == 1 ? minute : 0;
}

nlohmann::ordered_json report_header(int argc, char** argv, int threads) {
    std::string command;
    for (int i = 0; i < argc; ++i) command += fmt::format("{}{}", i == 0 ? "" : " ", argv[i]);
    return {{"schema", 1},
            {"commit", KDTREE_COMMIT},
            {"device", processor_name()},
            {"target", dispatch_target()},
            {"threads", threads},
            {"command", command}};
}

nlohmann::ordered_json interval_json(const Interval& interval) {
    return {interval.value, interval.low, interval.high};
}

std::string interval_text(const Interval& interval, int digits) {
    return fmt::format("{:.{}f} [{:.{}f}, {:.{}f}]", interval.value, digits, interval.low, digits,
                       interval.high, digits);
}

void expect_report_writable(const std::string& path) {
    if (!path.empty() && !std::ofstream(path, std::ios::app)) {
        KD_THROW(io, "cannot write {}", path);
    }
}

void write_report(const nlohmann::ordered_json& report, const std::string& path) {
    std::ofstream file(path);
    // A model's file name may hold bytes that are no UTF-8.
    file << report.dump(1, ' ', /*ensure_ascii=*/false,
                        nlohmann::ordered_json::error_handler_t::replace)
         << "\n";
    if (!file.flush()) KD_THROW(io, "cannot write {}", path);
}

}  // namespace kd
