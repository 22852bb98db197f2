// Where an op runs: a device, the workers of that device, and which set of kernels is wanted.
// An op's entry point dispatches on it in one line.
#pragma once

#include <cstdint>

#include "backends/cpu/arena.h"
#include "backends/cpu/threads.h"

namespace kd {

enum class Kernels : uint8_t {
    fast,       // the kernels that ship
    reference,  // the plain truth of every op: float rows, double accumulation; slow
};

struct Stream {
    ThreadPool* threads = nullptr;  // never null on the CPU
    Kernels kernels = Kernels::fast;
    Arena* weights = nullptr;  // where packed weights lie; null: each in memory of its own
};

}  // namespace kd
