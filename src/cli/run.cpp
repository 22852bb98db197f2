#include "app/run.h"

#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

#include "app/batch_run.h"
#include "app/chat.h"
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
    AnswerOptions answer;
    PromptSource source;
    bool chat = false;
    std::optional<std::string> prompts;
    std::string json;
    int32_t max_running_requests = 8;
    int32_t limit = 0;
    int32_t samples = 0;
    bool overwrite = false;
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

void add_source_options(CLI::App& run, RunArguments& arguments) {
    const OptionGroup group(run, "Prompt");
    PromptSource& source = arguments.source;
    run.add_option("--prompt", source.text, "the prompt");
    run.add_option("--prompt-file", source.file, "a file with the prompt (-: standard input)")
        ->type_name("FILE");
    run.add_option("PROMPT", source.bare,
                   "the prompt, without a flag; none at all: standard input");
    run.add_flag(
        "--chat", arguments.chat,
        "a conversation: messages from the terminal or standard input, /help for the rest");
    run.add_option("--prompts", arguments.prompts,
                   "many prompts in one batch: lines {\"id\", \"turns\": [text, ...]} (-: standard "
                   "input), answered to --json")
        ->type_name("FILE");
    run.add_option("--limit", arguments.limit, "--prompts: answer the first ones (default: all)")
        ->check(range(1, 1 << 30));
    run.add_option("--max-running-requests", arguments.max_running_requests,
                   "--prompts: answers at a time")
        ->check(range(1, 256))
        ->capture_default_str();
    run.add_option("--system", arguments.answer.system,
                   "the conversation's system message (default: what the model's template says)");
    run.add_flag("--raw", arguments.answer.raw, "the prompt as it is, without the chat template");
}

void add_answer_options(CLI::App& run, RunArguments& arguments) {
    AnswerOptions& answer = arguments.answer;
    run.add_option("--max-tokens", answer.max_tokens,
                   "most tokens an answer (default: the context's room)")
        ->check(range(1, 1 << 24));
    // One string a flag: a list would take the prompt behind it, and split "[END]".
    run.add_option("--stop", answer.stop, "end the answer before this string (repeatable)")
        ->allow_extra_args(false);
    run.add_option("--n", arguments.samples,
                   "--prompts: answers to each prompt, as \"choices\"; choice i has seed + i")
        ->check(range(1, kMaxChoices));
}

void add_output_options(CLI::App& run, RunArguments& arguments) {
    const OptionGroup group(run, "Output");
    AnswerOptions& answer = arguments.answer;
    run.add_option(
           "--json", arguments.json,
           "the answer's ids, text and figures as JSON to this file; --prompts: a line "
           "each, going on where an earlier run ended (-: standard output, and nothing else "
           "there)")
        ->type_name("FILE");
    run.add_flag("--overwrite", arguments.overwrite, "--prompts: start the --json file anew");
    run.add_option("--logprobs", answer.top_logprobs,
                   "also the log-probability of every token of the answer, and of so many of the "
                   "most likely ones, to --json")
        ->check(range(0, kMaxTopLogprobs))
        ->default_str("");
    run.add_flag("--stats", answer.stats, "speed and acceptance at the end, on standard error");
    run.add_option("--stats-json", answer.stats_json, "the same as a JSON file")->type_name("FILE");
    run.add_flag("--show-tree", answer.show_tree,
                 "draw every round's tree on standard error, accepted nodes marked *");
}

struct GivenFlag {
    bool given;
    const char* name;
};

/// Refuses the first flag that means nothing together with `mode`.
void refuse_flags(const char* mode, std::initializer_list<GivenFlag> flags) {
    for (const GivenFlag& flag : flags) {
        if (flag.given) KD_THROW(invalid_argument, "{} cannot be used {}", flag.name, mode);
    }
}

void check_combination(const RunArguments& given) {
    const PromptSource& source = given.source;
    const bool prompt =
        source.text.has_value() || source.file.has_value() || source.bare.has_value();
    const GivenFlag prompt_flag = {prompt, "a prompt"};
    if (given.answer.raw && !given.answer.system.empty()) {
        KD_THROW(invalid_argument, "--system cannot be used with --raw: there is no template");
    }
    if (given.answer.top_logprobs >= 0 && given.json.empty()) {
        KD_THROW(invalid_argument, "--logprobs goes to a file: use --json");
    }
    if (!given.json.empty() && given.json == given.answer.stats_json) {
        KD_THROW(invalid_argument, "--json and --stats-json cannot both go to {}",
                 given.json == "-" ? "standard output" : given.json);
    }
    if (given.chat) {
        return refuse_flags("with --chat", {prompt_flag,
                                            {given.prompts.has_value(), "--prompts"},
                                            {!given.json.empty(), "--json"},
                                            {!given.answer.stats_json.empty(), "--stats-json"},
                                            {given.answer.raw, "--raw"},
                                            {given.limit > 0, "--limit"},
                                            {given.samples > 0, "--n"},
                                            {given.overwrite, "--overwrite"}});
    }
    if (given.prompts.has_value()) {
        if (given.json.empty()) {
            KD_THROW(invalid_argument, "--prompts needs --json FILE for the answers");
        }
        return refuse_flags("with --prompts",
                            {prompt_flag, {given.answer.show_tree, "--show-tree"}});
    }
    refuse_flags("without --prompts", {{given.limit > 0, "--limit"},
                                       {given.samples > 0, "--n"},
                                       {given.overwrite, "--overwrite"}});
}

int run_given(RunArguments& given) {
    check_combination(given);
    Config& config = given.answer.config;
    config.max_draft_tokens = std::max(config.max_draft_tokens, given.answer.speculation.nodes);
    if (given.chat) return chat(given.answer);
    if (given.prompts.has_value()) {
        config.max_running_requests = given.max_running_requests;
        return batch_run({.answer = given.answer,
                          .prompts = *given.prompts,
                          .json = given.json,
                          .limit = given.limit,
                          .samples = given.samples,
                          .overwrite = given.overwrite});
    }
    return run({.answer = given.answer, .prompt = prompt_text(given.source), .json = given.json});
}

}  // namespace

Command add_run(CLI::App& app) {
    auto kept = std::make_shared<RunArguments>();
    AnswerOptions& answer = kept->answer;
    CLI::App* run =
        app.add_subcommand("run", "Answer a prompt, hold a conversation, answer a file of prompts");
    add_source_options(*run, *kept);
    add_model_options(*run, answer.config);
    add_pool_options(*run, answer.config);
    add_speculation_options(*run, answer.config, answer.speculation.nodes,
                            "the measured cost picks");
    add_sampling_options(*run, answer.sampling);
    add_logit_bias_option(*run, answer.logit_bias);
    add_answer_options(*run, *kept);
    add_output_options(*run, *kept);
    run->footer(
        "Example: kdtree run --max-tokens 100 --stats \"Why is the sky blue?\"\n"
        "Example: kdtree run --chat --temperature 0.7\n"
        "Example: kdtree run --prompts prompts.jsonl --json answers.jsonl\n"
        "Exit codes: 0 done, 1 error or a prompt that could not be answered, 130 interrupted by "
        "Ctrl-C.");
    return {.parser = run, .action = [kept] { return run_given(*kept); }};
}

}  // namespace kd
