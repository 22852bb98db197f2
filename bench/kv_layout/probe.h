// Read-only probes of a paged cache: what the layout costs when nothing but reading is done. And
// the kernels that put rows at their slots and compare them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kd::kv_layout {

/// The rows that the probes are compiled for. GQA: K and V of one head of 128 bf16 values, each in
/// a plane of its own, as on a rank with one K/V head.
enum class RowShape { mla_bf16, mla_fp8_656, gqa_bf16 };

const char* row_shape_name(RowShape shape);  // as "kv_dtype" of the rows
int32_t row_bytes_of(RowShape shape);        // of one plane
int32_t planes_of(RowShape shape);

enum class Loader {
    loads,  // 16-byte loads into registers, 32 KiB in flight a block, four blocks a multiprocessor
    bulk    // one cp.async.bulk a run of a tile, into a ring of tiles in shared memory
};

/// How a probe is launched on the current device.
struct ProbeLaunch {
    RowShape shape = RowShape::mla_bf16;
    Loader loader = Loader::loads;
    int32_t blocks = 0;
    int32_t tile_rows = 0;  // bulk: the longest run that is one copy
    int32_t stages = 0;     // bulk: tiles in the ring
    int32_t digests = 0;    // words of ProbeInputs::digest
};

/// Throws std::runtime_error where two tiles do not fit into shared memory.
ProbeLaunch probe_launch(RowShape shape, Loader loader);

struct ProbeInputs {
    const std::byte* plane[2];  // [slots, row bytes]; the second of GQA only
    const int32_t* slots;       // device [tokens]
    int32_t tokens;
    uint32_t* digest;  // device [digests]; their sum depends on the rows in order, not on the slots
};

void probe(const ProbeLaunch& launch, const ProbeInputs& inputs, cudaStream_t stream);

/// to[slots[i]] = from[i] for rows of `row_bytes`, a multiple of 16.
void place_rows(const std::byte* from, std::byte* to, const int32_t* slots, int32_t count,
                int32_t row_bytes, cudaStream_t stream);

/// Adds to *different the 16-byte words in which rows from[i] and to[i] of one buffer differ.
void compare_rows(const std::byte* buffer, const int32_t* from, const int32_t* to, int32_t count,
                  int32_t row_bytes, uint32_t* different, cudaStream_t stream);

}  // namespace kd::kv_layout
