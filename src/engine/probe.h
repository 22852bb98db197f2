// What commands that look at a model or a machine, rather than run, have to know of the layers
// below the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/model_config.h"
#include "formats/model_file.h"

namespace kd {

struct ModelProbe {
    ModelConfig config;  // as far as it could be read
    bool has_shape = false;
    bool has_own_head = false;        // the head is a matrix of its own, not the embedding
    std::vector<std::string> faults;  // why the engine refuses the file, one line each; none: it
                                      // loads, if its weights are finite
    int64_t decode_bytes = 0;  // of weights that one token of plain decoding reads, by the file's
                               // types; 0 without a shape
    int64_t kv_bytes = 0;      // of one token's K/V in the pool; 0 without a shape
};

/// Runs every check of loading but the one that reads all weights. `file` may list foreign tensors;
/// each of their types is one fault.
ModelProbe probe_model(const ModelFile& file);

/// The instruction set that the CPU kernels' dispatch takes, by Highway's name ("AVX3_DL").
std::string kernel_target();
/// CPUs' worth of time that the cgroup of this process allows; 0: no limit.
double cgroup_cpus();
/// Threads that the engine takes unless told otherwise.
int usable_threads();

/// GB/s (1e9 bytes) of reading `bytes` of memory by all threads together with the kernels' vectors:
/// each of `runs` passes, ascending. Throws std::bad_alloc.
std::vector<double> measure_memory_read(int threads, int64_t bytes, int runs);

}  // namespace kd
