// attn_verify_gqa: grouped-query attention of new rows over the paged context and, among the new
// rows themselves, over each row's ancestors only (a draft tree), all earlier rows (a prefill
// chunk, which is a chain) or all rows (a block of a drafter).
//
// A row's output is a function of its path alone: keys are taken in path order (context positions,
// then the ancestors from the root down), every reduction over them runs in blocks at absolute
// multiples of 64 path positions, in one fixed order.
#pragma once

#include <cstdint>
#include <span>

#include "backends/stream.h"
#include "base/views.h"
#include "kernels/kv_view.h"

namespace kd {

/// Consecutive rows of a forward batch that belong to one session.
struct AttnSegment {
    int32_t first_row = 0;  // index of its first row in the batch
    int32_t rows = 0;
    std::span<const int32_t> context;     // [context tokens] slot of every committed position
    std::span<const int32_t> slots;       // [rows] slot of each new row
    std::span<const int32_t> depth;       // [rows] tree depth; empty: row i has depth i (causal)
    std::span<const uint64_t> ancestors;  // [rows, kAncestorWords] self bit set; empty: causal
    bool bidirectional = false;  // every row attends to all rows; without depth and ancestors
};

struct AttnVerifyGqaParams {
    int32_t heads = 0;
    int32_t kv_heads = 0;  // divides heads
    int32_t head_dim = 0;
    float scale = 0;           // of the scores, usually 1 / sqrt(head_dim)
    const float* q = nullptr;  // [rows, q_stride], first heads * head_dim values of a row
    int64_t q_stride = 0;
    float* out = nullptr;  // [rows, heads * head_dim]
    std::span<const AttnSegment> segments;
    KvView kv;
    int32_t layer = 0;
    float* scratch = nullptr;  // attn_verify_gqa_scratch_floats() values
};

/// Scratch of the fast kernel for contexts of up to `max_keys` keys a row.
int64_t attn_verify_gqa_scratch_floats(int32_t heads, int32_t head_dim, int64_t max_keys,
                                       int threads);

void attn_verify_gqa(const AttnVerifyGqaParams& params, Stream& stream);
void attn_verify_gqa_ref(const AttnVerifyGqaParams& params);

}  // namespace kd
