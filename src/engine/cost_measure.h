// The cost table of this machine: measured once for a model file, a thread count and a build, kept
// in the cache folder.
#pragma once

#include <functional>
#include <string>

#include "backends/cpu/processor.h"
#include "core/budget.h"
#include "engine/round.h"
#include "formats/model_file.h"

namespace kd {

/// The longer context at which forwards are timed, where the cache holds so much.
inline constexpr int32_t kFarContext = 1024;

/// Times forwards of 1 to `max_rows` rows at no context and at `max_context` or kFarContext, the
/// smaller one (mean of interleaved passes). Reads the pool's first slots whatever they hold
/// (they become resident) and writes to the slots of `tail` alone, [max_rows] or more of them:
/// between two rounds nothing lives there, so it may run while sessions do. `progress` is told the
/// share done, 0 to 1.
CostTable measure_cost(const RoundContext& context, Batch& batch, int32_t max_rows,
                       int32_t max_context, std::span<const int32_t> tail,
                       const std::function<void(double share)>& progress = {});

/// Every row costs the same: what the reference kernels do, whose forwards are too slow to time.
CostTable proportional_cost(int32_t max_rows);

/// Where the table for these, this build and this processor with the instruction set that the
/// dispatch takes is kept; the model counts by path, size and time of its files.
/// `max_context` as in measure_cost.
std::string cost_cache_path(const std::string& cache_folder, const ModelFile& model, int threads,
                            int32_t max_rows, int32_t max_context = kFarContext);

/// An empty table if there is none or it cannot be read.
CostTable load_cost(const std::string& path);
/// Writes through a temporary file; a failure leaves nothing behind and is returned as a message
/// (empty: written).
std::string save_cost(const CostTable& table, const std::string& path);

}  // namespace kd
