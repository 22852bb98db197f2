// swiglu: the gated activation between the two halves of a feed-forward layer.
#pragma once

#include <cstdint>

#include "backends/stream.h"

namespace kd {

struct SwigluParams {
    const float* gate_up = nullptr;  // [rows, 2 * columns]: gate, then up
    float* y = nullptr;              // [rows, columns]
    int64_t rows = 0;
    int64_t columns = 0;
};

/// y = gate / (1 + exp(-gate)) * up.
void swiglu(const SwigluParams& params, Stream& stream);
void swiglu_ref(const SwigluParams& params);

}  // namespace kd
