#include "kv_pool/report.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backends/cpu/processor.h"
#include "base/error.h"
#include "kdtree_version.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSampled =
    "rounds from the admission of the load's middle session on, until a session ends that none "
    "replaces";

double by(double sum, int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : 0;
}

std::string_view tier_name(Tier tier) {
    return kTierNames[static_cast<size_t>(tier)];
}

Json json_of(const ReportRow& row, int64_t bytes_per_token) {
    const SimulationSettings& settings = row.settings;
    const SimulationSums& sums = row.result.sums;
    const Fragmentation& seen = sums.fragmentation;
    const double moved = by(static_cast<double>(sums.moved), sums.emitted);
    return {
        {"load", row.load},
        {"tier", tier_name(settings.tier)},
        {"mode", settings.tree ? "tree" : "plain"},
        {"prefix_tree", settings.prefix_tree},
        {"evict_batch", settings.evict_batch},
        {"page", settings.page},
        {"concurrency", settings.concurrency},
        {"pool_tokens", row.result.pool_tokens},
        {"sessions", row.sessions},
        {"rounds", row.result.rounds},
        {"sampled_rounds", sums.rounds},
        {"warm", !settings.prefix_tree || row.result.evicted_before > 0},
        {"occupancy", by(sums.occupancy, sums.rounds)},
        {"mean_run", seen.mean_run()},
        {"runs_per_session", seen.runs_per_session()},
        {"contiguous_tiles", seen.contiguous_tiles()},
        {"free_runs", by(sums.free_runs, sums.rounds)},
        {"hit_rate", by(static_cast<double>(sums.reused), sums.asked)},
        {"emitted_tokens", sums.emitted},
        {"allocated_tokens", sums.allocated},
        {"evicted_tokens", sums.evicted},
        {"retractions", sums.retractions},
        {"ignored_events", row.result.ignored_events},
        {"moved_tokens_per_token", moved},
        {"moved_bytes_per_token", moved * static_cast<double>(bytes_per_token)},
        {"alloc_us_per_token", by(sums.alloc_s * 1e6, sums.allocated)},
        {"index_us_per_token", by(sums.index_s * 1e6, sums.allocated)},
        {"relocate_us_per_round", by(sums.relocate_s * 1e6, sums.rounds)},
        {"seconds", row.result.seconds},
    };
}

}  // namespace

void print_header() {
    fmt::print("{:<15}{:<17}{:<6}{:>5}{:>6}{:>5}{:>9}{:>6}{:>10}{:>7}{:>8}{:>9}{:>6}{:>7}{:>8}\n",
               "load", "tier", "mode", "tree", "evict", "page", "sessions", "occ.", "mean run",
               "tiles", "fr.runs", "us/token", "hits", "moved", "retract");
}

void print_row(const ReportRow& row) {
    const SimulationSettings& settings = row.settings;
    const SimulationSums& sums = row.result.sums;
    const std::string name = row.load.size() <= 14 ? row.load : row.load.substr(0, 13) + "~";
    fmt::print(
        "{:<15}{:<17}{:<6}{:>5}{:>6.2f}{:>5}{:>9}{:>6.2f}{:>10.1f}{:>7.3f}{:>8.0f}{:>9.3f}{:>6.3f}"
        "{:>7.2f}{:>8}\n",
        name, tier_name(settings.tier), settings.tree ? "tree" : "plain",
        settings.prefix_tree ? "on" : "off", settings.evict_batch, settings.page,
        settings.concurrency, by(sums.occupancy, sums.rounds), sums.fragmentation.mean_run(),
        sums.fragmentation.contiguous_tiles(), by(sums.free_runs, sums.rounds),
        by(sums.alloc_s * 1e6, sums.allocated), by(static_cast<double>(sums.reused), sums.asked),
        by(static_cast<double>(sums.moved), sums.emitted), sums.retractions);
    std::fflush(stdout);
}

void write_report(const std::string& path, const std::vector<ReportRow>& rows,
                  const ReportOptions& options) {
    const SimulationSettings& common = rows.front().settings;
    Json out = {{"schema", 1},
                {"commit", KDTREE_COMMIT},
                {"device", processor_name()},
                {"seed", common.seed},
                {"sampled", kSampled},
                {"extent", common.extent},
                {"headroom", common.headroom},
                {"depth", common.depth},
                {"chunk", common.chunk},
                {"relocate_tokens", common.relocate_tokens},
                {"pool_fills", options.pool_fills},
                {"bytes_per_token", options.bytes_per_token},
                {"rows", Json::array()}};
    for (const ReportRow& row : rows) out["rows"].push_back(json_of(row, options.bytes_per_token));
    std::ofstream file(path);
    file << out.dump(1) << "\n";
    if (!file.flush()) KD_THROW(io, "cannot write {}", path);
}

void write_tables(const std::string& path, const std::vector<ReportRow>& rows) {
    Json tables = Json::array();
    for (const ReportRow& row : rows) {
        const SimulationSettings& settings = row.settings;
        tables.push_back(
            {{"name", fmt::format("{} {:.2f}, {} sessions, page {}", tier_name(settings.tier),
                                  settings.evict_batch, settings.concurrency, settings.page)},
             {"slots", row.result.tables}});
    }
    std::ofstream out(path);
    out << tables.dump() << "\n";
    out.close();
    if (!out) KD_THROW(io, "cannot write {}", path);
}

}  // namespace kd
