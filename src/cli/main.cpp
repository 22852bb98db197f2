// The kdtree program: parses the command line; what the commands do is in src/app.
#include <fmt/format.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <string>

#include "app/interrupt.h"
#include "app/output.h"
#include "app/settings.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/shell.h"

namespace kd {

// The groups and the order of --help. Each command has its file here and its line in commands.h.
std::vector<Command> add_commands(CLI::App& app) {
    std::vector<Command> commands;
    const auto group = [&](const char* title, const std::vector<Command>& members) {
        for (const Command& command : members) {
            command.parser->group(title);
            commands.push_back(command);
        }
    };
    group("Generate and score", {
                                    add_run(app),
                                    add_score(app),
                                });
    group("Look inside", {
                             add_tokenize(app),
                             add_inspect(app),
                         });
    group("Set up", {
                        add_fetch(app),
                        add_doctor(app),
                    });
    group("Measure", {
                         add_bench(app),
                     });
    group("Help", {
                      add_completion(app),
                      add_help(app),
                  });
    return commands;
}

namespace {

int run_program(int argc, char** argv) {
    const std::unique_ptr<Shell> shell = parse_command_line(argc, argv);
    if (shell->chosen == nullptr) {
        write_out(shell->output);
        return 0;
    }
    const bool terminal = isatty(STDERR_FILENO) != 0;
    set_log_level(shell->verbose || terminal ? LogLevel::notice : LogLevel::warning);
    set_verbose(shell->verbose);
    return shell->chosen->action();
}

}  // namespace

}  // namespace kd

int main(int argc, char** argv) {
    kd::hold_standard_streams();
    kd::exit_on_interrupts();
    try {
        return kd::run_program(argc, argv);
    } catch (const kd::Error& error) {
        kd::report_error(error.what());
    } catch (const std::bad_alloc&) {
        kd::report_error("out of memory");
    } catch (const std::exception& error) {
        kd::report_error(fmt::format("unexpected: {}", error.what()));
    }
    return 1;
}
