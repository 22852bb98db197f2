#include "cli/shell.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "cli/config_file.h"
#include "cli/help.h"
#include "kdtree_version.h"

namespace kd {

Shell::Shell() : app("Speculative decoding with draft trees", "kdtree") {
    app.set_version_flag("--version", "kdtree " KDTREE_VERSION " (" KDTREE_COMMIT ")");
    app.get_option("--version")->description("print version and commit, and exit");
    app.set_help_flag("-h,--help", "print this help and exit");
    app.require_subcommand(1);
    // Behind the command too.
    app.fallthrough();
    app.add_flag("--verbose", verbose,
                 "say what is going on, and the settings in effect, on standard error");
    app.add_option("--config", config_file,
                   "take options from this TOML file; the command line wins over it")
        ->type_name("FILE");
    for (CLI::Option* option : app.get_options()) option->group("General");
    commands = add_commands(app);
    for (const Command& command : commands) command.parser->get_help_ptr()->group("General");
}

namespace {

std::vector<std::string> command_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    return names;
}

const CLI::App* chosen_command(const CLI::App& app) {
    const std::vector<CLI::App*> given = app.get_subcommands();
    return given.empty() ? nullptr : given[0];
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
    const std::string guess = nearest(word, known);
    return guess.empty() ? std::string{} : fmt::format(", did you mean {}?", guess);
}

/// What is wrong, in one line that says where to look.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App* command = chosen_command(app);
    const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
    const bool extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    if (command == nullptr) {
        if (unknown.empty()) return "no command is given (see kdtree --help)";
        std::vector<std::string> known = command_names(app);
        const bool flag = unknown[0].starts_with("-");
        if (flag) known = long_flags(app, nullptr);
        return fmt::format("\"{}\" is no {}{} (see kdtree --help)", unknown[0],
                           flag ? "option" : "command", did_you_mean(unknown[0], known));
    }
    const std::string where = fmt::format("(see kdtree {} --help)", command->get_name());
    if (!extras || unknown.empty()) return fmt::format("{} {}", error.what(), where);
    if (!unknown[0].starts_with("-")) {
        return fmt::format("\"{}\" is one argument too many for {} {}", unknown[0],
                           command->get_name(), where);
    }
    const std::string flag = unknown[0].substr(0, unknown[0].find('='));
    return fmt::format("{} is no option of {}{} {}", flag, command->get_name(),
                       did_you_mean(flag, long_flags(app, command)), where);
}

/// The outcome that CLI11 tells by throwing; null: parsed.
std::unique_ptr<CLI::ParseError> parse(Shell& shell, int argc, const char* const* argv) {
    try {
        shell.app.parse(argc, argv);
    } catch (const CLI::RequiredError& error) {
        return std::make_unique<CLI::RequiredError>(error);
    } catch (const CLI::CallForVersion& version) {
        shell.output = fmt::format("{}\n", version.what());
        return nullptr;
    } catch (const CLI::CallForHelp&) {
        const CLI::App* command = chosen_command(shell.app);
        shell.output = command != nullptr ? command_help(shell.app, *command, help_columns())
                                          : program_help(shell.app, help_columns());
        return nullptr;
    } catch (const CLI::ParseError& error) {
        KD_THROW(invalid_argument, "{}", explain(shell.app, error));
    }
    for (const Command& command : shell.commands) {
        if (command.parser->parsed()) shell.chosen = &command;
    }
    return nullptr;
}

}  // namespace

std::unique_ptr<Shell> parse_command_line(int argc, const char* const* argv) {
    auto shell = std::make_unique<Shell>();
    std::unique_ptr<CLI::ParseError> missing = parse(*shell, argc, argv);
    const CLI::App* command = chosen_command(shell->app);
    if (!shell->config_file.empty() && shell->output.empty() && command != nullptr) {
        // What the command line gave is known only now, so the file is applied to a fresh parser
        // that then parses once more. Only a missing option may have been missing until then.
        const ConfigFile file = read_config_file(shell->config_file);
        auto second = std::make_unique<Shell>();
        apply_config(file, shell->app, second->app);
        missing = parse(*second, argc, argv);
        shell = std::move(second);
    }
    if (missing != nullptr) KD_THROW(invalid_argument, "{}", explain(shell->app, *missing));
    return shell;
}

}  // namespace kd
