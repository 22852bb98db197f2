#include "kernels/attn_verify_gqa/attn_verify_gqa.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/attn_verify_gqa/attn_verify_gqa_path.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_unit.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attn_verify_gqa/attn_verify_gqa.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_task_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// visit(std::integral_constant<int, queries>()).
template <class Visit>
HWY_INLINE void with_constant(int32_t queries, Visit&& visit) {
    static_assert(kQueriesPerPass == 6);
    switch (queries) {
        case 1:
            return visit(std::integral_constant<int, 1>());
        case 2:
            return visit(std::integral_constant<int, 2>());
        case 3:
            return visit(std::integral_constant<int, 3>());
        case 4:
            return visit(std::integral_constant<int, 4>());
        case 5:
            return visit(std::integral_constant<int, 5>());
        default:
            return visit(std::integral_constant<int, 6>());
    }
}

/// Scores of all rows of the unit against `columns` keys of the tile.
HWY_INLINE void score_rows(const Task& task, int32_t columns, const float* tile,
                           float (*scores)[kBlockKeys]) {
    const AttnVerifyGqaParams& p = task.params;
    const AttnUnit& unit = task.unit;
    for_each_queries(task, unit.first_row, unit.end_row, false, [&](const Queries& some) HWY_ATTR {
        with_constant(some.count, [&](auto count) HWY_ATTR {
            score_queries<count.value>(some.q, tile, p.head_dim, columns, p.scale,
                                       scores + some.first);
        });
    });
}

/// Scores to weights, in place, for all rows of the unit.
HWY_INLINE void exponentiate_rows(const Task& task, float (*scores)[kBlockKeys]) {
    const AttnUnit& unit = task.unit;
    const int32_t padded = padded_dim(task.params.head_dim);
    for_each_queries(task, unit.first_row, unit.end_row, false, [&](const Queries& some) HWY_ATTR {
        with_constant(some.count, [&](auto count) HWY_ATTR {
            exponentiate<count.value>(scores + some.first, some.valid, padded, some.records);
        });
    });
}

template <class T>
HWY_INLINE void weigh_rows(const Task& task, int32_t begin, int32_t end, const CacheRows<T>& values,
                           const CacheRows<T>& ahead, const float (*weights)[kBlockKeys]) {
    for_each_queries(task, begin, end, true, [&](const Queries& some) HWY_ATTR {
        with_constant(some.count, [&](auto count) HWY_ATTR {
            weigh_queries<count.value>(weights + some.first, values, ahead, some.valid[0],
                                       some.records);
        });
    });
}

/// Scores of the rows of a tree in a block where paths part. A score depends on query and key
/// alone: each key, shared or of a node on any path, gets one column of a tile, and each row picks
/// the columns of its path.
template <class T>
HWY_INLINE void score_tree_rows(const Task& task, const BlockKeys& shared,
                                const CacheRows<T>& ahead, float* tile,
                                float (*scores)[kBlockKeys]) {
    const AttnUnit& unit = task.unit;
    const AttnSegment& segment = *unit.segment;
    const std::byte* k = task.params.kv.layer(task.params.layer).k;
    const int64_t root = task.lane_of_root();
    HWY_ALIGN float picked[kAttnUnitQueries][kBlockKeys];
    BlockKeys columns = shared;
    int32_t nodes[kBlockKeys];  // of the columns from first_node on
    int32_t first_node = shared.keys;
    auto flush = [&]() HWY_ATTR {
        put_keys(columns.rows<T>(k, task), ahead, tile);
        score_rows(task, columns.keys, tile, picked);
        for (int32_t row = unit.first_row; row < unit.end_row; ++row) {
            for (int32_t h = 0; h < task.group(); ++h) {
                const int32_t query = task.first_query(row) + h;
                std::copy_n(picked[query], first_node, scores[query]);
                for (int32_t column = first_node; column < columns.keys; ++column) {
                    const int32_t node = nodes[column];
                    if (!is_on_path(segment, row, node)) continue;
                    scores[query][root + segment.depth[static_cast<size_t>(node)]] =
                        picked[query][column];
                }
            }
        }
        columns.keys = first_node = 0;
    };
    for (int32_t node = 0; node < unit.end_row; ++node) {
        const int64_t lane = root + segment.depth[static_cast<size_t>(node)];
        bool wanted = false;
        for (int32_t row = unit.first_row; row < unit.end_row; ++row) {
            wanted |= is_on_path(segment, row, node);
        }
        if (!wanted || lane < 0 || lane >= kBlockKeys) continue;
        if (columns.keys == kBlockKeys) flush();
        nodes[columns.keys] = node;
        columns.append(task.params.kv, segment.slots.subspan(static_cast<size_t>(node), 1));
    }
    flush();
}

