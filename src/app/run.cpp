#include "app/run.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <utility>

#include "app/interrupt.h"
#include "app/json_line.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/prompt.h"
#include "app/settings.h"
#include "base/error.h"

namespace kd {

namespace {

std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const RunOptions& options) {
    if (options.answer.system.empty()) {
        return encode_prompt(tokenizer, options.prompt, options.answer.raw);
    }
    if (options.prompt.empty()) KD_THROW(invalid_argument, "the prompt is empty");
    const ChatMessage messages[] = {{.role = "system", .content = options.answer.system},
                                    {.role = "user", .content = options.prompt}};
    return encode_messages(tokenizer, messages);
}

/// The whole answer of a request, nothing shown: what the oracle has to know.
std::vector<int32_t> plain_continuation(Engine& engine, Request request) {
    request.speculation = {.shape = DraftShape::plain};
    const RequestId id = engine.submit(std::move(request));
    const Progress progress({.label = "plain decoding for the oracle"});
    while (engine.step() != nullptr) {
    }
    return engine.poll(id).ids;
}

}  // namespace

int run(const RunOptions& options) {
    const AnswerOptions& asked = options.answer;
    if (!asked.stats_json.empty()) expect_writable(asked.stats_json);
    const bool json_alone = options.json == "-";
    if (!options.json.empty() && !json_alone) expect_writable(options.json);
    const std::unique_ptr<Engine> engine = load_engine(asked.config, answer_settings(asked));
    Request request = request_of(asked, prompt_ids(engine->tokenizer(), options));
    // What is refused is refused before anything is measured.
    if (std::ssize(request.prompt) < context_room(*engine)) prepare_speculation(*engine, asked);
    if (asked.config.speculative_algorithm == SpeculativeAlgorithm::oracle) {
        request.known_continuation = plain_continuation(*engine, request);
    }
    const RequestId id = engine->submit(std::move(request));
    watch_interrupts();
    PromptProgress reading;
    Delta whole;
    for (int32_t round = 0; whole.finish == FinishReason::none;) {
        if (interrupted()) engine->cancel(id);
        const RoundStats* stats = engine->step();
        Delta delta = engine->poll(id);
        reading.follow(stats, delta);
        if (!json_alone) write_out(delta.text);
        if (asked.show_tree && stats != nullptr && stats->decoding > 0) {
            write_err(tree_text(*engine, ++round));
        }
        append(whole, std::move(delta));
    }
    if (!json_alone) write_out("\n");
    if (whole.finish == FinishReason::error) KD_THROW(invalid_argument, "{}", whole.error);
    if (asked.stats) write_err(fmt::format("\n{}", stats_text(whole)));
    if (!asked.stats_json.empty()) write_file(asked.stats_json, stats_json(whole).dump(2) + "\n");
    if (!options.json.empty()) {
        nlohmann::ordered_json json = answer_json(whole);
        json["stats"] = stats_json(whole);
        write_file(options.json, json_line(json) + "\n");
    }
    return whole.finish == FinishReason::abort ? kInterruptedExitCode : 0;
}

}  // namespace kd
