// What loading takes, part by part, and the first token after it. Once a process: the second time
// would find warm memory. bench/startup.py runs it again and again.
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

#include "backends/cpu/arena.h"
#include "backends/cpu/threads.h"
#include "base/error.h"
#include "engine/engine.h"
#include "formats/model_file.h"
#include "formats/model_tokenizer.h"
#include "models/model.h"
#include "support/options.h"
#include "support/report.h"

namespace kd {
namespace {

constexpr const char* kWhat =
    "Seconds of the parts of loading, each on its own: mapping the file and reading its header, "
    "the tokenizer, reading and packing the weights; then of a whole engine: loading it, its cost "
    "table (read, or measured where the cache has none), the prompt, the round of the first "
    "token. JSON on standard output.";

struct Options : ModelOptions {
    int32_t context = 16;
};

class Laps {
  public:
    /// Seconds since the last lap, under `name`.
    void operator()(const char* name) {
        const auto now = std::chrono::steady_clock::now();
        seconds_[name] = std::chrono::duration<double>(now - last_).count();
        last_ = std::chrono::steady_clock::now();
    }
    const nlohmann::ordered_json& seconds() const { return seconds_; }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
    nlohmann::ordered_json seconds_;
};

void run(const Options& options, int argc, char** argv) {
    const std::string path = resolve_model(options.model);
    ThreadPool threads(options.threads > 0 ? options.threads : default_threads());
    Laps lap;
    {
        Arena packed;
        Stream stream{.threads = &threads, .weights = &packed};
        const ModelFile file(path);
        const ModelConfig shape = read_model_config(file);
        lap("file");
        const Tokenizer tokenizer(read_tokenizer(file, shape.vocabulary));
        lap("tokenizer");
        const auto model = load_model(file, {.rows = 160, .logit_rows = 160, .keys = 512}, stream);
        lap("weights");
    }
    lap("freed");
    Engine engine({.model = options.model, .threads = options.threads});
    lap("engine");
    engine.cost();
    lap("cost_table");
    engine.submit(
        {.prompt = std::vector<int32_t>(static_cast<size_t>(options.context), 1), .max_tokens = 1});
    const RoundStats* stats = engine.step();
    lap("prompt");
    while (stats != nullptr && stats->decoding == 0) stats = engine.step();
    lap("first_round");
    nlohmann::ordered_json report = report_header(argc, argv, threads.threads());
    report["seconds"] = lap.seconds();
    fmt::print("{}\n", report.dump());
    if (!options.json.empty()) write_report(report, options.json);
}

}  // namespace
}  // namespace kd

int main(int argc, char** argv) {
    kd::Options options;
    CLI::App app(kd::kWhat);
    kd::add_model_options(app, options);
    app.add_option("--context", options.context, "tokens of the prompt")
        ->check(CLI::Range(2, 128))
        ->capture_default_str();
    return kd::run_program(app, argc, argv, options, [&] { kd::run(options, argc, argv); });
}
