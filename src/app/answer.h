// What run, run --chat and run --prompts share: how an answer is asked for, and what is said of it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/progress.h"
#include "base/config.h"
#include "base/sampling_params.h"
#include "engine/engine.h"

namespace kd {

struct AnswerOptions {
    Config config;
    bool raw = false;    // no chat template
    std::string system;  // the conversation's first message; empty: what the template puts there
    SamplingParams sampling;
    std::vector<LogitBias> logit_bias;
    int32_t max_tokens = 0;  // 0: as many as the context holds
    std::vector<std::string> stop;
    int32_t top_logprobs = -1;  // listed in JSON for every token of the answer; -1: none at all
    Speculation speculation;
    bool stats = false;      // a summary on standard error
    std::string stats_json;  // the same as a JSON file
    bool show_tree = false;  // the trees of all rounds on standard error
};

/// What decides an answer beside the engine's own settings, by the names of the options.
nlohmann::ordered_json answer_settings(const AnswerOptions& options);
Request request_of(const AnswerOptions& options, std::vector<int32_t> prompt);
/// Throws kd::Error if a drafter is asked for that has to know the answer beforehand.
void refuse_oracle(const AnswerOptions& options);
/// Measures the costs of verification now, with progress, if the first request would do it
/// silently.
void prepare_speculation(Engine& engine, const AnswerOptions& options);
/// Tokens that prompt and answer have together, at most.
int32_t context_room(const Engine& engine);

/// How far a single prompt is read: nothing is written before the first token.
class PromptProgress {
  public:
    /// After every round: what it did, and what was new of the request.
    void follow(const RoundStats* round, const Delta& news);

  private:
    std::optional<Progress> progress_;
    int32_t read_ = 0;
};

/// {"ids", "text", "finish_reason"} and, where the request asked for them, "logprobs": for every id
/// {"logprob", "top": [{"id", "logprob"}, ...]}.
nlohmann::ordered_json answer_json(const Delta& whole);
/// How contiguous page tables and free space were, on average over decoding rounds.
nlohmann::ordered_json kv_pool_json(const SessionStats& stats);
std::string kv_pool_text(const SessionStats& stats);
/// Tokens, seconds, rounds and the ratios of them.
nlohmann::ordered_json stats_json(const Delta& end);
/// The same in five lines for people.
std::string stats_text(const Delta& end);
/// The tree that the last round verified for the batch's first session.
std::string tree_text(Engine& engine, int32_t round);

double per_second(double count, double seconds);
double per_round(double sum, const SessionStats& stats);

}  // namespace kd
