// The whole parser: the program's own options, its commands and the file of --config.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace kd {

/// All commands, in the order of --help (main.cpp).
std::vector<Command> add_commands(CLI::App& app);

struct Shell {
    Shell();
    Shell(const Shell&) = delete;
    Shell& operator=(const Shell&) = delete;

    CLI::App app;
    bool verbose = false;
    std::string config_file;
    std::vector<Command> commands;
    std::string output;               // --help, --version: print this and do nothing else
    const Command* chosen = nullptr;  // set unless there is `output`
};

/// Parses the command line, then the file of --config for what the command line leaves open.
/// Throws kd::Error: one line that names the flag or key, and the nearest one for an unknown one.
std::unique_ptr<Shell> parse_command_line(int argc, const char* const* argv);

}  // namespace kd
