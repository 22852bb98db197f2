// kdtree bench: the same prompts by plain decoding, chains, trees and the cost model's choice,
// paired and interleaved.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/sampling_params.h"

namespace kd {

struct BenchOptions {
    Config config;
    std::vector<std::string> prompt_files;
    int32_t limit = 0;  // prompts a file; 0: all
    int32_t max_tokens = 128;
    SamplingParams sampling;
    std::vector<std::string> modes = {"plain", "chain", "tree", "policy"};
    int32_t nodes = 8;  // T of chain and tree
    int32_t repeat = 3;
    std::string json;  // output file; empty: the table only; "-": the JSON only
};

/// Prints a table and writes the JSON object that docs/bench.md describes. Returns 1 if a greedy
/// mode's output differs from plain decoding's, 130 after Ctrl-C, else 0. Throws kd::Error.
int bench(const BenchOptions& options);

}  // namespace kd
