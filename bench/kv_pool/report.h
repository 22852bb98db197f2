// The table on standard output and the JSON of docs/bench-kv-pool.md.
#pragma once

#include <string>
#include <vector>

#include "kv_pool/simulate.h"

namespace kd {

struct ReportRow {
    std::string load;
    int32_t sessions = 0;
    SimulationSettings settings;
    SimulationResult result;
};

void print_header();
void print_row(const ReportRow& row);
/// What all rows have in common stands above them.
struct ReportOptions {
    int32_t pool_fills = 0;
    int64_t bytes_per_token = 0;
};
/// [{"name", "slots": [[...], ...]}, ...]: the tables of every row's sessions, for bench/kv_layout.
void write_tables(const std::string& path, const std::vector<ReportRow>& rows);
void write_report(const std::string& path, const std::vector<ReportRow>& rows,
                  const ReportOptions& options);

}  // namespace kd
