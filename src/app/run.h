// kdtree run: one prompt, one streamed answer.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/sampling_params.h"
#include "engine/engine.h"

namespace kd {

struct RunOptions {
    Config config;
    std::string prompt;
    bool raw = false;  // no chat template
    SamplingParams sampling;
    int32_t max_tokens = 0;
    std::vector<std::string> stop;
    Speculation speculation;
    bool stats = false;      // a summary on stderr
    std::string stats_json;  // the same as a JSON file
    bool show_tree = false;  // the trees of all rounds on stderr
};

/// Streams the answer to standard output. Returns the exit code: 0, or 130 after Ctrl-C (what was
/// generated until then is printed). Throws kd::Error.
int run(const RunOptions& options);

}  // namespace kd
