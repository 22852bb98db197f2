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
Command add_completion(CLI::App& app);
Command add_help(CLI::App& app);
Command add_score(CLI::App& app);
Command add_tokenize(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_fetch(CLI::App& app);

}  // namespace kd
