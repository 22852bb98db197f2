// The options and the main function that programs with a model share.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace kd {

struct ModelOptions {
    std::string model = "smollm2";
    int threads = 0;     // 0: what this process may use
    std::string target;  // empty: the best one
    std::string json;    // empty: none
};

/// --model, --threads, --target and --json.
void add_model_options(CLI::App& app, ModelOptions& options);

/// Parses the command line, forces the dispatch target, checks that the report can be written and
/// calls `body`. Returns the exit code; errors go to standard error as one line.
int run_program(CLI::App& app, int argc, char** argv, const ModelOptions& options,
                const std::function<void()>& body);

}  // namespace kd
