#include "app/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "app/settings.h"
#include "app/show_tree.h"
#include "base/error.h"

namespace kd {

namespace {

nlohmann::ordered_json logprobs_json(const std::vector<PositionLogprobs>& positions) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const PositionLogprobs& position : positions) {
        nlohmann::ordered_json top = nlohmann::ordered_json::array();
        for (const TokenLogprob& each : position.top) {
            top.push_back({{"id", each.token}, {"logprob", each.logprob}});
        }
        out.push_back({{"logprob", position.logprob}, {"top", std::move(top)}});
    }
    return out;
}

}  // namespace

nlohmann::ordered_json answer_settings(const AnswerOptions& options) {
    const SamplingParams& sampling = options.sampling;
    nlohmann::ordered_json bias = nlohmann::ordered_json::object();
    for (const LogitBias& each : options.logit_bias) {
        // As text: JSON has no -inf.
        bias[std::to_string(each.token)] = fmt::format("{}", each.bias);
    }
    return {{"raw", options.raw},
            {"system", options.system},
            {"max_tokens", options.max_tokens},
            {"stop", options.stop},
            {"temperature", sampling.temperature},
            {"top_k", sampling.top_k},
            {"top_p", sampling.top_p},
            {"min_p", sampling.min_p},
            {"seed", sampling.seed},
            {"repetition_penalty", sampling.repetition_penalty},
            {"presence_penalty", sampling.presence_penalty},
            {"frequency_penalty", sampling.frequency_penalty},
            {"min_tokens", sampling.min_tokens},
            {"ignore_eos", sampling.ignore_eos},
            {"logit_bias", bias},
            {"logprobs", options.top_logprobs}};
}

Request request_of(const AnswerOptions& options, std::vector<int32_t> prompt) {
    return {.prompt = std::move(prompt),
            .sampling = options.sampling,
            .max_tokens = options.max_tokens,
            .stop = options.stop,
            .speculation = options.speculation,
            .logit_bias = options.logit_bias,
            .top_logprobs = options.top_logprobs};
}

void refuse_oracle(const AnswerOptions& options) {
    if (options.config.speculative_algorithm == SpeculativeAlgorithm::oracle) {
        KD_THROW(invalid_argument,
                 "the oracle drafter replays a known answer: use it for one prompt, or with bench");
    }
}

void prepare_speculation(Engine& engine, const AnswerOptions& options) {
    const bool policy = options.speculation.nodes == 0 &&
                        options.speculation.shape != DraftShape::plain &&
                        options.config.speculative_algorithm != SpeculativeAlgorithm::none;
    if (policy) measure_cost_now(engine);
}

int32_t context_room(const Engine& engine) {
    return std::min(engine.config().context_length, engine.config().max_total_tokens);
}

void PromptProgress::follow(const RoundStats* round, const Delta& news) {
    if (round == nullptr || round->decoding > 0) return progress_.reset();
    if (!progress_.has_value()) {
        progress_.emplace(ProgressTask{.label = "reading the prompt",
                                       .total = static_cast<double>(news.stats.prompt_tokens),
                                       .unit = "tokens"});
    }
    progress_->update(read_ += round->reused_rows + round->prefill_rows);
}

nlohmann::ordered_json answer_json(const Delta& whole) {
    nlohmann::ordered_json out = {
        {"ids", whole.ids}, {"text", whole.text}, {"finish_reason", name_of(whole.finish)}};
    if (!whole.logprobs.empty()) out["logprobs"] = logprobs_json(whole.logprobs);
    return out;
}

nlohmann::ordered_json kv_pool_json(const SessionStats& stats) {
    const Fragmentation& all = stats.phases.fragmentation;
    return {{"runs_per_session", all.runs_per_session()},
            {"mean_run", all.mean_run()},
            {"contiguous_tiles", all.contiguous_tiles()},
            {"free_runs", per_round(static_cast<double>(stats.phases.free_runs), stats)}};
}

std::string kv_pool_text(const SessionStats& stats) {
    const Fragmentation& all = stats.phases.fragmentation;
    return fmt::format(
        "kv pool     {:.1f} runs a session, mean run {:.1f} tokens, {:.0f} % contiguous tiles, "
        "{:.1f} free runs\n",
        all.runs_per_session(), all.mean_run(), 100 * all.contiguous_tiles(),
        per_round(static_cast<double>(stats.phases.free_runs), stats));
}

nlohmann::ordered_json stats_json(const Delta& end) {
    const SessionStats& s = end.stats;
    return {{"prompt_tokens", s.prompt_tokens},
            {"reused_tokens", s.reused_tokens},
            {"prefill_s", s.prefill_s},
            {"tokens", s.tokens},
            {"seconds", s.decode_s},
            {"tokens_per_s", per_second(s.tokens, s.decode_s)},
            {"rounds", s.rounds},
            {"acceptance_length", per_round(s.tokens, s)},
            {"mean_nodes", per_round(s.nodes, s)},
            {"kv_pool", kv_pool_json(s)},
            {"finish_reason", name_of(end.finish)}};
}

std::string stats_text(const Delta& end) {
    const SessionStats& s = end.stats;
    const RoundStats& phases = s.phases;
    const auto ms = [&](double seconds) { return per_round(seconds * 1e3, s); };
    return fmt::format(
        "prompt      {} tokens, {} of them from the cache, {:.3f} s ({:.1f} tokens/s)\n"
        "answer      {} tokens, {:.3f} s ({:.1f} tokens/s), finish reason {}\n"
        "rounds      {}, acceptance length {:.2f}, mean tree {:.2f} nodes\n"
        "ms a round  {:.2f} = draft {:.3f} + tree {:.3f} + verify {:.2f} + accept {:.3f} + "
        "commit {:.3f}\n"
        "{}",
        s.prompt_tokens, s.reused_tokens, s.prefill_s, per_second(s.prefill_rows, s.prefill_s),
        s.tokens, s.decode_s, per_second(s.tokens, s.decode_s), name_of(end.finish), s.rounds,
        per_round(s.tokens, s), per_round(s.nodes, s), ms(phases.total_s), ms(phases.draft_s),
        ms(phases.tree_s), ms(phases.verify_s), ms(phases.accept_s), ms(phases.commit_s),
        kv_pool_text(s));
}

std::string tree_text(Engine& engine, int32_t round) {
    Batch& batch = engine.last_batch();
    const TreeView tree = batch.trees[0].view();
    const AcceptedView accepted = batch.accepted[0].view();
    // Nothing was accepted where the request ended with an error.
    if (*accepted.count == 0) return {};
    // The empty line ends the answer's own where both streams are one terminal.
    return fmt::format("\nround {}: context {}, {} nodes, {} tokens\n{}", round,
                       batch.entries[0].context, *tree.count, *accepted.count,
                       draw_tree(tree, accepted, engine.tokenizer()));
}

double per_second(double count, double seconds) {
    return seconds > 0 ? count / seconds : 0;
}

double per_round(double sum, const SessionStats& stats) {
    return stats.rounds > 0 ? sum / stats.rounds : 0;
}

}  // namespace kd
