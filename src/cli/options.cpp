#include "cli/options.h"

#include <fmt/format.h>

#include <charconv>

#include "base/views.h"

namespace kd {

CLI::Validator range(int32_t min, int32_t max) {
    // A bound that only keeps numbers in their type says nothing to a reader.
    const bool open = max >= 1 << 24;
    return CLI::Range(min, max).description(open ? fmt::format("{} or more", min)
                                                 : fmt::format("{}..{}", min, max));
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

std::string check_page_size(const std::string& text) {
    for (const char* each : {"1", "16", "32", "64"}) {
        if (text == each) return {};
    }
    return text + " is none of 1, 16, 32, 64";
}

LogitBias parse_logit_bias(const std::string& text) {
    LogitBias bias;
    const char* end = text.data() + text.size();
    const auto [equals, bad_token] = std::from_chars(text.data(), end, bias.token);
    if (bad_token == std::errc() && equals != end && *equals == '=') {
        const auto [stop, bad_bias] = std::from_chars(equals + 1, end, bias.bias);
        if (bad_bias == std::errc() && stop == end) return bias;
    }
    throw CLI::ValidationError("--logit-bias", "\"" + text + "\" is not ID=BIAS");
}

}  // namespace

void add_model_options(CLI::App& command, Config& config) {
    const OptionGroup group(command, "Model");
    command.add_option("--model", config.model, "smollm2, a .gguf file, or a Hugging Face folder")
        ->type_name("FILE")
        ->capture_default_str();
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

void add_pool_options(CLI::App& command, Config& config) {
    const OptionGroup group(command, "KV pool");
    command.add_option("--page-size", config.page_size, "tokens of a page")
        ->check(check_page_size, "1, 16, 32 or 64")
        ->capture_default_str();
    command.add_flag_callback(
        "--disable-radix-cache", [&config] { config.radix_cache = false; },
        "compute every prompt from its first token on, whatever earlier ones began with");
    command
        .add_option("--kv-extent", config.kv_extent,
                    "a session takes so many slots at a time, neighbours if possible (0: as "
                    "needed)")
        ->check(range(0, 1 << 24))
        ->capture_default_str();
    command
        .add_option("--kv-headroom", config.kv_headroom,
                    "most slots taken behind a prompt for its answer; given back when others need "
                    "them, and no more than a 32nd of the pool for all sessions together")
        ->check(range(0, 1 << 24))
        ->capture_default_str();
    command
        .add_option("--kv-evict-batch", config.kv_evict_batch,
                    "share of the cache that is evicted at once (0: what is short)")
        ->check(CLI::Range(0.0, 1.0).description("0..1"))
        ->capture_default_str();
    command
        .add_option("--kv-relocate", config.kv_relocate,
                    "most tokens moved between two rounds so that sessions become contiguous (0: "
                    "none)")
        ->check(range(0, 1 << 30))
        ->capture_default_str();
}

void add_speculation_options(CLI::App& command, Config& config, int32_t& nodes,
                             const std::string& nodes_default) {
    const OptionGroup group(command, "Speculation");
    add_choice<SpeculativeAlgorithm>(
        command, "--speculative-algorithm", config.speculative_algorithm,
        {{"none", SpeculativeAlgorithm::none},
         {"ngram", SpeculativeAlgorithm::ngram},
         {"dflash", SpeculativeAlgorithm::dflash},
         {"oracle", SpeculativeAlgorithm::oracle}},
        "ngram: what followed the same words before; dflash: a block-diffusion drafter; oracle: "
        "replays plain decoding with the hit "
        "rates of a profile (studies); none: plain decoding");
    command
        .add_option("--speculative-draft-model-path", config.speculative_draft_model_path,
                    "dflash: folder of the checkpoint; oracle: profile, {\"hit\": [[p of rank 1, p "
                    "of rank 2, ...] per depth]}")
        ->type_name("FILE|DIR");
    command
        .add_option("--speculative-num-draft-tokens", nodes,
                    "verified rows a round, the root included (default: " + nodes_default + ")")
        ->check(range(1, kMaxTreeNodes));
}

void add_json_option(CLI::App& command, std::string& json, const std::string& what) {
    const OptionGroup group(command, "Output");
    command
        .add_option("--json", json,
                    fmt::format("write {} as JSON to this file (-: standard output, and nothing "
                                "else there)",
                                what))
        ->type_name("FILE");
}

void add_sampling_options(CLI::App& command, SamplingParams& sampling) {
    const OptionGroup group(command, "Sampling");
    command.add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
    command.add_option("--top-k", sampling.top_k, "most likely tokens kept (0: all)");
    command.add_option("--top-p", sampling.top_p, "probability mass kept")->capture_default_str();
    command.add_option("--min-p", sampling.min_p, "least probability, relative to the largest");
    command.add_option("--seed", sampling.seed, "one seed, one text")
        ->check(check_seed, "")
        ->capture_default_str();
    command
        .add_option("--repetition-penalty", sampling.repetition_penalty,
                    "logits of tokens of prompt or answer: divided by it if positive, else "
                    "multiplied (1: none)")
        ->capture_default_str();
    command.add_option("--presence-penalty", sampling.presence_penalty,
                       "subtracted from the logits of tokens of the answer (-2..2)");
    command.add_option("--frequency-penalty", sampling.frequency_penalty,
                       "the same, for every time the token stands in the answer (-2..2)");
    command
        .add_option("--min-tokens", sampling.min_tokens,
                    "no token that ends the answer before so many others")
        ->check(range(0, 1 << 24));
    command.add_flag("--ignore-eos", sampling.ignore_eos,
                     "go on behind tokens that end the answer");
}

void add_logit_bias_option(CLI::App& command, std::vector<LogitBias>& bias) {
    const OptionGroup group(command, "Sampling");
    command
        .add_option_function<std::vector<std::string>>(
            "--logit-bias",
            [&bias](const std::vector<std::string>& given) {
                bias.clear();
                for (const std::string& text : given) bias.push_back(parse_logit_bias(text));
            },
            "add BIAS to the logit of token ID (repeatable; -inf forbids it)")
        ->type_name("ID=BIAS")
        ->allow_extra_args(false);
}

}  // namespace kd
