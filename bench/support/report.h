// What every report of a benchmark begins with, and writing it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "support/statistics.h"

namespace kd {

/// Processes that wanted a core in the last minute; 0 where that is not known.
double load_average();

/// {"schema": 1, "commit", "device", "target", "threads", "command"}: `target` is what the dispatch
/// takes now, `command` the command line.
nlohmann::ordered_json report_header(int argc, char** argv, int threads);

/// [value, low, high].
nlohmann::ordered_json interval_json(const Interval& interval);
/// "1.52 [1.50, 1.55]" with `digits` behind the point.
std::string interval_text(const Interval& interval, int digits);

/// Throws kd::Error if the file cannot be opened; leaves one that is there as it is.
void expect_report_writable(const std::string& path);
/// Throws kd::Error if the file cannot be written.
void write_report(const nlohmann::ordered_json& report, const std::string& path);

}  // namespace kd
