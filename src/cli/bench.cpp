#include "app/bench.h"

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"

namespace kd {

Command add_bench(CLI::App& app) {
    auto kept = std::make_shared<BenchOptions>();
    BenchOptions& options = *kept;
    CLI::App* bench = app.add_subcommand(
        "bench", "Compare plain decoding, chains, trees and the cost model's choice on prompts");
    add_model_options(*bench, options.config);
    add_speculation_options(*bench, options.config, options.nodes,
                            fmt::format("{}; policy: the measured cost picks", options.nodes));
    add_sampling_options(*bench, options.sampling);
    bench
        ->add_option("--prompts", options.prompt_files,
                     "lines {\"id\", \"turns\": [text]}; repeatable")
        ->type_name("FILE")
        ->required();
    bench->add_option("--limit", options.limit, "prompts a file (default: all)")
        ->check(range(1, 1 << 30));
    bench->add_option("--max-tokens", options.max_tokens, "most tokens an answer")
        ->check(range(1, 1 << 24))
        ->capture_default_str();
    bench->add_option("--modes", options.modes, "of plain, chain, tree, policy (default: all)")
        ->delimiter(',');
    bench->add_option("--repeat", options.repeat, "repetitions; medians are reported")
        ->check(range(1, 1000))
        ->capture_default_str();
    add_json_option(*bench, options.json, "all figures");
    bench->footer(
        "Example: kdtree bench --prompts prompts.jsonl --limit 10 --json out.json\n"
        "Exit codes: 0 done, 1 error or a greedy mode differs from plain decoding, 130 interrupted "
        "by Ctrl-C.");
    return {.parser = bench, .action = [kept] { return kd::bench(*kept); }};
}

}  // namespace kd
