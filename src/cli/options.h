// Options that several commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/sampling_params.h"

namespace kd {

/// Options added while it lives stand in this group of --help.
class OptionGroup {
  public:
    OptionGroup(CLI::App& command, const std::string& title)
        : command_(command), before_(command.option_defaults()->get_group()) {
        command_.option_defaults()->group(title);
    }
    ~OptionGroup() { command_.option_defaults()->group(before_); }
    OptionGroup(const OptionGroup&) = delete;
    OptionGroup& operator=(const OptionGroup&) = delete;

  private:
    CLI::App& command_;
    const std::string before_;
};

/// Checks min <= value <= max and says so in --help.
CLI::Validator range(int32_t min, int32_t max);

/// --model, --context-length, --threads, --kernels.
void add_model_options(CLI::App& command, Config& config);
/// --page-size, --disable-radix-cache, --kv-extent, --kv-headroom, --kv-evict-batch, --kv-relocate.
void add_pool_options(CLI::App& command, Config& config);
/// --speculative-algorithm, -draft-model-path, -num-draft-tokens (into `nodes`; `nodes_default`
/// says in --help what stands for none).
void add_speculation_options(CLI::App& command, Config& config, int32_t& nodes,
                             const std::string& nodes_default);
/// --json FILE: one JSON value of all results; "-": on standard output, and nothing else there.
/// `what` is the rest of "write ... as JSON to this file".
void add_json_option(CLI::App& command, std::string& json, const std::string& what);
/// --temperature, --top-k, --top-p, --min-p, --seed, the penalties, --min-tokens, --ignore-eos.
void add_sampling_options(CLI::App& command, SamplingParams& sampling);
/// --logit-bias ID=BIAS, repeatable.
void add_logit_bias_option(CLI::App& command, std::vector<LogitBias>& bias);

/// An option that takes one of a few words; its default is `value`.
template <class Value>
void add_choice(CLI::App& command, const std::string& flag, Value& value,
                const std::vector<std::pair<std::string, Value>>& choices,
                const std::string& help) {
    std::string words, standard;
    for (const auto& [word, meaning] : choices) {
        words += (words.empty() ? "" : "|") + word;
        if (meaning == value) standard = word;
    }
    command
        .add_option_function<std::string>(
            flag,
            [&value, flag, choices, words](const std::string& given) {
                const auto found = std::find_if(choices.begin(), choices.end(),
                                                [&](const auto& c) { return c.first == given; });
                if (found == choices.end()) {
                    throw CLI::ValidationError(flag, "\"" + given + "\" is none of " + words);
                }
                value = found->second;
            },
            help)
        ->type_name(words)
        ->default_str(standard);
}

}  // namespace kd
