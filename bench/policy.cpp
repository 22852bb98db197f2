// Fixed budgets beside the cost model's choice, with an oracle drafter; and what the cost model
// predicts beside what rounds take.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "policy/measure.h"
#include "policy/report.h"
#include "support/options.h"
#include "support/report.h"

namespace kd {
namespace {

constexpr const char* kWhat =
    "Fixed budgets beside the cost model's choice, with an oracle drafter of a profile's hit "
    "rates.\n\n"
    "For every prompt (random tokens) each mode writes the same answer, in a random order. "
    "The policy learns from its own rounds alone.\n\n"
    "Columns: rows, tokens (length) and expected tokens a round, the latter by the drafter's "
    "probabilities and thus without the luck of the draws; ms a round with all overheads, other: "
    "what is not the target's forward; ratio to plain: expected tokens a second, the median over "
    "prompts with its 95 % interval (bootstrap).";

struct Options : ModelOptions {
    std::string profile;
    std::vector<int32_t> budgets = {2, 3, 4, 5, 6, 8, 12, 16};
    int32_t nodes = 32;  // most rows that the policy may pick
    int32_t context = 256;
    int32_t tokens = 48;
    double seconds = 100;
};

/// Random tokens, different for every prompt.
Request request_of(const Options& options, int32_t vocabulary, uint64_t prompt) {
    Request request = {.sampling = {.temperature = 0, .seed = prompt, .ignore_eos = true},
                       .max_tokens = options.tokens};
    for (int32_t i = 0; i < options.context; ++i) {
        const double draw = uniform(prompt, RngStream::test, static_cast<uint64_t>(i));
        request.prompt.push_back(static_cast<int32_t>(draw * vocabulary));
    }
    return request;
}

Speculation speculation_of(const ModeAnswers& mode) {
    const bool plain = mode.name == "plain";
    return {.shape = plain ? DraftShape::plain : DraftShape::tree, .nodes = mode.budget};
}

class PolicyBench {
  public:
    explicit PolicyBench(const Options& options)
        : options_(options),
          subject_(config_of(options)),
          learnt_by_fixed_{.cost = subject_.table(), .lessons = {}},
          learnt_by_policy_(learnt_by_fixed_) {
        fixed_.push_back({.name = "plain", .budget = 1, .answers = {}});
        for (const int32_t budget : options.budgets) {
            if (budget > 1) fixed_.push_back({.name = "tree", .budget = budget, .answers = {}});
        }
    }

    int threads() const { return subject_.config().threads; }

    /// Prompt after prompt until the time is over, at least two.
    void measure() {
        const auto begin = std::chrono::steady_clock::now();
        const auto elapsed = [&] {
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        };
        for (uint64_t prompt = 0; prompt < 2 || elapsed() < options_.seconds; ++prompt) {
            run_prompt(prompt);
        }
    }

    nlohmann::ordered_json report() const {
        nlohmann::ordered_json out = {{"prompts", policy_.answers.size()}};
        fmt::print("{} prompts\n", policy_.answers.size());
        out.update(report_policy(fixed_, policy_));
        return out;
    }

  private:
    static Config config_of(const Options& options) {
        int32_t nodes = options.nodes;
        for (const int32_t budget : options.budgets) nodes = std::max(nodes, budget);
        return {.model = options.model,
                .context_length = options.context + options.tokens,
                .threads = options.threads,
                .speculative_algorithm = SpeculativeAlgorithm::oracle,
                .speculative_draft_model_path = options.profile,
                .max_draft_tokens = nodes};
    }

    void run_prompt(uint64_t prompt) {
        Request request = request_of(options_, subject_.vocabulary(), prompt);
        // What the oracle replays; not counted: it also reads the prompt.
        const ModeAnswers plain = {.name = "plain", .budget = 1, .answers = {}};
        request.known_continuation =
            subject_.answer(request, speculation_of(plain), learnt_by_fixed_).ids;
        std::vector<ModeAnswers*> turns;
        for (ModeAnswers& mode : fixed_) turns.push_back(&mode);
        turns.push_back(&policy_);
        // Not in turns: then each mode would always follow the same one, whose rows leave the
        // caches and the clock as they are.
        std::shuffle(turns.begin(), turns.end(), std::mt19937_64(prompt));
        for (ModeAnswers* mode : turns) {
            Learnt& learnt = mode == &policy_ ? learnt_by_policy_ : learnt_by_fixed_;
            mode->answers.push_back(subject_.answer(request, speculation_of(*mode), learnt));
            KD_CHECK(mode->answers.back().ids == request.known_continuation,
                     "{} {} writes another text than plain decoding", mode->name, mode->budget);
        }
    }

    const Options& options_;
    PolicySubject subject_;
    Learnt learnt_by_fixed_;
    Learnt learnt_by_policy_;
    std::vector<ModeAnswers> fixed_;
    ModeAnswers policy_{.name = "policy", .budget = 0, .answers = {}};
};

void run(const Options& options, int argc, char** argv) {
    const double load_before = load_average();
    PolicyBench bench(options);
    bench.measure();
    nlohmann::ordered_json report = report_header(argc, argv, bench.threads());
    report["load_average"] = {load_before, load_average()};
    report["profile"] = std::filesystem::path(options.profile).stem().string();
    report["context"] = options.context;
    report["tokens"] = options.tokens;
    fmt::print(
        "{}, {}, {} threads, profile {}, context {}, answers of {}, load average {:.2f} to "
        "{:.2f}, ",
        report["device"].get<std::string>(), report["target"].get<std::string>(), bench.threads(),
        report["profile"].get<std::string>(), options.context, options.tokens, load_before,
        load_average());
    report.update(bench.report());
    if (!options.json.empty()) write_report(report, options.json);
}

}  // namespace
}  // namespace kd

int main(int argc, char** argv) {
    kd::Options options;
    CLI::App app(kd::kWhat);
    kd::add_model_options(app, options);
    app.add_option("--profile", options.profile, "hit rates of the oracle drafter (bench/profiles)")
        ->required();
    app.add_option("--budgets", options.budgets, "fixed budgets beside plain decoding")
        ->delimiter(',')
        ->check(CLI::Range(1, 128))
        ->capture_default_str();
    app.add_option("--nodes", options.nodes, "most rows that the policy may pick")
        ->check(CLI::Range(2, 128))
        ->capture_default_str();
    app.add_option("--context", options.context, "tokens of a prompt")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--tokens", options.tokens, "tokens of an answer")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--seconds", options.seconds, "how long to measure")->capture_default_str();
    return kd::run_program(app, argc, argv, options, [&] { kd::run(options, argc, argv); });
}
