// One task of attn_verify_gqa: what it reads, where its results go and which keys its rows see.
#if defined(KD_KERNELS_ATTN_TASK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KD_KERNELS_ATTN_TASK_INL_H
#undef KD_KERNELS_ATTN_TASK_INL_H
#else
#define KD_KERNELS_ATTN_TASK_INL_H
#endif

#include <algorithm>
#include <span>

#include "base/check.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_block_inl.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_path.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// A task of a unit: one block and one K/V head.
struct Task {
    Task(const AttnVerifyGqaParams& p, const AttnUnit& u, int64_t index)
        : params(p),
          unit(u),
          kv_head(static_cast<int32_t>(index % p.kv_heads)),
          block(static_cast<int32_t>(index / p.kv_heads)) {}

    const float* query(int32_t row, int32_t head) const {
        return params.q + (int64_t{unit.segment->first_row} + row) * params.q_stride +
               int64_t{head} * params.head_dim;
    }
    /// Query i of a unit: row i / group, head i % group of those that share the K/V head.
    int32_t group() const { return params.heads / params.kv_heads; }
    int32_t first_query(int32_t row) const { return (row - unit.first_row) * group(); }
    /// Path positions of the block that `row` sees.
    int32_t valid_keys(int32_t row) const {
        const int64_t keys = path_keys(*unit.segment, row) - int64_t{block} * kBlockKeys;
        return static_cast<int32_t>(std::clamp<int64_t>(keys, 0, kBlockKeys));
    }
    /// The lane of the segment's row at depth 0; negative if it is in an earlier block.
    int64_t lane_of_root() const {
        return static_cast<int64_t>(unit.segment->context.size()) - int64_t{block} * kBlockKeys;
    }
    float* record(int32_t row, int32_t head) const {
        return unit.record(row, head, block, params.heads, record_floats(params.head_dim));
    }

    const AttnVerifyGqaParams& params;
    const AttnUnit& unit;
    const int32_t kv_head;
    const int32_t block;
};

/// Where the rows of a block's first `keys` path positions lie: bytes from slot 0.
struct BlockKeys {
    int32_t keys = 0;
    int64_t offsets[kBlockKeys] = {};

    /// The rows of these slots for the positions from `keys` on.
    HWY_INLINE void append(const KvView& kv, std::span<const int32_t> slots) {
        const int64_t row_bytes = kv.row_bytes();
        bool inside = true;
        for (size_t i = 0; i < slots.size(); ++i) {
            inside &= slots[i] >= 0 && slots[i] < kv.slots;
            offsets[static_cast<size_t>(keys) + i] = slots[i] * row_bytes;
        }
        KD_CHECK(inside, "a slot of {} is none of {}", fmt::join(slots, " "), kv.slots);
        keys += static_cast<int32_t>(slots.size());
    }
    /// The rows of the task's head in one plane (K or V) of the layer.
    template <class T>
    CacheRows<T> rows(const std::byte* plane, const Task& task) const {
        const int32_t dim = task.params.head_dim;
        const int64_t head = int64_t{task.kv_head} * dim * static_cast<int64_t>(sizeof(T));
        return {.head = plane + head, .offsets = offsets, .keys = keys, .dim = dim};
    }
};

/// The part of `slots` that has the path positions [first, end), where slots[0] has position
/// `start`.
inline std::span<const int32_t> slots_of(std::span<const int32_t> slots, int64_t start,
                                         int64_t first, int64_t end) {
    const auto count = static_cast<int64_t>(slots.size());
    const int64_t from = std::clamp<int64_t>(first - start, 0, count);
    const int64_t to = std::clamp<int64_t>(end - start, from, count);
    return slots.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
}

/// The block's keys that all rows of the unit share: those of the context, and without ancestors
/// the segment's own rows as far as the unit's last one attends (what an earlier row does not see
/// is masked by its count of valid keys).
HWY_INLINE void find_shared_keys(const Task& task, BlockKeys& found) {
    const AttnSegment& segment = *task.unit.segment;
    const int64_t context = static_cast<int64_t>(segment.context.size());
    const int64_t first = int64_t{task.block} * kBlockKeys;
    found.keys = 0;
    found.append(task.params.kv, slots_of(segment.context, 0, first, first + kBlockKeys));
    if (!segment.ancestors.empty()) return;
    const int64_t end = std::min(first + kBlockKeys, path_keys(segment, task.unit.end_row - 1));
    found.append(task.params.kv, slots_of(segment.slots, context, first, end));
}

/// Appends the tree row's own keys of the block: they stand behind those of the context, at their
/// path positions.
HWY_INLINE void append_path_keys(const Task& task, int32_t row, BlockKeys& found) {
    const AttnSegment& segment = *task.unit.segment;
    const int64_t root = task.lane_of_root();
    for_each_path_node(segment, row, [&](int32_t i, int32_t node) HWY_ATTR {
        if (root + i < 0 || root + i >= kBlockKeys) return;
        found.append(task.params.kv, segment.slots.subspan(static_cast<size_t>(node), 1));
    });
}

/// Some queries of a unit, one after the other.
struct Queries {
    int32_t first = 0;
    int32_t count = 0;
    int32_t valid[kQueriesPerPass] = {};  // keys that each sees
    const float* q[kQueriesPerPass];
    float* records[kQueriesPerPass];
};

/// Calls visit(queries) for those of rows [begin, end) that see any key of the block. same_keys:
/// equally many keys, so that no key is touched for a row that does not see it.
template <class Visit>
HWY_INLINE void for_each_queries(const Task& task, int32_t begin, int32_t end, bool same_keys,
                                 Visit&& visit) {
    Queries queries;
    auto flush = [&]() HWY_ATTR {
        if (queries.count > 0) visit(queries);
        queries.count = 0;
    };
    for (int32_t row = begin; row < end; ++row) {
        const int32_t valid = task.valid_keys(row);
        if (valid == 0 || (same_keys && valid != queries.valid[0])) flush();
        for (int32_t h = 0; valid > 0 && h < task.group(); ++h) {
            if (queries.count == 0) queries.first = task.first_query(row) + h;
            queries.valid[queries.count] = valid;
            queries.q[queries.count] = task.query(row, task.kv_head * task.group() + h);
            queries.records[queries.count] = task.record(row, task.kv_head * task.group() + h);
            if (++queries.count == kQueriesPerPass) flush();
        }
    }
    flush();
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
