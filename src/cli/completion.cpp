#include "cli/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "app/output.h"
#include "base/error.h"
#include "cli/help.h"

namespace kd {

namespace {

// What comes before and after the tables: functions of the script, each given a command.
// COMP_WORDS is cut at "=" too, so --flag=value comes as three words.
constexpr std::string_view kBody = R"bash(
_kdtree()
{
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= i
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -* || ${COMP_WORDS[i]} == = ]]; then
            continue
        elif [[ $(_kdtree_value "$command" "${COMP_WORDS[i-1]}") != - ]]; then
            continue
        elif [[ ${COMP_WORDS[i-1]} != = ]]; then
            command=${COMP_WORDS[i]}
            break
        fi
    done
    local value=-
    if [[ $before == -* ]]; then
        value=$(_kdtree_value "$command" "$before")
    fi
    COMPREPLY=()
    case $value in
    FILE) _kdtree_files "$word" ;;
    -)
        if [[ $word == -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$(_kdtree_flags "$command")" -- "$word")
        else
            value=$(_kdtree_arguments "$command")
            if [[ $value == FILE ]]; then
                _kdtree_files "$word"
            else
                mapfile -t COMPREPLY < <(compgen -W "$value" -- "$word")
            fi
        fi
        ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$value" -- "$word") ;;
    esac
}

_kdtree_files()
{
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$1")
}

complete -F _kdtree kdtree
)bash";

/// What an option's value may be: its words, FILE, or nothing that could be listed.
std::string value_of(const CLI::Option& option) {
    const TypeText text = type_text(option);
    if (text.is_file()) return "FILE";
    std::string type = text.type;
    if (type.find('|') == type.npos) return {};
    std::replace(type.begin(), type.end(), '|', ' ');
    return type;
}

/// One line of a case statement.
std::string row(const std::string& pattern, const std::string& value) {
    return fmt::format("    {}) echo '{}' ;;\n", pattern, value);
}

/// For each command and flag that takes a value: what it may be; for all others "-".
std::string value_rows(const std::string& pattern, const CLI::App& app) {
    std::string rows;
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_lnames().empty() || option->get_items_expected_max() == 0) continue;
        std::string flags;
        for (const std::string& name : option->get_lnames()) {
            flags += fmt::format("{}{}--{}", flags.empty() ? "" : "|", pattern, name);
        }
        rows += row(flags, value_of(*option));
    }
    return rows;
}

std::string arguments_of(const CLI::App& command, const std::string& commands) {
    const std::string name = command.get_name();
    if (name == "help") return commands;
    for (const CLI::Option* option : command.get_options()) {
        if (!option->get_positional()) continue;
        // These take one of a few names; the type lists them.
        if (name == "completion" || name == "fetch") return type_text(*option).type;
        return value_of(*option);
    }
    return {};
}

std::string joined(const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, " "));
}

/// The script for all commands of `app`.
std::string bash_completion(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    std::string flags = "_kdtree_flags()\n{\n    case $1 in\n";
    std::string arguments = "_kdtree_arguments()\n{\n    case $1 in\n";
    // A command's own options go first; the program's fit behind every command.
    std::string values = "_kdtree_value()\n{\n    case $1$2 in\n";
    for (const CLI::App* command : app.get_subcommands({})) {
        flags += row(command->get_name(), joined(long_flags(app, command)));
        arguments += row(command->get_name(), arguments_of(*command, joined(names)));
        values += value_rows(command->get_name(), *command);
    }
    flags += row("*", joined(long_flags(app, nullptr)));
    arguments += row("*", joined(names));
    values += value_rows("*", app) + row("*", "-");
    const std::string_view end = "    esac\n}\n\n";
    return fmt::format(
        "# bash completion for kdtree, made by: kdtree completion bash\n\n"
        "{}{}{}{}{}{}{}",
        flags, end, arguments, end, values, "    esac\n}\n", kBody);
}

}  // namespace

Command add_completion(CLI::App& app) {
    auto shell = std::make_shared<std::string>();
    CLI::App* completion = app.add_subcommand(
        "completion",
        "Print a script that completes this program's commands and options\n"
        "Made from the same table that parses the command line: it knows all commands, flags, "
        "choices and which flags take files. Only bash is known.");
    completion->add_option("SHELL", *shell, "the shell")->type_name("bash")->required();
    completion->footer(
        "Examples: source <(kdtree completion bash)\n"
        "kdtree completion bash > ~/.local/share/bash-completion/completions/kdtree");
    return {.parser = completion, .action = [shell, &app] {
                if (*shell != "bash") {
                    KD_THROW(invalid_argument, "no completion for \"{}\", only for bash", *shell);
                }
                write_out(bash_completion(app));
                return 0;
            }};
}

}  // namespace kd