/// `shared`: what find_shared_keys says of the task's block. `ahead`: the keys of the task after
/// it.
template <class T>
HWY_INLINE void attend_block(const Task& task, const BlockKeys& shared, const CacheRows<T>& ahead) {
    const AttnUnit& unit = task.unit;
    const KvLayer layer = task.params.kv.layer(task.params.layer);
    const auto values = shared.rows<T>(layer.v, task);
    HWY_ALIGN float tile[kMaxHeadDim * kBlockKeys];
    HWY_ALIGN float weights[kAttnUnitQueries][kBlockKeys];
    if (shared.keys == kBlockKeys || unit.segment->ancestors.empty()) {
        put_keys(shared.rows<T>(layer.k, task), values, tile);
        score_rows(task, shared.keys, tile, weights);
        exponentiate_rows(task, weights);
        weigh_rows(task, unit.first_row, unit.end_row, values, ahead, weights);
        return;
    }
    score_tree_rows(task, shared, values, tile, weights);
    exponentiate_rows(task, weights);
    for (int32_t row = unit.first_row; row < unit.end_row; ++row) {
        BlockKeys own = shared;
        append_path_keys(task, row, own);
        weigh_rows(task, row, row + 1, own.rows<T>(layer.v, task), ahead, weights);
    }
}

/// Tasks [begin, end) of a unit, one after the other.
template <class T>
HWY_INLINE void attend_blocks(const AttnVerifyGqaParams& params, const AttnUnit& unit,
                              int64_t begin, int64_t end) {
    const std::byte* k = params.kv.layer(params.layer).k;
    BlockKeys keys[2];  // of even and odd blocks
    find_shared_keys(Task(params, unit, begin), keys[begin / params.kv_heads % 2]);
    for (int64_t index = begin; index < end; ++index) {
        const Task task(params, unit, index);
        const Task next(params, unit, std::min(index + 1, end - 1));
        if (next.block > task.block) find_shared_keys(next, keys[next.block % 2]);
        attend_block(task, keys[task.block % 2], keys[next.block % 2].rows<T>(k, next));
    }
}

void attend_tasks(const AttnVerifyGqaParams& params, const AttnUnit& unit, int64_t begin,
                  int64_t end) {
    if (params.kv.type == DType::f16) return attend_blocks<uint16_t>(params, unit, begin, end);
    attend_blocks<float>(params, unit, begin, end);
}

