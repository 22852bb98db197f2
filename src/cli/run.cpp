#include "app/run.h"

#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include "app/prompt.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace kd {

namespace {

/// Where run's prompt comes from; exactly one.
struct PromptSource {
    std::optional<std::string> text;
    std::optional<std::string> file;
    std::optional<std::string> bare;
};

struct RunArguments {
    RunOptions options;
    PromptSource source;
};

std::string prompt_text(const PromptSource& source) {
    if (source.text.has_value() + source.file.has_value() + source.bare.has_value() > 1) {
        KD_THROW(invalid_argument, "more than one of --prompt, --prompt-file and PROMPT is given");
    }
    if (source.text.has_value()) return *source.text;
    if (source.bare.has_value()) return *source.bare;
    if (source.file.has_value()) return read_text(*source.file);
    if (isatty(STDIN_FILENO) != 0) {
        KD_THROW(invalid_argument,
                 "no prompt: use --prompt TEXT, --prompt-file F or standard input");
    }
    return read_text("-");
}

}  // namespace

Command add_run(CLI::App& app) {
    auto kept = std::make_shared<RunArguments>();
    auto& [options, source] = *kept;
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
    return {.parser = run, .action = [kept] {
                auto& [given, from] = *kept;
                given.prompt = prompt_text(from);
                given.config.max_draft_tokens =
                    std::max(given.config.max_draft_tokens, given.speculation.nodes);
                return kd::run(given);
            }};
}

}  // namespace kd
