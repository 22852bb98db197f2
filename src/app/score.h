// kdtree score: the log-probabilities of given texts.
#pragma once

#include <string>

#include "base/config.h"

namespace kd {

struct ScoreOptions {
    Config config;
    std::string input = "-";  // a .jsonl file; "-": standard input
    int32_t top = 0;          // most likely tokens listed for each position
    std::string json = "-";   // where the lines go; "-": standard output
};

/// Lines {"text", "special"} or {"ids"} in, for each one line out, in their order:
/// {"positions": [{"logprob", "top": [{"id", "logprob"}, ...]}, ...]}, position i for token i + 1,
/// "top" only with options.top > 0; or {"error"} for a line that cannot be scored. The perplexity
/// of all positions goes to standard error. Input is read as it is needed: memory is bounded by the
/// longest lines, and an answer comes as soon as it is known, also to whoever waits for it before
/// writing the next line. Returns the exit code: 0, 1 if a line was refused, 130 after Ctrl-C
/// (complete lines stay). Throws kd::Error.
int score(const ScoreOptions& options);

}  // namespace kd
