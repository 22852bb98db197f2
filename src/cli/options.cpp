#include "cli/options.h"

#include <fmt/format.h>

#include <charconv>

#include "base/views.h"

namespace kd {

CLI::Validator range(int32_t min, int32_t max) {
    return CLI::Range(min, max).description(fmt::format("{}..{}", min, max));
}

namespace {

/// CLI11 reads -1 as the largest unsigned number and cuts what is beyond it.
std::string check_seed(const std::string& text) {
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end) return {};
    return fmt::format("{} is no whole number from 0 to {}", text, UINT64_MAX);
}

}  // namespace

void add_model_options(CLI::App& command, Config& config) {
    command.add_option("--model", config.model, "smollm2, or a .gguf file")->capture_default_str();
    command
        .add_option("--context-length", config.context_length,
                    "most tokens of prompt and answer together (default: the model's)")
        ->check(range(1, 1 << 24));
    command
        .add_option("--threads", config.threads,
                    "CPU threads (default: what affinity and cgroup allow)")
        ->check(range(1, 1024));
    add_choice<bool>(command, "--kernels", config.reference_kernels,
                     {{"fast", false}, {"ref", true}}, "ref: the plain references, slow");
}

void add_speculation_options(CLI::App& command, Config& config, int32_t& nodes,
                             const std::string& nodes_default) {
    add_choice<SpeculativeAlgorithm>(
        command, "--speculative-algorithm", config.speculative_algorithm,
        {{"none", SpeculativeAlgorithm::none},
         {"ngram", SpeculativeAlgorithm::ngram},
         {"oracle", SpeculativeAlgorithm::oracle}},
        "ngram: what followed the same words before; oracle: replays plain decoding with the hit "
        "rates of a profile (studies); none: plain decoding");
    command.add_option("--speculative-draft-model-path", config.speculative_draft_model_path,
                       "oracle: profile, {\"hit\": [[p of rank 1, p of rank 2, ...] per depth]}");
    command
        .add_option("--speculative-num-draft-tokens", nodes,
                    "verified rows a round, the root included (default: " + nodes_default + ")")
        ->check(range(1, kMaxTreeNodes));
}

void add_sampling_options(CLI::App& command, SamplingParams& sampling) {
    command.add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
    command.add_option("--top-k", sampling.top_k, "most likely tokens kept (0: all)");
    command.add_option("--top-p", sampling.top_p, "probability mass kept")->capture_default_str();
    command.add_option("--min-p", sampling.min_p, "least probability, relative to the largest");
    command.add_option("--seed", sampling.seed, "one seed, one text")
        ->check(check_seed, "")
        ->capture_default_str();
}

}  // namespace kd
