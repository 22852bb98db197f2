// kdtree inspect: what is in a model file, and whether this engine can run it.
#pragma once

#include <string>

namespace kd {

struct InspectOptions {
    std::string model = "smollm2";  // a known name, a .gguf file, or a folder (of a drafter, too)
    bool tensors = false;           // list all of them
    bool chat_template = false;     // print the chat template and nothing else
    std::string json;               // output file, "-": standard output; empty: the text only
};

/// The exit code of a file that is sound and cannot be run.
inline constexpr int kUnsupportedExitCode = 2;

/// Prints a report and writes the JSON object that docs/inspect.md describes. Reads no weights.
/// Returns 0 if the engine can run the model or read the drafter, else kUnsupportedExitCode. Throws
/// kd::Error for what is no sound GGUF file or folder.
int inspect(const InspectOptions& options);

}  // namespace kd
