#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>

#include "app/answer.h"
#include "app/doctor_parts.h"
#include "app/progress.h"
#include "app/prompt.h"
#include "app/settings.h"
#include "app/text.h"
#include "base/error.h"
#include "engine/engine.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kReadPasses = 9;
constexpr int64_t kLeastReadBytes = int64_t{256} << 20;
constexpr int64_t kMostReadBytes = int64_t{1} << 30;
// One answer: long enough that a drafter that looks back finds something.
constexpr double kDecodeSeconds = 0.7;
constexpr int kLeastTokens = 16;
constexpr int32_t kMostTokens = 256;
constexpr const char* kPrompt = "Write an HTML table of the planets with their order from the sun.";

/// GB/s of reading memory; 0 if there is too little of it.
double check_reading(const Machine& machine, int threads, Findings& findings) {
    // Twice what the caches hold, but not so much that the measurement itself is the trouble.
    int64_t bytes =
        std::clamp(2 * last_level_cache_bytes(machine), kLeastReadBytes, kMostReadBytes);
    if (machine.available_bytes > 0) bytes = std::min(bytes, machine.available_bytes / 4);
    std::vector<double> passes;
    try {
        const Progress progress({.label = "measuring memory"});
        passes = measure_memory_read(threads, bytes, kReadPasses);
    } catch (const std::bad_alloc&) {
        findings.warning("reading",
                         fmt::format("{} to measure with are not there", bytes_text(bytes)),
                         "free memory");
        return 0;
    }
    const double median = passes[passes.size() / 2];
    findings.ok(
        "reading",
        fmt::format("{:.1f} GB/s of memory by {} (best {:.1f}; median of {} passes over {})",
                    median, plural(threads, "thread"), passes.back(), passes.size(),
                    bytes_text(bytes)));
    return median;
}

/// The test prompt as the model wants it, or plainly for a model without a usable template.
std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer) {
    try {
        return encode_prompt(tokenizer, kPrompt, /*raw=*/false);
    } catch (const Error&) {
        return encode_prompt(tokenizer, kPrompt, /*raw=*/true);
    }
}

struct Decoded {
    std::vector<int32_t> ids;
    double tokens_per_s = 0;
    double acceptance_length = 0;
};

Decoded decode(Engine& engine, Request request) {
    using Clock = std::chrono::steady_clock;
    const RequestId id = engine.submit(std::move(request));
    const auto begin = Clock::now();
    Decoded out;
    for (Delta delta;; delta = engine.poll(id)) {
        out.ids.insert(out.ids.end(), delta.ids.begin(), delta.ids.end());
        if (delta.finish != FinishReason::none) {
            const SessionStats& stats = delta.stats;
            out.tokens_per_s = per_second(stats.tokens, stats.decode_s);
            out.acceptance_length = per_round(stats.tokens, stats);
            return out;
        }
        const std::chrono::duration<double> seconds = Clock::now() - begin;
        if (seconds.count() > kDecodeSeconds && out.ids.size() >= kLeastTokens) {
            engine.cancel(id);
        } else {
            engine.step();
        }
    }
}

void check_plain(const Decoded& plain, double bound, bool cached, Findings& findings) {
    const std::string text = fmt::format("{:.1f} tokens/s, measured over {} tokens",
                                         plain.tokens_per_s, plain.ids.size());
    if (bound == 0) {
        findings.ok("plain", text);
        return;
    }
    const double share = plain.tokens_per_s / bound;
    const std::string of_bound = fmt::format("{}: {:.0f} % of the bound", text, 100 * share);
    if (share < 0.2 && !cached) {
        findings.warning("plain", of_bound,
                         "other programs may hold the CPUs, or the threads hinder each other: "
                         "compare with a smaller --threads");
    } else {
        findings.ok("plain", of_bound);
    }
}

void check_speculation(const Config& config, const Decoded& plain, const Decoded& drafted,
                       Findings& findings) {
    findings.ok("speculation",
                fmt::format("{:.1f} tokens/s with the {} drafter: {:.2f} times plain, acceptance "
                            "length {:.2f}",
                            drafted.tokens_per_s, name_of(config.speculative_algorithm),
                            plain.tokens_per_s > 0 ? drafted.tokens_per_s / plain.tokens_per_s : 0,
                            drafted.acceptance_length));
    const size_t both = std::min(plain.ids.size(), drafted.ids.size());
    if (std::equal(plain.ids.begin(), plain.ids.begin() + static_cast<std::ptrdiff_t>(both),
                   drafted.ids.begin())) {
        findings.ok("equality", fmt::format("the same {} tokens with and without", both));
    } else {
        findings.problem("equality", "speculation changed the text",
                         "this must not happen: please report it with the output of --json");
    }
}

void check_decoding(const DoctorOptions& options, double bound, bool cached, Findings& findings,
                    Json& figures) {
    const std::unique_ptr<Engine> engine = load_engine(options.config);
    const bool speculates = options.config.speculative_algorithm != SpeculativeAlgorithm::none;
    if (speculates && options.speculation.nodes == 0) measure_cost_now(*engine);
    Progress progress({.label = "decoding"});
    Request request = {.prompt = prompt_ids(engine->tokenizer()),
                       .sampling = {.ignore_eos = true},
                       .max_tokens = kMostTokens,
                       .speculation = {.shape = DraftShape::plain}};
    const Decoded plain = decode(*engine, request);
    check_plain(plain, bound, cached, findings);
    figures["plain_tokens_per_s"] = plain.tokens_per_s;
    if (!speculates) return;
    request.speculation = options.speculation;
    request.known_continuation = plain.ids;  // what the oracle has to know
    const Decoded drafted = decode(*engine, request);
    check_speculation(options.config, plain, drafted, findings);
    figures["speculative_tokens_per_s"] = drafted.tokens_per_s;
    figures["acceptance_length"] = drafted.acceptance_length;
}

}  // namespace

Json check_speed(const DoctorOptions& options, const Machine& machine,
                 const std::optional<ModelProbe>& model, int threads, Findings& findings) {
    const double gb_s = check_reading(machine, threads, findings);
    Json figures = {{"threads", threads}, {"read_gb_s", gb_s}};
    if (!model.has_value()) return figures;
    const auto bytes = static_cast<double>(model->decode_bytes);
    const double bound = gb_s * 1e9 / bytes;
    // Weights that the caches hold in part are read faster than memory.
    const bool cached = model->decode_bytes < 4 * last_level_cache_bytes(machine);
    if (bound > 0) {
        findings.ok("bound", fmt::format("{:.0f} tokens/s of plain decoding: a token reads {} of "
                                         "weights{}",
                                         bound, bytes_text(model->decode_bytes),
                                         cached ? ", some of it from the caches" : ""));
    }
    figures["decode_bytes_per_token"] = model->decode_bytes;
    figures["bound_tokens_per_s"] = bound;
    try {
        check_decoding(options, bound, cached, findings, figures);
    } catch (const Error& error) {
        findings.problem("decoding", error.what(), "run kdtree run --verbose to see more");
    } catch (const std::bad_alloc&) {
        findings.problem("decoding", "out of memory", "free memory, or use --context-length");
    }
    return figures;
}

}  // namespace kd
