// Loading an engine the way every command does it: progress for files that take long, and what
// --verbose promises, the settings in effect.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "engine/engine.h"

namespace kd {

/// Whether load_engine prints the settings; main sets it from --verbose.
void set_verbose(bool verbose);

/// The engine of `config`. Prints the settings it resolved to on standard error once, if --verbose
/// is given, and after them those of the command itself. Throws kd::Error for bad settings and
/// files.
std::unique_ptr<Engine> load_engine(const Config& config,
                                    const nlohmann::ordered_json& command_settings = {});

/// Measures the engine's cost table now, with progress, unless it is cached: what a request with
/// Speculation::nodes = 0 would do, silently, when it is submitted.
void measure_cost_now(Engine& engine);

}  // namespace kd
