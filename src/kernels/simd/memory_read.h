// What the fast kernels find on this machine: the instruction set they take and how fast memory is
// read with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/threads.h"

namespace kd {

/// The instruction set that the kernels' dispatch takes, by Highway's name ("AVX3_DL").
std::string dispatch_target();

/// GB/s (1e9 bytes) of each of `runs` passes in which all threads together read `bytes` (rounded
/// down to whole MiB, at least one) that the same threads wrote before; ascending. More than the
/// last-level caches hold: then it is memory's. Throws std::bad_alloc.
std::vector<double> read_gb_s(ThreadPool& threads, int64_t bytes, int runs);

}  // namespace kd
