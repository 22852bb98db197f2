// What --help says, in the manner of a man page, made from the parser.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace kd {

/// `kdtree --help`: the commands by group with a line each.
std::string program_help(const CLI::App& app, int columns);

/// `kdtree COMMAND --help`. A command's footer is lines "Title: text", each a section (Example,
/// Exit codes, ...); a line without a title belongs to the section above it.
std::string command_help(const CLI::App& app, const CLI::App& command, int columns);

/// The width of the terminal that standard output is, else 80.
int help_columns();

/// All --flags of the program and, if given, of one command.
std::vector<std::string> long_flags(const CLI::App& app, const CLI::App* command);

/// An option's type as the user writes it ("INT", "fast|ref"; "FILE", also with an ending, for one
/// that bash should complete as a file; empty for a switch) and, kept apart, what its checks allow
/// ("1..1024").
struct TypeText {
    std::string type;
    std::string allowed;

    bool is_file() const { return type.starts_with("FILE") || type.starts_with("DIR"); }
};
TypeText type_text(const CLI::Option& option);

/// The known word that `word` was probably meant to be, or nothing.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// kdtree help [COMMAND]
Command add_help(CLI::App& app);

}  // namespace kd
