// The two halves of moe_experts on ranges of their work: shared by the reference and its parallel
// form.
#pragma once

#include <cstdint>

#include "kernels/moe_experts/moe_experts.h"

namespace kd {

/// Inputs that cannot be right abort.
void check_moe_experts(const MoeExpertsParams& params);
/// activated of the pairs [begin, end): pair p is expert p % used of row p / used.
void moe_experts_activate(const MoeExpertsParams& params, int64_t begin, int64_t end);
/// y[row, column] for columns [begin, end) of all rows, from what `activated` holds.
void moe_experts_combine(const MoeExpertsParams& params, int64_t begin, int64_t end);

}  // namespace kd
