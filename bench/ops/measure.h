// What is measured: the case lists of all ops, and sets of the size of a real model.
#pragma once

#include "backends/stream.h"
#include "ops/report.h"

namespace kd {

/// Every op's cases, one call again and again: data in the caches, where the case fits there.
void measure_cases(Report& report, Stream& stream);

/// linear: one walk over the 121 matrices of SmolLM2-135M's shape (96 MB: Q4_1, the head Q8_0) for
/// T rows, as in a forward. attn_verify_gqa: all 30 layers for a tree of T rows, over caches of at
/// least 96 MB before any key is met again.
void measure_model_linear(Report& report, Stream& stream);
void measure_model_attention(Report& report, Stream& stream);

}  // namespace kd
