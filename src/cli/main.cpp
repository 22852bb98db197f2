// Argument parsing of the kdtree program; what the commands do is in src/app.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/bench.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/prompt.h"
#include "app/run.h"
#include "base/error.h"
#include "base/log.h"
#include "base/views.h"
#include "kdtree_version.h"

namespace {

/// Where run's prompt comes from; exactly one.
struct PromptSource {
    std::optional<std::string> text;
    std::optional<std::string> file;
    std::optional<std::string> bare;
};

CLI::Validator range(int32_t min, int32_t max) {
    return CLI::Range(min, max).description(fmt::format("{}..{}", min, max));
}

/// An option that takes one of a few words; its default is `value`.
template <class Value>
void add_choice(CLI::App& command, const std::string& flag, Value& value,
                const std::vector<std::pair<std::string, Value>>& choices,
                const std::string& help) {
    std::string words, standard;
    for (const auto& [word, meaning] : choices) {
        words += (words.empty() ? "" : "|") + word;
        if (meaning == value) standard = word;
    }
    command
        .add_option_function<std::string>(
            flag,
            [&value, flag, choices, words](const std::string& given) {
                const auto found = std::find_if(choices.begin(), choices.end(),
                                                [&](const auto& c) { return c.first == given; });
                if (found == choices.end()) {
                    throw CLI::ValidationError(flag,
                                               fmt::format("\"{}\" is none of {}", given, words));
                }
                value = found->second;
            },
            help)
        ->type_name(words)
        ->default_str(standard);
}

/// CLI11 reads -1 as the largest unsigned number and cuts what is beyond it.
std::string check_seed(const std::string& text) {
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end) return {};
    return fmt::format("{} is no whole number from 0 to {}", text, UINT64_MAX);
}

void add_model_options(CLI::App& command, kd::Config& config) {
    command.add_option("--model", config.model, "smollm2, or a .gguf file")->capture_default_str();
    command
        .add_option("--context-length", config.context_length,
                    "most tokens of prompt and answer together (default: the model's)")
        ->check(range(1, 1 << 24));
    command
        .add_option("--threads", config.threads,
                    "CPU threads (default: what affinity and cgroup allow)")
        ->check(range(1, 1024));
    add_choice<bool>(command, "--kernels", config.reference_kernels,
                     {{"fast", false}, {"ref", true}}, "ref: the plain references, slow");
}

void add_speculation_options(CLI::App& command, kd::Config& config, int32_t& nodes,
                             const std::string& nodes_default) {
    using kd::SpeculativeAlgorithm;
    add_choice<SpeculativeAlgorithm>(
        command, "--speculative-algorithm", config.speculative_algorithm,
        {{"none", SpeculativeAlgorithm::none},
         {"ngram", SpeculativeAlgorithm::ngram},
         {"oracle", SpeculativeAlgorithm::oracle}},
        "ngram: what followed the same words before; oracle: replays plain decoding with the hit "
        "rates of a profile (studies); none: plain decoding");
    command.add_option("--speculative-draft-model-path", config.speculative_draft_model_path,
                       "oracle: profile, {\"hit\": [[p of rank 1, p of rank 2, ...] per depth]}");
    command
        .add_option("--speculative-num-draft-tokens", nodes,
                    "verified rows a round, the root included (default: " + nodes_default + ")")
        ->check(range(1, kd::kMaxTreeNodes));
}

void add_sampling_options(CLI::App& command, kd::SamplingParams& sampling) {
    command.add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
    command.add_option("--top-k", sampling.top_k, "most likely tokens kept (0: all)");
    command.add_option("--top-p", sampling.top_p, "probability mass kept")->capture_default_str();
    command.add_option("--min-p", sampling.min_p, "least probability, relative to the largest");
    command.add_option("--seed", sampling.seed, "one seed, one text")
        ->check(check_seed, "")
        ->capture_default_str();
}

void add_run(CLI::App& app, kd::RunOptions& options, PromptSource& source) {
    CLI::App* run = app.add_subcommand("run", "Answer one prompt, streaming");
    add_model_options(*run, options.config);
    add_speculation_options(*run, options.config, options.speculation.nodes,
                            "the measured cost picks");
    add_sampling_options(*run, options.sampling);
    run->add_option("--prompt", source.text, "the prompt");
    run->add_option("--prompt-file", source.file, "a file with the prompt (-: standard input)");
    run->add_option("PROMPT", source.bare,
                    "the prompt, without a flag; none at all: standard input");
    run->add_flag("--raw", options.raw, "the prompt as it is, without the chat template");
    run->add_option("--max-tokens", options.max_tokens, "most tokens (default: the context's room)")
        ->check(range(1, 1 << 24));
    // One string a flag: a list would take the prompt behind it, and split "[END]".
    run->add_option("--stop", options.stop, "end the answer before this string (repeatable)")
        ->allow_extra_args(false);
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
    add_speculation_options(*bench, options.config, options.nodes,
                            fmt::format("{}; policy: the measured cost picks", options.nodes));
    add_sampling_options(*bench, options.sampling);
    bench->add_option("--prompts", options.prompt_files, "lines {\"id\", \"turns\": [text]}")
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
    bench->add_option("--json", options.json, "write all figures to this file");
    bench->footer(
        "Example: kdtree bench --prompts prompts.jsonl --limit 10 --json out.json\n"
        "Exit codes: 0 done, 1 error or a greedy mode differs from plain decoding, 130 interrupted "
        "by Ctrl-C.");
}

std::string prompt_text(const PromptSource& source) {
    if (source.text.has_value() + source.file.has_value() + source.bare.has_value() > 1) {
        KD_THROW(invalid_argument, "more than one of --prompt, --prompt-file and PROMPT is given");
    }
    if (source.text.has_value()) return *source.text;
    if (source.bare.has_value()) return *source.bare;
    if (source.file.has_value()) return kd::read_text(*source.file);
    if (isatty(STDIN_FILENO) != 0) {
        KD_THROW(invalid_argument,
                 "no prompt: use --prompt TEXT, --prompt-file F or standard input");
    }
    return kd::read_text("-");
}

/// What the parser found wrong, in one line that says where to look.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
    const std::vector<CLI::App*> commands = app.get_subcommands();
    if (!commands.empty()) {
        return fmt::format("{} (see kdtree {} --help)", error.what(), commands[0]->get_name());
    }
    const std::vector<std::string> unknown = app.remaining();
    if (unknown.empty()) return "no command is given: run or bench (see kdtree --help)";
    return fmt::format("\"{}\" is no command: run or bench (see kdtree --help)", unknown[0]);
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Speculative decoding with draft trees", "kdtree");
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
    kd::exit_on_interrupts();
    try {
        app.parse(argc, argv);
        const bool terminal = isatty(STDERR_FILENO) != 0;
        kd::set_log_level(verbose || terminal ? kd::LogLevel::notice : kd::LogLevel::warning);
        if (app.got_subcommand("bench")) return kd::bench(bench_options);
        run_options.prompt = prompt_text(source);
        run_options.config.max_draft_tokens =
            std::max(run_options.config.max_draft_tokens, run_options.speculation.nodes);
        return kd::run(run_options);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        kd::report_error(explain(app, error));
    } catch (const kd::Error& error) {
        kd::report_error(error.what());
    } catch (const std::bad_alloc&) {
        kd::report_error("out of memory");
    } catch (const std::exception& error) {
        kd::report_error(fmt::format("unexpected: {}", error.what()));
    }
    return 1;
}
