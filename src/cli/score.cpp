#include "app/score.h"

#include <unistd.h>

#include <memory>
#include <optional>

#include "base/error.h"
#include "base/sampling_params.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace kd {

namespace {

struct ScoreArguments {
    ScoreOptions options;
    std::optional<std::string> file;
};

}  // namespace

Command add_score(CLI::App& app) {
    auto kept = std::make_shared<ScoreArguments>();
    auto& [options, file] = *kept;
    options.config.max_running_requests = 4;
    CLI::App* score = app.add_subcommand("score", "Log-probabilities and perplexity of texts");
    add_model_options(*score, options.config);
    score
        ->add_option("FILE", file,
                     "lines {\"text\": ..., \"special\": true|false} or {\"ids\": [...]} (-: "
                     "standard input, as none at all); special: control tokens written in the "
                     "text count as such (default: false)")
        ->type_name("FILE.jsonl");
    score
        ->add_option("--top", options.top,
                     "most likely tokens listed for each position (default: none)")
        ->check(range(0, kMaxTopLogprobs))
        ->group("Output");
    score
        ->add_option("--max-running-requests", options.config.max_running_requests,
                     "texts in one batch")
        ->check(range(1, 256))
        ->capture_default_str();
    score->add_option("--json", options.json, "write the lines to this file (-: standard output)")
        ->type_name("FILE")
        ->capture_default_str()
        ->group("Output");
    score->footer(
        "Output: one line for each line of the input, in their order: "
        "{\"positions\": [{\"logprob\", \"top\": [{\"id\", \"logprob\"}, ...]}, ...]}. Position i "
        "stands for token i + 1 of the text; logarithms are natural. A line that cannot be scored "
        "gives {\"error\"}. The perplexity of all positions follows on standard error.\n"
        "Example: echo '{\"text\": \"The sky is blue\"}' | kdtree score --top 3\n"
        "Exit codes: 0 done, 1 error or a line refused, 130 interrupted by Ctrl-C.");
    return {.parser = score, .action = [kept] {
                auto& [given, from] = *kept;
                if (!from.has_value() && isatty(STDIN_FILENO) != 0) {
                    KD_THROW(invalid_argument, "no input: give FILE.jsonl or standard input");
                }
                given.input = from.value_or("-");
                return kd::score(given);
            }};
}

}  // namespace kd
