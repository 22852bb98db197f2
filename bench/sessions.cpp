// Plain decoding of several sessions at once against one session.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "support/options.h"
#include "support/report.h"
#include "support/statistics.h"

namespace kd {
namespace {

constexpr const char* kWhat =
    "Plain decoding of several sessions at once: tokens a second of all together, and how many "
    "times one session's they are. Every session has a prompt of its own (random tokens); all "
    "counts take turns, ratio is the median over the turns with its 95 % interval (bootstrap). "
    "Only rounds in which all sessions decode are timed, with all overheads.";

struct Options : ModelOptions {
    std::vector<int32_t> sessions = {1, 2, 4, 8, 16};
    int32_t context = 256;
    int32_t tokens = 32;
    double seconds = 60;
};

struct Count {
    int32_t sessions;
    std::vector<double> tokens_per_s;  // [turns]
    std::vector<double> ms;            // [turns] a round
};

Request request_of(const Options& options, int32_t vocabulary, int32_t session) {
    Request request = {.sampling = {.temperature = 0, .ignore_eos = true},
                       .max_tokens = options.tokens,
                       .speculation = {.shape = DraftShape::plain, .nodes = 1}};
    for (int32_t i = 0; i < options.context; ++i) {
        const double draw =
            uniform(static_cast<uint64_t>(session), RngStream::test, static_cast<uint64_t>(i));
        request.prompt.push_back(static_cast<int32_t>(draw * vocabulary));
    }
    return request;
}

/// One answer of each of so many sessions at once. False, and nothing counted, where they never all
/// decoded in one round.
bool run_turn(Engine& engine, const Options& options, Count& count) {
    std::vector<RequestId> ids;
    for (int32_t session = 0; session < count.sessions; ++session) {
        ids.push_back(
            engine.submit(request_of(options, engine.model_config().vocabulary, session)));
    }
    double seconds = 0;
    int32_t rounds = 0, tokens = 0;
    for (;;) {
        const auto begin = std::chrono::steady_clock::now();
        const RoundStats* stats = engine.step();
        const auto end = std::chrono::steady_clock::now();
        if (stats == nullptr) break;
        if (stats->decoding < count.sessions || stats->prefill_rows > 0) continue;
        seconds += std::chrono::duration<double>(end - begin).count();
        rounds += 1;
        tokens += stats->emitted;
    }
    for (const RequestId id : ids) engine.poll(id);
    if (rounds == 0) return false;
    count.tokens_per_s.push_back(tokens / seconds);
    count.ms.push_back(seconds * 1e3 / rounds);
    return true;
}

std::vector<Count> measure(Engine& engine, const Options& options) {
    std::vector<Count> counts;
    for (const int32_t sessions : options.sessions) counts.push_back({sessions, {}, {}});
    // Fills the prefix cache with every prompt and touches all memory; not counted.
    Count most = {*std::max_element(options.sessions.begin(), options.sessions.end()), {}, {}};
    run_turn(engine, options, most);
    const auto begin = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    for (size_t turn = 0; turn < 2 || elapsed() < options.seconds; ++turn) {
        for (size_t i = 0; i < counts.size(); ++i) {
            Count& count = counts[(turn + i) % counts.size()];
            if (run_turn(engine, options, count)) continue;
            KD_THROW(invalid_argument, "{} sessions never all decoded in one round: answers of {}",
                     count.sessions, options.tokens);
        }
    }
    return counts;
}

nlohmann::ordered_json table(const std::vector<Count>& counts) {
    fmt::print("{:>9}{:>12}{:>13}  {}\n", "sessions", "ms a round", "tokens/s",
               "ratio to one session");
    const Count& one = *std::find_if(counts.begin(), counts.end(),
                                     [](const Count& each) { return each.sessions == 1; });
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Count& count : counts) {
        const Interval ratio = median_interval(ratios(count.tokens_per_s, one.tokens_per_s));
        fmt::print("{:>9}{:>12.2f}{:>13.1f}  {}\n", count.sessions, median(count.ms),
                   median(count.tokens_per_s), interval_text(ratio, 3));
        rows.push_back({{"sessions", count.sessions},
                        {"ms_per_round", median(count.ms)},
                        {"tokens_per_s", median(count.tokens_per_s)},
                        {"ratio", interval_json(ratio)}});
    }
    return rows;
}

void run(const Options& options, int argc, char** argv) {
    const double load_before = load_average();
    const int32_t most = *std::max_element(options.sessions.begin(), options.sessions.end());
    Engine engine({.model = options.model,
                   .context_length = options.context + options.tokens,
                   .threads = options.threads,
                   .max_running_requests = most,
                   // Room for the prompts in the prefix cache beside the sessions that run.
                   .max_total_tokens = 2 * most * (options.context + options.tokens),
                   .speculative_algorithm = SpeculativeAlgorithm::none});
    const std::vector<Count> counts = measure(engine, options);
    nlohmann::ordered_json report = report_header(argc, argv, engine.config().threads);
    report["load_average"] = {load_before, load_average()};
    report["context"] = options.context;
    report["tokens"] = options.tokens;
    report["turns"] = counts.front().ms.size();
    fmt::print(
        "{}, {}, {} threads, context {}, answers of {}, {} turns, load average {:.2f} to "
        "{:.2f}\n\n",
        report["device"].get<std::string>(), report["target"].get<std::string>(),
        engine.config().threads, options.context, options.tokens, counts.front().ms.size(),
        load_before, load_average());
    report["rows"] = table(counts);
    if (!options.json.empty()) write_report(report, options.json);
}

}  // namespace
}  // namespace kd

int main(int argc, char** argv) {
    kd::Options options;
    CLI::App app(kd::kWhat);
    kd::add_model_options(app, options);
    app.add_option("--sessions", options.sessions, "at once; 1 is always among them")
        ->delimiter(',')
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    app.add_option("--context", options.context, "tokens of a prompt")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--tokens", options.tokens, "tokens of an answer")
        ->check(CLI::Range(2, 1 << 20))
        ->capture_default_str();
    app.add_option("--seconds", options.seconds, "how long to measure")->capture_default_str();
    return kd::run_program(app, argc, argv, options, [&] {
        if (std::find(options.sessions.begin(), options.sessions.end(), 1) ==
            options.sessions.end()) {
            options.sessions.insert(options.sessions.begin(), 1);
        }
        kd::run(options, argc, argv);
    });
}
