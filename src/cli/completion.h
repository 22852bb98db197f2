// kdtree completion bash: a script made from the parser, so that it knows every command, flag and
// choice of words.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace kd {

Command add_completion(CLI::App& app);

}  // namespace kd
