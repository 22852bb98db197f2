// kdtree run: one prompt, one streamed answer.
#pragma once

#include <string>

#include "app/answer.h"

namespace kd {

struct RunOptions {
    AnswerOptions answer;
    std::string prompt;
    std::string json;  // {"ids", "text", "finish_reason", "stats"} to this file; "-": standard
                       // output, and then nothing is streamed
};

/// Streams the answer to standard output. Returns the exit code: 0, or 130 after Ctrl-C (what was
/// generated until then is printed). Throws kd::Error.
int run(const RunOptions& options);

}  // namespace kd
