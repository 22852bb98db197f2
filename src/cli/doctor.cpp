#include "app/doctor.h"

#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/options.h"

namespace kd {

Command add_doctor(CLI::App& app) {
    auto kept = std::make_shared<DoctorOptions>();
    DoctorOptions& options = *kept;
    CLI::App* doctor = app.add_subcommand(
        "doctor", "Is this machine in order for a model, and what speed is to be expected");
    add_model_options(*doctor, options.config);
    add_speculation_options(*doctor, options.config, options.speculation.nodes,
                            "the measured cost picks");
    add_json_option(*doctor, options.json, "all checks and figures");
    doctor->footer(
        "A line a check: ok, warning or problem, with what to do about it. Decodes a few hundred "
        "tokens, with and without speculation, to tell the speed; the first run measures the cost "
        "of verification and keeps it, as kdtree run does.\n"
        "Example: kdtree doctor --model model.gguf\n"
        "Exit codes: 0 the model can be run (warnings or not), 1 a problem keeps it from running "
        "or error, 130 interrupted by Ctrl-C.");
    return {.parser = doctor, .action = [kept] {
                Config& config = kept->config;
                config.max_draft_tokens =
                    std::max(config.max_draft_tokens, kept->speculation.nodes);
                return kd::doctor(*kept);
            }};
}

}  // namespace kd
