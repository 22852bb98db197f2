#include "support/options.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "support/report.h"
#include "support/target.h"

namespace kd {

void add_model_options(CLI::App& app, ModelOptions& options) {
    app.add_option("--model", options.model, "a name or a GGUF file")->capture_default_str();
    app.add_option("--threads", options.threads, "default: what affinity and cgroup allow")
        ->check(CLI::Range(1, 1024));
    app.add_option("--target", options.target,
                   "instruction set by Highway's name, such as AVX2 (default: the best one)");
    app.add_option("--json", options.json, "write all figures to this file");
}

int run_program(CLI::App& app, int argc, char** argv, const ModelOptions& options,
                const std::function<void()>& body) {
    CLI11_PARSE(app, argc, argv);
    try {
        expect_report_writable(options.json);
        if (!options.target.empty()) force_dispatch_target(options.target);
        body();
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "error: {}\n", error.what());
    }
    return 1;
}

}  // namespace kd
