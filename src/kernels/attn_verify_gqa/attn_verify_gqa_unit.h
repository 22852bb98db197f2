// How attn_verify_gqa cuts its work: a unit is a few consecutive rows of a segment; a task is one
// block of 64 path positions and one K/V head of a unit. Each task leaves one partial result
// (record) for every row and head; a second step joins the records in block order.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa.h"

namespace kd {

inline constexpr int32_t kAttnBlockKeys = 64;
/// Rows that share the keys of a task: enough to spread the transposing of K over, few enough
/// to leave tasks for every thread. Fewer where many heads share a K/V head.
inline constexpr int32_t kAttnUnitRows = 8;
/// Most queries (rows x heads that share a K/V head) of a unit.
inline constexpr int32_t kAttnUnitQueries = kMaxHeadGroup;

struct AttnUnit {
    const AttnSegment* segment = nullptr;
    int32_t first_row = 0;  // in the segment
    int32_t end_row = 0;
    int32_t blocks = 0;        // of the row with the longest path
    int64_t first_task = 0;    // among the tasks of the pass
    int64_t first_result = 0;  // among the (row, head) results of the pass
    float* records = nullptr;  // [rows, heads, blocks, record floats]

    float* record(int32_t row, int32_t head, int32_t block, int32_t heads,
                  int64_t record_floats) const {
        const int64_t result = int64_t{row - first_row} * heads + head;
        return records + (result * blocks + block) * record_floats;
    }
    int64_t floats(int32_t heads, int64_t record_floats) const {
        return int64_t{end_row - first_row} * heads * blocks * record_floats;
    }
};

}  // namespace kd
