// The cost table of this machine, measured.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backends/cpu/processor.h"
#include "core/budget.h"
#include "engine/round.h"

namespace kd {

/// The longer context at which forwards are timed, where the cache holds so much.
inline constexpr int32_t kFarContext = 1024;
/// Forwards are timed until they took so long together.
inline constexpr double kMeasureSeconds = 10;

/// Seconds that one forward of `rows` rows behind `context` tokens takes.
using TimeForward = std::function<double(int32_t rows, int32_t context)>;

/// Times every point in interleaved passes and averages the faster ones. Where kMeasureSeconds are
/// over there are fewer passes, and where not even the first one ends the table ends before `rows`
/// do, with two row counts at least. `progress` is told the share done, 0 to 1.
CostTable measure_points(std::vector<int32_t> rows, const std::vector<int32_t>& contexts,
                         const TimeForward& time_forward,
                         const std::function<void(double share)>& progress = {});

/// Times forwards of 1 to `max_rows` rows at no context and at `max_context` or kFarContext, the
/// smaller one. Reads the pool's first slots whatever they hold
/// (they become resident) and writes to the slots of `tail` alone, [max_rows] or more of them:
/// between two rounds nothing lives there, so it may run while sessions do.
CostTable measure_cost(const RoundContext& context, Batch& batch, int32_t max_rows,
                       int32_t max_context, std::span<const int32_t> tail,
                       const std::function<void(double share)>& progress = {});

/// Every row costs the same: what the reference kernels do, whose forwards are too slow to time.
CostTable proportional_cost(int32_t max_rows);

}  // namespace kd
