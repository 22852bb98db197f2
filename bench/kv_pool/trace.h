// Loads as files: lines of JSON, docs/bench-kv-pool.md.
#pragma once

#include <string>

#include "kv_pool/load.h"

namespace kd {

/// rounds_per_t: rounds that one unit of "t" lasts. Throws kd::Error naming file and line.
Load read_trace(const std::string& path, double rounds_per_t);

/// "t" in rounds.
void write_trace(const Load& load, const std::string& path);

}  // namespace kd
