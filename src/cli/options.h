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

/// Checks min <= value <= max and says so in --help.
CLI::Validator range(int32_t min, int32_t max);

/// --model, --context-length, --threads, --kernels.
void add_model_options(CLI::App& command, Config& config);
/// --speculative-algorithm, -draft-model-path, -num-draft-tokens (into `nodes`; `nodes_default`
/// says in --help what stands for none).
void add_speculation_options(CLI::App& command, Config& config, int32_t& nodes,
                             const std::string& nodes_default);
/// --temperature, --top-k, --top-p, --min-p, --seed, penalties.
void add_sampling_options(CLI::App& command, SamplingParams& sampling);

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
