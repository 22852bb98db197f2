// The parts of doctor: each adds its findings and returns its figures.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/doctor.h"
#include "app/findings.h"
#include "app/gpu.h"
#include "app/machine.h"
#include "engine/probe.h"

namespace kd {

/// What the processor and the system around it are like for `threads` threads, of a process that
/// the cgroup gives `quota` CPUs' worth of time (0: no limit), with kernels for `target`.
void check_machine(const Machine& machine, int threads, double quota, const std::string& target,
                   Findings& findings);
void check_gpus(const GpuReport& gpus, Findings& findings);
void check_cache_folder(const std::string& folder, Findings& findings);

/// Whether model and drafter are there, sound and supported and fit in memory; the model's facts if
/// it can be loaded.
std::optional<ModelProbe> check_model(const DoctorOptions& options, const Machine& machine,
                                      Findings& findings);

/// Measures memory and decoding (none without a model); the figures as JSON.
nlohmann::ordered_json check_speed(const DoctorOptions& options, const Machine& machine,
                                   const std::optional<ModelProbe>& model, int threads,
                                   Findings& findings);

nlohmann::ordered_json machine_json(const Machine& machine);
nlohmann::ordered_json gpus_json(const GpuReport& gpus);

}  // namespace kd