/// Joins the partial results of one row and head, in block order.
void combine_blocks(const AttnVerifyGqaParams& params, const AttnUnit& unit, int32_t row,
                    int32_t head) {
    const F32 d;
    const int32_t dim = params.head_dim;
    const int32_t padded = padded_dim(dim);
    const int64_t stride = record_floats(dim);
    const auto blocks =
        static_cast<int32_t>((path_keys(*unit.segment, row) + kBlockKeys - 1) / kBlockKeys);
    float* records = unit.record(row, head, 0, params.heads, stride);
    float largest = records[padded];
    for (int32_t b = 1; b < blocks; ++b) {
        largest = std::max(largest, records[b * stride + padded]);
    }
    // A block's weight takes the place of its largest score.
    float total = 0;
    for (int32_t first = 0; first < blocks; first += kLane) {
        const int32_t end = std::min(first + kLane, blocks);
        HWY_ALIGN float weights[kLanes] = {};
        for (int32_t b = first; b < end; ++b) weights[b - first] = records[b * stride + padded];
        const F32Vec below = hn::Sub(hn::Load(d, weights), hn::Set(d, largest));
        hn::Store(exp_of(d, below), d, weights);
        for (int32_t b = first; b < end; ++b) {
            records[b * stride + padded] = weights[b - first];
            total += weights[b - first] * records[b * stride + padded + 1];
        }
    }
    float* out =
        params.out + ((int64_t{unit.segment->first_row} + row) * params.heads + head) * dim;
    const F32Vec share = hn::Set(d, 1 / total);
    for (int32_t i = 0; i < dim; i += kLane) {
        F32Vec sum = hn::Zero(d);
        for (int32_t b = 0; b < blocks; ++b) {
            const float* record = records + b * stride;
            sum = hn::MulAdd(hn::Set(d, record[padded]), hn::LoadU(d, record + i), sum);
        }
        const F32Vec value = hn::Mul(sum, share);
        if (i + kLane <= dim) {
            hn::StoreU(value, d, out + i);
        } else {
            store_first(d, value, out + i, static_cast<size_t>(dim - i));
        }
    }
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(attend_tasks);
HWY_EXPORT(combine_blocks);

namespace {

constexpr int kMaxUnits = 16;

/// Units in flight: their partial results lie in the scratch at the same time.
int units_at_once(int threads) {
    return std::clamp(threads, 4, kMaxUnits);
}

/// A few units and the tasks (K/V head x block) they consist of.
struct Pass {
    std::array<AttnUnit, kMaxUnits> units;
    int count = 0;
    int64_t tasks = 0;
    int64_t results = 0;  // rows x heads
};

/// Tasks that one thread takes at a time: two times for each or more often, and, if there are so
/// many, all heads of up to four blocks. Heads of a row lie side by side, and only the first task
/// of a chunk has to wait for its keys.
int64_t grain_of(const AttnVerifyGqaParams& params, const Pass& pass, int threads) {
    constexpr int64_t kMostBlocks = 4;
    const int64_t chunks = 2 * int64_t{threads};
    const int64_t blocks = pass.tasks / params.kv_heads / chunks;
    if (blocks == 0) return std::max<int64_t>(1, pass.tasks / chunks);
    return std::min(blocks, kMostBlocks) * params.kv_heads;
}

void run_pass(const AttnVerifyGqaParams& params, const Pass& pass, ThreadPool& threads) {
    auto unit_of = [&](int64_t index, int64_t AttnUnit::*first) {
        int u = pass.count - 1;
        while (pass.units[u].*first > index) --u;
        return u;
    };
    const int64_t task_grain = grain_of(params, pass, threads.threads());
    threads.parallel_for(pass.tasks, task_grain, [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const AttnUnit& unit = pass.units[unit_of(begin, &AttnUnit::first_task)];
            const int64_t first = begin - unit.first_task;
            const int64_t tasks =
                std::min(end - begin, int64_t{unit.blocks} * params.kv_heads - first);
            HWY_DYNAMIC_DISPATCH(attend_tasks)(params, unit, first, first + tasks);
            begin += tasks;
        }
    });
    // Joining a block takes tens of nanoseconds: 256 of them make a chunk.
    int32_t blocks = 1;
    for (int u = 0; u < pass.count; ++u) blocks = std::max(blocks, pass.units[u].blocks);
    const int64_t grain = std::max<int64_t>(1, 256 / blocks);
    threads.parallel_for(pass.results, grain, [&](int64_t begin, int64_t end) {
        for (int64_t result = begin; result < end; ++result) {
            const AttnUnit& unit = pass.units[unit_of(result, &AttnUnit::first_result)];
            const int64_t index = result - unit.first_result;
            HWY_DYNAMIC_DISPATCH(combine_blocks)
            (params, unit, unit.first_row + static_cast<int32_t>(index / params.heads),
             static_cast<int32_t>(index % params.heads));
        }
    });
}

/// Appends the unit of rows [first, end) and its share of the scratch.
void add_unit(const AttnVerifyGqaParams& params, const AttnSegment& segment, int32_t first,
              int32_t end, Pass& pass) {
    int64_t keys = 0;
    for (int32_t row = first; row < end; ++row) keys = std::max(keys, path_keys(segment, row));
    const int64_t record = HWY_STATIC_DISPATCH(record_floats)(params.head_dim);
    const AttnUnit* last = pass.count > 0 ? &pass.units[pass.count - 1] : nullptr;
    AttnUnit& unit = pass.units[pass.count++];
    unit = {.segment = &segment,
            .first_row = first,
            .end_row = end,
            .blocks = static_cast<int32_t>((keys + kAttnBlockKeys - 1) / kAttnBlockKeys),
            .first_task = pass.tasks,
            .first_result = pass.results,
            .records = last == nullptr ? params.scratch
                                       : last->records + last->floats(params.heads, record)};
    pass.tasks += int64_t{unit.blocks} * params.kv_heads;
    pass.results += int64_t{end - first} * params.heads;
}

}  // namespace

int64_t attn_verify_gqa_scratch_floats(int32_t heads, int32_t head_dim, int64_t max_keys,
                                       int threads) {
    const int64_t blocks = (max_keys + kAttnBlockKeys - 1) / kAttnBlockKeys;
    return int64_t{units_at_once(threads)} * kAttnUnitRows * heads * blocks *
           HWY_STATIC_DISPATCH(record_floats)(head_dim);
}

void attn_verify_gqa(const AttnVerifyGqaParams& params, Stream& stream) {
    check_attention(params);
    if (stream.kernels == Kernels::reference) {
        int64_t rows = 0;
        for (const AttnSegment& segment : params.segments) rows += segment.rows;
        stream.threads->parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
            attn_verify_gqa_ref_rows(params, begin, end);
        });
        return;
    }
    const int capacity = units_at_once(stream.threads->threads());
    const int32_t unit_rows =
        std::min(kAttnUnitRows, kAttnUnitQueries * params.kv_heads / params.heads);
    Pass pass;
    for (const AttnSegment& segment : params.segments) {
        for (int32_t row = 0; row < segment.rows; row += unit_rows) {
            add_unit(params, segment, row, std::min(row + unit_rows, segment.rows), pass);
            if (pass.count == capacity) {
                run_pass(params, pass, *stream.threads);
                pass = {};
            }
        }
    }
    if (pass.count > 0) run_pass(params, pass, *stream.threads);
}

}  // namespace kd
#endif
