#include "app/tokenize.h"

#include <memory>

#include "cli/commands.h"

namespace kd {

Command add_tokenize(CLI::App& app) {
    auto kept = std::make_shared<TokenizeOptions>();
    TokenizeOptions& options = *kept;
    CLI::App* tokenize =
        app.add_subcommand("tokenize", "Texts or conversations to token ids, ids to texts");
    tokenize
        ->add_option("--model", options.model, "smollm2, a .gguf file, or a Hugging Face folder")
        ->type_name("FILE")
        ->capture_default_str();
    tokenize
        ->add_option("FILE", options.input,
                     "lines {\"text\": ..., \"special\": true|false} (-: standard input); special: "
                     "strings such as <|im_end|> become control tokens (default: false)")
        ->type_name("FILE.jsonl")
        ->capture_default_str();
    CLI::Option* decode = tokenize->add_flag_callback(
        "--decode", [&options] { options.task = TokenizeTask::decode; },
        "lines {\"ids\": [...], \"special\": true|false} to {\"text\"}; special: control tokens "
        "are "
        "written out (default: left out). Bytes that are no UTF-8 become U+FFFD");
    CLI::Option* chat = tokenize->add_flag_callback(
        "--chat", [&options] { options.task = TokenizeTask::chat; },
        "lines {\"messages\": [...], \"tools\", \"add_generation_prompt\", any variable of the "
        "template} to {\"text\", \"ids\"}");
    chat->excludes(decode);
    tokenize
        ->add_option("--chat-template", options.chat_template,
                     "with --chat: a file with a Jinja template instead of the model's")
        ->type_name("FILE")
        ->needs(chat);
    tokenize
        ->add_option("--json", options.json, "write the lines to this file (-: standard output)")
        ->type_name("FILE")
        ->capture_default_str();
    tokenize->footer(
        "Output: one line for each line of the input, in their order and as soon as it is there: "
        "{\"ids\"}, or what --decode and --chat say. A line that is refused gives {\"error\"}, and "
        "the rest goes on. Blank lines are skipped; other keys of a line are ignored.\n"
        "Example: echo '{\"text\": \"The sky is blue\"}' | kdtree tokenize\n"
        "Exit codes: 0 done, 1 error or a line refused, 130 interrupted by Ctrl-C.");
    return {.parser = tokenize, .action = [kept] { return kd::tokenize(*kept); }};
}

}  // namespace kd
