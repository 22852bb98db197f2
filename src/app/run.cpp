#include "app/run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/interrupt.h"
#include "app/output.h"
#include "app/prompt.h"
#include "app/show_tree.h"

namespace kd {

namespace {

double per_second(double count, double seconds) {
    return seconds > 0 ? count / seconds : 0;
}

double per_round(double sum, const SessionStats& stats) {
    return stats.rounds > 0 ? sum / stats.rounds : 0;
}

void print_stats(const Delta& end) {
    const SessionStats& s = end.stats;
    const RoundStats& phases = s.phases;
    const auto ms = [&](double seconds) { return per_round(seconds * 1e3, s); };
    write_err(fmt::format(
        "\nprompt      {} tokens, {:.3f} s ({:.1f} tokens/s)\n"
        "answer      {} tokens, {:.3f} s ({:.1f} tokens/s), finish reason {}\n"
        "rounds      {}, acceptance length {:.2f}, mean tree {:.2f} nodes\n"
        "ms a round  {:.2f} = draft {:.3f} + tree {:.3f} + verify {:.2f} + accept {:.3f} + "
        "commit {:.3f}\n",
        s.prompt_tokens, s.prefill_s, per_second(s.prompt_tokens - 1, s.prefill_s), s.tokens,
        s.decode_s, per_second(s.tokens, s.decode_s), name_of(end.finish), s.rounds,
        per_round(s.tokens, s), per_round(s.nodes, s), ms(phases.total_s), ms(phases.draft_s),
        ms(phases.tree_s), ms(phases.verify_s), ms(phases.accept_s), ms(phases.commit_s)));
}

void write_stats(const std::string& path, const Delta& end) {
    const SessionStats& s = end.stats;
    write_file(path, nlohmann::ordered_json{{"prompt_tokens", s.prompt_tokens},
                                            {"prefill_s", s.prefill_s},
                                            {"tokens", s.tokens},
                                            {"seconds", s.decode_s},
                                            {"tokens_per_s", per_second(s.tokens, s.decode_s)},
                                            {"rounds", s.rounds},
                                            {"acceptance_length", per_round(s.tokens, s)},
                                            {"mean_nodes", per_round(s.nodes, s)},
                                            {"finish_reason", name_of(end.finish)}}
                             .dump(2) +
                         "\n");
}

void print_tree(Engine& engine, int32_t round) {
    Batch& batch = engine.last_batch();
    const TreeView tree = batch.trees[0].view();
    const AcceptedView accepted = batch.accepted[0].view();
    // The empty line ends the answer's own where both streams are one terminal.
    write_err(fmt::format("\nround {}: context {}, {} nodes, {} tokens\n{}", round,
                          batch.entries[0].context, *tree.count, *accepted.count,
                          draw_tree(tree, accepted, engine.tokenizer())));
}

/// The whole answer of a request, nothing shown: what the oracle has to know.
std::vector<int32_t> plain_continuation(Engine& engine, Request request) {
    request.speculation = {.shape = DraftShape::plain};
    const RequestId id = engine.submit(std::move(request));
    while (engine.step() != nullptr) {
    }
    return engine.poll(id).ids;
}

}  // namespace

int run(const RunOptions& options) {
    if (!options.stats_json.empty()) expect_writable(options.stats_json);
    Engine engine(options.config);
    Request request = {.prompt = encode_prompt(engine.tokenizer(), options.prompt, options.raw),
                       .sampling = options.sampling,
                       .max_tokens = options.max_tokens,
                       .stop = options.stop,
                       .speculation = options.speculation};
    if (options.config.speculative_algorithm == SpeculativeAlgorithm::oracle) {
        request.known_continuation = plain_continuation(engine, request);
    }
    const RequestId id = engine.submit(std::move(request));
    watch_interrupts();
    Delta end;
    for (int32_t round = 0; end.finish == FinishReason::none;) {
        if (interrupted()) engine.cancel(id);
        const RoundStats* stats = engine.step();
        Delta delta = engine.poll(id);
        write_out(delta.text);
        if (options.show_tree && stats != nullptr && stats->decoding > 0) {
            print_tree(engine, ++round);
        }
        end = std::move(delta);
    }
    write_out("\n");
    if (options.stats) print_stats(end);
    if (!options.stats_json.empty()) write_stats(options.stats_json, end);
    return end.finish == FinishReason::abort ? kInterruptedExitCode : 0;
}

}  // namespace kd
