// Argument parsing of the kdtree program; what the commands do is in src/app.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <string>

#include "app/bench.h"
#include "app/prompt.h"
#include "app/run.h"
#include "base/error.h"
#include "base/log.h"
#include "base/views.h"
#include "kdtree_version.h"

namespace {

/// Where run's prompt comes from; exactly one.
struct PromptSource {
    std::string text;
    std::string file;
    std::string bare;
};

void add_model_options(CLI::App& command, kd::Config& config) {
    command.add_option("--model", config.model, "smollm2, or a .gguf file")->capture_default_str();
    command
        .add_option("--context-length", config.context_length,
                    "most tokens of prompt and answer together (default: the model's)")
        ->check(CLI::Range(1, 1 << 24));
    command
        .add_option("--threads", config.threads,
                    "CPU threads (default: what affinity and cgroup allow)")
        ->check(CLI::Range(1, 1024));
    command.add_option("--kernels", config.reference_kernels, "fast, or ref: the plain references")
        ->transform(
            CLI::CheckedTransformer(std::map<std::string, bool>{{"fast", false}, {"ref", true}}))
        ->default_str("fast");
}

void add_speculation_options(CLI::App& command, kd::Config& config, int32_t& nodes) {
    using kd::SpeculativeAlgorithm;
    command
        .add_option(
            "--speculative-algorithm", config.speculative_algorithm,
            "ngram: what followed the same words before; oracle: replays plain decoding with "
            "the hit rates of a profile (studies); none: plain decoding")
        ->transform(CLI::CheckedTransformer(
            std::map<std::string, SpeculativeAlgorithm>{{"none", SpeculativeAlgorithm::none},
                                                        {"ngram", SpeculativeAlgorithm::ngram},
                                                        {"oracle", SpeculativeAlgorithm::oracle}}))
        ->default_str("ngram");
    command.add_option("--speculative-draft-model-path", config.speculative_draft_model_path,
                       "oracle: profile, {\"hit\": [[p of rank 1, p of rank 2, ...] per depth]}");
    command
        .add_option("--speculative-num-draft-tokens", nodes,
                    "verified rows a round, the root included (default: the measured cost picks)")
        ->check(CLI::Range(1, kd::kMaxTreeNodes));
}

void add_sampling_options(CLI::App& command, kd::SamplingParams& sampling) {
    command.add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
    command.add_option("--top-k", sampling.top_k, "most likely tokens kept (0: all)");
    command.add_option("--top-p", sampling.top_p, "probability mass kept")->capture_default_str();
    command.add_option("--min-p", sampling.min_p, "least probability, relative to the largest");
    command.add_option("--seed", sampling.seed, "one seed, one text")->capture_default_str();
}

void add_run(CLI::App& app, kd::RunOptions& options, PromptSource& source) {
    CLI::App* run = app.add_subcommand("run", "Answer one prompt, streaming");
    add_model_options(*run, options.config);
    add_speculation_options(*run, options.config, options.speculation.nodes);
    add_sampling_options(*run, options.sampling);
    run->add_option("--prompt", source.text, "the prompt");
    run->add_option("--prompt-file", source.file, "a file with the prompt (-: standard input)");
    run->add_option("PROMPT", source.bare,
                    "the prompt, without a flag; none at all: standard input");
    run->add_flag("--raw", options.raw, "the prompt as it is, without the chat template");
    run->add_option("--max-tokens", options.max_tokens, "most tokens (default: the context's room)")
        ->check(CLI::Range(1, 1 << 24));
    run->add_option("--stop", options.stop, "end the answer before this string (repeatable)");
    run->add_flag("--stats", options.stats, "speed and acceptance at the end, on standard error");
    run->add_option("--stats-json", options.stats_json, "the same as a JSON file");
    run->add_flag("--show-tree", options.show_tree,
                  "draw every round's tree on standard error, accepted nodes marked *");
    run->footer(
        "Example: kdtree run --max-tokens 100 --stats \"Why is the sky blue?\"\n"
        "Exit codes: 0 done, 1 error, 130 interrupted by Ctrl-C.");
}

void add_bench(CLI::App& app, kd::BenchOptions& options) {
    CLI::App* bench = app.add_subcommand(
        "bench", "Compare plain decoding, chains, trees and the cost model's choice on prompts");
    add_model_options(*bench, options.config);
    add_speculation_options(*bench, options.config, options.nodes);
    add_sampling_options(*bench, options.sampling);
    bench->add_option("--prompts", options.prompt_files, "lines {\"id\", \"turns\": [text]}")
        ->required();
    bench->add_option("--limit", options.limit, "prompts a file (default: all)")
        ->check(CLI::Range(1, 1 << 30));
    bench->add_option("--max-tokens", options.max_tokens, "most tokens an answer")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    bench->add_option("--modes", options.modes, "of plain, chain, tree, policy")->delimiter(',');
    bench->add_option("--repeat", options.repeat, "repetitions; medians are reported")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    bench->add_option("--json", options.json, "write all figures to this file");
    bench->footer("Exit codes: 0 done, 1 error or a greedy mode differs from plain decoding.");
}

std::string prompt_text(const PromptSource& source) {
    const int given = !source.text.empty() + !source.file.empty() + !source.bare.empty();
    if (given > 1) {
        KD_THROW(invalid_argument, "more than one of --prompt, --prompt-file and PROMPT is given");
    }
    if (!source.text.empty()) return source.text;
    if (!source.bare.empty()) return source.bare;
    if (!source.file.empty()) return kd::read_text(source.file);
    if (isatty(STDIN_FILENO) != 0) {
        KD_THROW(invalid_argument,
                 "no prompt: use --prompt TEXT, --prompt-file F or standard input");
    }
    return kd::read_text("-");
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("kdtree: speculative decoding with draft trees");
    app.set_version_flag("--version", "kdtree " KDTREE_VERSION " (" KDTREE_COMMIT ")");
    app.require_subcommand(1);
    bool verbose = false;
    app.add_flag("--verbose", verbose, "say what is going on, on standard error");
    app.fallthrough();
    kd::RunOptions run_options;
    PromptSource source;
    kd::BenchOptions bench_options;
    add_run(app, run_options, source);
    add_bench(app, bench_options);
    try {
        app.parse(argc, argv);
        kd::set_verbose(verbose);
        if (app.got_subcommand("bench")) return kd::bench(bench_options);
        run_options.prompt = prompt_text(source);
        run_options.config.max_draft_tokens =
            std::max(run_options.config.max_draft_tokens, run_options.speculation.nodes);
        return kd::run(run_options);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        std::fprintf(stderr, "kdtree: %s (see kdtree --help)\n", error.what());
    } catch (const kd::Error& error) {
        std::fprintf(stderr, "kdtree: %s\n", error.what());
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "kdtree: out of memory\n");
    }
    return 1;
}
