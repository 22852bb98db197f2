// kdtree run --prompts: many conversations in one batch, one JSON line each.
#pragma once

#include <cstdint>
#include <string>

#include "app/answer.h"

namespace kd {

struct BatchRunOptions {
    AnswerOptions answer;  // config.max_running_requests: sessions at a time
    std::string prompts;   // lines {"id", "turns": [text, ...]}; "-": standard input
    std::string json;      // lines out; "-": standard output
    int32_t limit = 0;     // conversations; 0: all
    int32_t samples = 0;   // answers to each prompt, listed as "choices"; 0: one, without a list
    bool overwrite = false;
};

/// One line a conversation in the order of the input, written as soon as those before it are:
///   {"id", "ids", "text", "finish_reason"[, "logprobs"]}
/// of the last answer, and where there are several turns "turns": [the same without id, ...] of all
/// of them; an answer becomes the assistant's message of the turns after it. With `samples`:
///   {"id", "choices": [...]}
/// where choice i is the conversation with seed + i. What cannot be served gives {"id", "error"}.
/// Every conversation is answered as if it were alone, with the seed as given; with `raw` turns and
/// answers are joined as they are.
///
/// Goes on where an earlier run with the same settings ended (AnswerFile). Returns the exit code:
/// 0, 1 if the output holds an error, 130 after Ctrl-C. Throws kd::Error.
int batch_run(const BatchRunOptions& options);

}  // namespace kd
