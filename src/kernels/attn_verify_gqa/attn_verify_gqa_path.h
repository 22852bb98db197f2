// The keys of one new row in path order, and the reference on a range of rows: shared by the fast
// kernel and the reference.
#pragma once

#include <bit>
#include <cstdint>

#include "base/check.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_unit.h"

namespace kd {

/// The last row of a segment without ancestors that `row` attends to.
inline int32_t last_attended(const AttnSegment& segment, int32_t row) {
    return segment.bidirectional ? segment.rows - 1 : row;
}

/// Path positions of `row` of a segment: the context, its ancestors and itself, or all rows.
inline int64_t path_keys(const AttnSegment& segment, int32_t row) {
    const int32_t depth = segment.ancestors.empty() ? last_attended(segment, row)
                                                    : segment.depth[static_cast<size_t>(row)];
    return static_cast<int64_t>(segment.context.size()) + depth + 1;
}

/// Calls visit(i, node) for the nodes on the path of `row`, the root first: i = 0, 1, ... A
/// parent's index is below its child's, so increasing indices are root-down order.
template <class Visit>
void for_each_path_node(const AttnSegment& segment, int32_t row, Visit&& visit) {
    int32_t i = 0;
    if (segment.ancestors.empty()) {
        for (int32_t node = 0; node <= last_attended(segment, row); ++node) visit(i++, node);
        return;
    }
    for (int32_t word = 0; word < kAncestorWords; ++word) {
        uint64_t bits = segment.ancestors[static_cast<size_t>(row) * kAncestorWords + word];
        for (; bits != 0; bits &= bits - 1) visit(i++, word * 64 + std::countr_zero(bits));
    }
}

/// Whether `node` is `row` itself or one of its ancestors, in a tree.
inline bool is_on_path(const AttnSegment& segment, int32_t row, int32_t node) {
    const size_t word = static_cast<size_t>(row) * kAncestorWords + static_cast<size_t>(node / 64);
    return (segment.ancestors[word] >> (node % 64) & 1) != 0;
}

/// What every caller must have got right about a segment.
inline void check_segment(const AttnSegment& segment) {
    const auto rows = static_cast<size_t>(segment.rows);
    const bool causal = segment.ancestors.empty();
    KD_CHECK(segment.slots.size() == rows, "{} slots, {} rows", segment.slots.size(), rows);
    KD_CHECK(causal || (segment.ancestors.size() == rows * kAncestorWords &&
                        segment.depth.size() == rows && segment.rows <= kMaxTreeNodes),
             "tree of {} rows, {} words, {} depths", rows, segment.ancestors.size(),
             segment.depth.size());
    KD_CHECK(causal || !segment.bidirectional, "a bidirectional tree of {} rows", rows);
    for (size_t row = 0; !causal && row < rows; ++row) {
        int32_t nodes = 0;
        for_each_path_node(segment, static_cast<int32_t>(row), [&](int32_t, int32_t node) {
            KD_CHECK(node <= static_cast<int32_t>(row), "node {} on the path of {}", node, row);
            ++nodes;
        });
        KD_CHECK(nodes == segment.depth[row] + 1, "{} nodes on the path of {} at depth {}", nodes,
                 row, segment.depth[row]);
    }
}

/// What every caller must have got right.
inline void check_attention(const AttnVerifyGqaParams& params) {
    KD_CHECK(params.kv_heads > 0 && params.heads % params.kv_heads == 0 &&
                 params.heads / params.kv_heads <= kMaxHeadGroup,
             "{} heads, {} K/V heads", params.heads, params.kv_heads);
    KD_CHECK(params.head_dim % kHeadDimStep == 0 && params.head_dim <= kMaxHeadDim, "head of {}",
             params.head_dim);
    KD_CHECK(params.kv.kv_heads == params.kv_heads && params.kv.head_dim == params.head_dim,
             "cache of {} x {}, attention of {} x {}", params.kv.kv_heads, params.kv.head_dim,
             params.kv_heads, params.head_dim);
    KD_CHECK(params.kv.type == DType::f16 || params.kv.type == DType::f32, "K/V cache of {}",
             name_of(params.kv.type));
    for (const AttnSegment& segment : params.segments) check_segment(segment);
}

/// The reference for rows [begin, end), counted over all segments.
void attn_verify_gqa_ref_rows(const AttnVerifyGqaParams& params, int64_t begin, int64_t end);

}  // namespace kd
