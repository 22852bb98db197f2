#include "app/inspect.h"

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"

namespace kd {

Command add_inspect(CLI::App& app) {
    auto kept = std::make_shared<InspectOptions>();
    InspectOptions& options = *kept;
    CLI::App* inspect =
        app.add_subcommand("inspect", "What is in a model file, and whether it can be run");
    inspect
        ->add_option("MODEL", options.model,
                     "smollm2, a .gguf file, or a folder of a model or drafter")
        ->type_name("FILE")
        ->capture_default_str();
    inspect->add_flag("--tensors", options.tensors, "list all tensors")->group("Output");
    inspect
        ->add_flag("--template", options.chat_template, "print the chat template and nothing else")
        ->group("Output");
    add_json_option(*inspect, options.json, "the report");
    inspect->footer(
        "Example: kdtree inspect --tensors model.gguf\n"
        "Exit codes: 0 the model (or drafter) can be run, 1 error, 2 a sound file that cannot be "
        "run, 130 "
        "interrupted by Ctrl-C.");
    return {.parser = inspect, .action = [kept] { return kd::inspect(*kept); }};
}

}  // namespace kd
