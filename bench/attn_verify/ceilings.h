// What this device can do at most: reading memory, bf16 products, launches in a graph.
#pragma once

#include <optional>

#include "attn_verify/device.h"

namespace kd::bench {

struct Ceilings {
    double read_tb_s = 0;         // best of several launch shapes over the whole memory block
    double mma_sync_tflop_s = 0;  // bf16, float accumulators, operands in registers
    std::optional<double> wgmma_tflop_s;  // sm_90a, operands in shared memory
    double launch_gap_us = 0;             // per node of a chain of empty kernels in a graph
    double launch_gap_pdl_us = 0;         // the same with programmatic dependent launch

    /// The faster of the two instructions.
    double bf16_tflop_s() const {
        return wgmma_tflop_s.value_or(0) > mma_sync_tflop_s ? *wgmma_tflop_s : mma_sync_tflop_s;
    }
};

/// Reads up to 8 GiB of `memory` and overwrites nothing of it.
Ceilings measure_ceilings(const DeviceMemory& memory, const Stream& stream);

}  // namespace kd::bench
