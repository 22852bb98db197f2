// kdtree doctor: is this machine in order for this model, and what speed is to be expected?
#pragma once

#include <string>

#include "base/config.h"
#include "engine/round.h"

namespace kd {

struct DoctorOptions {
    Config config;
    Speculation speculation;
    std::string json;  // output file, "-": standard output; empty: the text only
};

/// Prints one line a check, and writes the JSON object that docs/inspect.md describes. Measures for
/// a few seconds; the cost table is measured and kept as `run` would. Returns 1 if a problem keeps
/// the model from running, else 0, warnings or not. Throws kd::Error for settings out of range and
/// an output that cannot be written.
int doctor(const DoctorOptions& options);

}  // namespace kd
