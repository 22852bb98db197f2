// kdtree completion bash: a script made from the parser, so that it knows every command, flag and
// choice of words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/commands.h"

namespace kd {

/// The bash script for all commands of `app`.
std::string bash_completion(const CLI::App& app);

Command add_completion(CLI::App& app);

}  // namespace kd
