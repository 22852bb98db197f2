// Where an op runs: a device, the workers of that device, and which set of kernels is wanted.
// An op's entry point dispatches on it in one line.
#pragma once

#include <cstdint>

#include "backends/cpu/threads.h"

namespace kd {

enum class Kernels : uint8_t {
    fast,       // the kernels that ship
    reference,  // the plain truth of every op: float rows, double accumulation; slow
};

struct Stream {
    ThreadPool* threads = nullptr;  // never null on the CPU
    Kernels kernels = Kernels::fast;
};

}  // namespace kd
