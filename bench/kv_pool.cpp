// A load simulator for the KV pool: how contiguous the tables of running sessions are, what the
// prefix index finds and what the pool costs, by tier, load and setting. No bytes are moved.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv_pool/load.h"
#include "kv_pool/report.h"
#include "kv_pool/simulate.h"
#include "kv_pool/trace.h"

namespace kd {
namespace {

/// Every axis of the sweep at its default takes minutes; at all of its values, hours.
struct Options {
    std::vector<std::string> tiers = {std::begin(kTierNames), std::end(kTierNames)};
    std::vector<std::string> modes = {"tree"};
    std::vector<int32_t> concurrency = {1, 4, 8, 16, 64};
    std::vector<int32_t> pages = {1};
    std::vector<std::string> prompts = {"0.8-3k"};
    std::vector<double> evict_batches = {0, 0.05, 0.1, 0.15, 0.3};
    std::vector<std::string> prefix_tree = {"on"};
    int32_t pool_tokens = 0;  // 0: by load and concurrency
    // New tokens of a synthetic load by the pool's. Few of them flatter: fragmentation goes on
    // growing long after the index has filled the pool.
    int32_t pool_fills = 20;
    std::string trace;
    double rounds_per_t = 1;
    std::string save_trace;
    std::string save_tables;
    std::string json;
    int64_t bytes_per_token = int64_t{61} * 1152;  // MLA, 576 values in bf16, 61 layers
    SimulationSettings common;                     // what no axis of the sweep sets
};

void add_axes(CLI::App& app, Options& options) {
    const auto list = [&](const char* name, auto& values, const char* help) {
        return app.add_option(name, values, help)->delimiter(',');
    };
    std::vector<std::string> loads;
    for (const LoadKind& kind : kLoadKinds) loads.emplace_back(kind.name);
    list("--tiers", options.tiers, "what is done against fragmentation")
        ->check(CLI::IsMember(std::vector<std::string>(options.tiers)));
    list("--modes", options.modes, "plain: a token a round; tree: 1 to --depth tokens")
        ->check(CLI::IsMember({"plain", "tree"}));
    list("--concurrency", options.concurrency, "most sessions that run at once")
        ->check(CLI::Range(1, 1024));
    list("--page", options.pages, "tokens a page")->check(CLI::IsMember({1, 16, 32, 64}));
    list("--prompts", options.prompts, "synthetic loads")->check(CLI::IsMember(loads));
    list("--evict-batch", options.evict_batches,
         "least share of what may be evicted that goes at once")
        ->check(CLI::Range(0.0, 1.0));
    list("--prefix-tree", options.prefix_tree, "on, off")->check(CLI::IsMember({"on", "off"}));
    app.add_option("--pool-tokens", options.pool_tokens, "instead of a size by load and sessions")
        ->check(CLI::Range(64, 1 << 26));
    app.add_option("--pool-fills", options.pool_fills, "new tokens of a synthetic load, in pools")
        ->check(CLI::Range(1, 1000));
}

void add_others(CLI::App& app, Options& options) {
    SimulationSettings& common = options.common;
    app.add_option("--trace", options.trace, "replays this load instead (lines of JSON)")
        ->type_name("FILE");
    app.add_option("--rounds-per-t", options.rounds_per_t, "rounds in a unit of the trace's \"t\"")
        ->check(CLI::Range(1e-9, 1e9));
    app.add_option("--save-trace", options.save_trace, "writes the one load that is simulated")
        ->type_name("FILE");
    app.add_option("--save-tables", options.save_tables,
                   "writes page tables of every row, for bench/kv_layout")
        ->type_name("FILE");
    app.add_option("--json", options.json, "writes all figures")->type_name("FILE");
    app.add_option("--seed", common.seed, "of loads and accepted tokens");
    app.add_option("--extent", common.extent, "tokens: tables grow to multiples of it")
        ->check(CLI::Range(1, 1 << 16));
    app.add_option("--headroom", common.headroom, "tokens behind a prompt, asked for with it")
        ->check(CLI::Range(0, 1 << 20));
    app.add_option("--depth", common.depth, "of trees")->check(CLI::Range(1, 1024));
    app.add_option("--chunk", common.chunk, "prompt tokens a round")->check(CLI::Range(1, 1 << 20));
    app.add_option("--relocate-tokens", common.relocate_tokens, "most moved between two rounds")
        ->check(CLI::Range(0, 1 << 20));
    app.add_option("--bytes-per-token", options.bytes_per_token, "of all layers, for moved bytes")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
    app.add_flag("--check", common.check, "checks the pool's books after every event: slow");
}

Load load_of(const Options& options, const std::string& name, int32_t concurrency, bool tree) {
    if (!options.trace.empty()) return read_trace(options.trace, options.rounds_per_t);
    const auto kind = std::ranges::find(kLoadKinds, name, &LoadKind::name);
    const double tokens_per_round = tree ? (1 + options.common.depth) / 2.0 : 1;
    return synthetic_load(*kind, concurrency, tokens_per_round, options.pool_fills,
                          options.common.seed);
}

int32_t pool_tokens_of(const Options& options, const std::string& name, int32_t concurrency) {
    if (options.pool_tokens > 0) return options.pool_tokens;
    const auto kind = std::ranges::find(kLoadKinds, name, &LoadKind::name);
    return pool_tokens_for(kind != std::end(kLoadKinds) ? *kind : kLoadKinds[0], concurrency);
}

/// All that is simulated on one load. Without a prefix tree there is nothing to evict.
std::vector<SimulationSettings> settings_of(const Options& options, SimulationSettings settings) {
    std::vector<SimulationSettings> all;
    for (const std::string& prefix_tree : options.prefix_tree) {
        settings.prefix_tree = prefix_tree == "on";
        for (const int32_t page : options.pages) {
            settings.page = page;
            for (const std::string& tier : options.tiers) {
                settings.tier = static_cast<Tier>(std::ranges::find(kTierNames, tier) - kTierNames);
                for (const double evict_batch : options.evict_batches) {
                    settings.evict_batch = settings.prefix_tree ? evict_batch : 0;
                    all.push_back(settings);
                    if (!settings.prefix_tree) break;
                }
            }
        }
    }
    return all;
}

void simulate_load(const Load& load, const std::vector<SimulationSettings>& all,
                   std::vector<ReportRow>& rows) {
    for (const SimulationSettings& settings : all) {
        check_fits(load, settings.pool_tokens / settings.page * settings.page);
    }
    for (const SimulationSettings& settings : all) {
        rows.push_back({.load = load.name,
                        .sessions = static_cast<int32_t>(load.sessions.size()),
                        .settings = settings,
                        .result = simulate(load, settings)});
        print_row(rows.back());
    }
}

void run(const Options& options) {
    if (!options.json.empty() && !std::ofstream(options.json, std::ios::app)) {
        KD_THROW(io, "cannot write {}", options.json);
    }
    const std::vector<std::string> names =
        options.trace.empty() ? options.prompts : std::vector<std::string>{options.trace};
    const size_t loads = names.size() * options.concurrency.size() * options.modes.size();
    if (!options.save_trace.empty() && loads > 1) {
        KD_THROW(invalid_argument,
                 "--save-trace is for one load, not {}: see --prompts, --concurrency, --modes",
                 loads);
    }
    print_header();
    std::vector<ReportRow> rows;
    size_t done = 0;
    double seconds = 0;
    for (const std::string& name : names) {
        for (const int32_t concurrency : options.concurrency) {
            for (const std::string& mode : options.modes) {
                const Load load = load_of(options, name, concurrency, mode == "tree");
                if (!options.save_trace.empty()) write_trace(load, options.save_trace);
                SimulationSettings settings = options.common;
                settings.tree = mode == "tree";
                settings.concurrency = concurrency;
                settings.pool_tokens = pool_tokens_of(options, name, concurrency);
                const size_t before = rows.size();
                simulate_load(load, settings_of(options, settings), rows);
                for (size_t i = before; i < rows.size(); ++i) seconds += rows[i].result.seconds;
                fmt::print(stderr, "{} of {} loads, {:.0f} s: {}, {} sessions at once, {}\n",
                           ++done, loads, seconds, name, concurrency, mode);
            }
        }
    }
    if (!options.save_tables.empty()) write_tables(options.save_tables, rows);
    if (!options.json.empty()) {
        write_report(
            options.json, rows,
            {.pool_fills = options.pool_fills, .bytes_per_token = options.bytes_per_token});
    }
}

}  // namespace
}  // namespace kd

int main(int argc, char** argv) {
    kd::Options options;
    CLI::App app("Simulates loads on the KV pool.");
    app.option_defaults()->always_capture_default();
    kd::add_axes(app, options);
    kd::add_others(app, options);
    CLI11_PARSE(app, argc, argv);
    try {
        kd::run(options);
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "error: {}\n", error.what());
    }
    return 1;
}
