// The commands of the kdtree program: each adds its parser, and what to do once that has parsed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace kd {

struct Command {
    CLI::App* parser = nullptr;
    std::function<int()> action;  // returns the exit code; throws kd::Error
};

Command add_run(CLI::App& app);
Command add_bench(CLI::App& app);

}  // namespace kd
