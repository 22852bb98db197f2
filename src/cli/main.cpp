// The kdtree program: parses the command line; what the commands do is in src/app.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "app/interrupt.h"
#include "app/output.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "kdtree_version.h"

namespace {

std::string names_of(const std::vector<kd::Command>& commands) {
    std::string names;
    for (const kd::Command& command : commands) {
        if (!names.empty()) names += &command == &commands.back() ? " or " : ", ";
        names += command.parser->get_name();
    }
    return names;
}

/// What the parser found wrong, in one line that says where to look.
std::string explain(const CLI::App& app, const CLI::ParseError& error,
                    const std::vector<kd::Command>& commands) {
    const std::vector<CLI::App*> given = app.get_subcommands();
    if (!given.empty()) {
        return fmt::format("{} (see kdtree {} --help)", error.what(), given[0]->get_name());
    }
    const std::string names = names_of(commands);
    const std::vector<std::string> unknown = app.remaining();
    if (unknown.empty()) return fmt::format("no command is given: {} (see kdtree --help)", names);
    return fmt::format("\"{}\" is no command: {} (see kdtree --help)", unknown[0], names);
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Speculative decoding with draft trees", "kdtree");
    app.set_version_flag("--version", "kdtree " KDTREE_VERSION " (" KDTREE_COMMIT ")");
    app.require_subcommand(1);
    bool verbose = false;
    app.add_flag("--verbose", verbose, "say what is going on, on standard error");
    app.fallthrough();
    const std::vector<kd::Command> commands = {kd::add_run(app), kd::add_bench(app)};
    kd::exit_on_interrupts();
    try {
        app.parse(argc, argv);
        const bool terminal = isatty(STDERR_FILENO) != 0;
        kd::set_log_level(verbose || terminal ? kd::LogLevel::notice : kd::LogLevel::warning);
        for (const kd::Command& command : commands) {
            if (command.parser->parsed()) return command.action();
        }
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        kd::report_error(explain(app, error, commands));
    } catch (const kd::Error& error) {
        kd::report_error(error.what());
    } catch (const std::bad_alloc&) {
        kd::report_error("out of memory");
    } catch (const std::exception& error) {
        kd::report_error(fmt::format("unexpected: {}", error.what()));
    }
    return 1;
}
