#include "kernels/attn_verify_gqa/attn_verify_gqa.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/attn_verify_gqa/attn_verify_gqa_path.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_unit.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attn_verify_gqa/attn_verify_gqa.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_block_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// Where one task reads and writes. Row addresses are worked out once: a division for each key
/// would take longer than its products.
struct Place {
    Place(const AttnVerifyGqaParams& p, const AttnUnit& u, int32_t kv, int32_t b)
        : params(p),
          unit(u),
          kv_head(kv),
          block(b),
          row_bytes(p.kv.row_bytes()),
          head_bytes(bytes_of(p.kv.type, p.head_dim)) {
        const KvLayer layer = p.kv.layer(p.layer);
        k = layer.k + kv * head_bytes;
        v = layer.v + kv * head_bytes;
    }

    int64_t offset_of(int64_t slot) const {
        KD_CHECK(slot >= 0 && slot < params.kv.slots, "slot {} of {}", slot, params.kv.slots);
        return slot * row_bytes;
    }
    const float* query(int32_t row, int32_t head) const {
        return params.q + (int64_t{unit.segment->first_row} + row) * params.q_stride +
               int64_t{head} * params.head_dim;
    }
    float* record(int32_t row, int32_t head) const {
        return unit.record(row, head, block, params.heads, record_floats(params.head_dim));
    }

    const AttnVerifyGqaParams& params;
    const AttnUnit& unit;
    const int32_t kv_head;
    const int32_t block;
    const int64_t row_bytes;   // of all heads
    const int64_t head_bytes;  // of one
    const std::byte* k;        // this head of slot 0
    const std::byte* v;
};

/// Byte offsets of the block's keys that all rows of the unit share: those of the context, and
/// without ancestors the segment's own rows as far as the unit's last one attends (what an earlier
/// row does not see is masked by its count of valid keys). Returns their number.
HWY_INLINE int32_t shared_offsets(const Place& at, int64_t* offsets) {
    const AttnSegment& segment = *at.unit.segment;
    const int64_t context = static_cast<int64_t>(segment.context.size());
    const int64_t first = int64_t{at.block} * kBlockKeys;
    const int64_t end =
        segment.ancestors.empty() ? path_keys(segment, at.unit.end_row - 1) : context;
    const auto keys = static_cast<int32_t>(std::clamp<int64_t>(end - first, 0, kBlockKeys));
    for (int32_t j = 0; j < keys; ++j) {
        const int64_t position = first + j;
        offsets[j] = at.offset_of(position < context
                                      ? segment.context[static_cast<size_t>(position)]
                                      : segment.slots[static_cast<size_t>(position - context)]);
    }
    return keys;
}

/// Slots may lie anywhere, so the hardware does not foresee the next one.
HWY_INLINE void prefetch_row(const std::byte* row, int64_t bytes) {
    for (int64_t byte = 0; byte < bytes; byte += 64) hwy::Prefetch(row + byte);
}
inline constexpr int32_t kPrefetchKeys = 16;

/// `keys` K rows as columns of the tile.
HWY_INLINE void load_keys(const Place& at, const int64_t* offsets, int32_t keys, float* tile) {
    const int32_t dim = at.params.head_dim;
    // Columns without a key are masked later; they only have to hold something.
    if (keys < kBlockKeys) std::fill_n(tile, dim * kBlockKeys, 0.0f);
    HWY_ALIGN float rows[4 * kMaxHeadDim];
    for (int32_t j = 0; j < keys; ++j) {
        prefetch_row(at.k + offsets[std::min(j + kPrefetchKeys, keys - 1)], at.head_bytes);
        load_row(at.params.kv.type, at.k + offsets[j], dim, rows + (j % 4) * kMaxHeadDim);
        if (j % 4 == 3) put_4_keys(rows, kMaxHeadDim, dim, j - 3, tile);
    }
    for (int32_t j = keys / 4 * 4; j < keys; ++j)
        put_key(rows + (j % 4) * kMaxHeadDim, dim, j, tile);
}

/// `keys` V rows as rows of the tile.
HWY_INLINE void load_values(const Place& at, const int64_t* offsets, int32_t keys, float* tile) {
    const int32_t dim = at.params.head_dim;
    for (int32_t j = 0; j < keys; ++j) {
        prefetch_row(at.v + offsets[std::min(j + kPrefetchKeys, keys - 1)], at.head_bytes);
        load_row(at.params.kv.type, at.v + offsets[j], dim, tile + j * padded_dim(dim));
    }
}

/// Calls put(lane, byte offset) for the tree row's own keys of this block: they stand behind those
/// of the context, at their path positions.
template <class Put>
HWY_INLINE void for_each_path_key(const Place& at, int32_t row, Put&& put) {
    const AttnSegment& segment = *at.unit.segment;
    const int64_t start =
        static_cast<int64_t>(segment.context.size()) - int64_t{at.block} * kBlockKeys;
    for_each_path_node(segment, row, [&](int32_t i, int32_t node) HWY_ATTR {
        const int64_t lane = start + i;
        if (lane < 0 || lane >= kBlockKeys) return;
        put(static_cast<int32_t>(lane), at.offset_of(segment.slots[static_cast<size_t>(node)]));
    });
}

/// Up to kQueriesPerPass queries that see equally many keys, so that no key is touched for a row
/// that does not see it. Query i of a unit: row i / group, head i % group of those that share the
/// K/V head.
struct Run {
    int32_t first_query = 0;
    int32_t queries = 0;
    int32_t valid = 0;  // keys
    const float* q[kQueriesPerPass];
    float* records[kQueriesPerPass];
};

/// Calls visit(run) for the queries of rows [begin, end) that see any key of the block.
template <class Visit>
HWY_INLINE void for_each_run(const Place& at, int32_t begin, int32_t end, Visit&& visit) {
    const int32_t group = at.params.heads / at.params.kv_heads;
    Run run;
    auto flush = [&]() HWY_ATTR {
        if (run.queries > 0) visit(run);
        run.queries = 0;
    };
    for (int32_t row = begin; row < end; ++row) {
        const int64_t keys = path_keys(*at.unit.segment, row) - int64_t{at.block} * kBlockKeys;
        const auto valid = static_cast<int32_t>(std::clamp<int64_t>(keys, 0, kBlockKeys));
        if (valid != run.valid) flush();
        run.valid = valid;
        for (int32_t h = 0; valid > 0 && h < group; ++h) {
            if (run.queries == 0) run.first_query = (row - at.unit.first_row) * group + h;
            run.q[run.queries] = at.query(row, at.kv_head * group + h);
            run.records[run.queries] = at.record(row, at.kv_head * group + h);
            if (++run.queries == kQueriesPerPass) flush();
        }
    }
    flush();
}

HWY_INLINE void score_rows(const Place& at, int32_t begin, int32_t end, const float* keys,
                           float (*weights)[kBlockKeys]) {
    const int32_t dim = at.params.head_dim;
    const float scale = at.params.scale;
    for_each_run(at, begin, end, [&](const Run& run) HWY_ATTR {
        float(*p)[kBlockKeys] = weights + run.first_query;
        switch (run.queries) {
            case 1:
                return score_queries<1>(run.q, keys, dim, run.valid, scale, p, run.records);
            case 2:
                return score_queries<2>(run.q, keys, dim, run.valid, scale, p, run.records);
            case 3:
                return score_queries<3>(run.q, keys, dim, run.valid, scale, p, run.records);
            default:
                return score_queries<4>(run.q, keys, dim, run.valid, scale, p, run.records);
        }
    });
}

HWY_INLINE void weigh_rows(const Place& at, int32_t begin, int32_t end, const float* values,
                           const float (*weights)[kBlockKeys]) {
    const int32_t dim = at.params.head_dim;
    for_each_run(at, begin, end, [&](const Run& run) HWY_ATTR {
        const float(*p)[kBlockKeys] = weights + run.first_query;
        switch (run.queries) {
            case 1:
                return weigh_queries<1>(p, values, dim, run.valid, run.records);
            case 2:
                return weigh_queries<2>(p, values, dim, run.valid, run.records);
            case 3:
                return weigh_queries<3>(p, values, dim, run.valid, run.records);
            default:
                return weigh_queries<4>(p, values, dim, run.valid, run.records);
        }
    });
}

void attend_block(const AttnVerifyGqaParams& params, const AttnUnit& unit, int32_t kv_head,
                  int32_t block) {
    const Place at(params, unit, kv_head, block);
    const DType type = params.kv.type;
    const int32_t dim = params.head_dim;
    HWY_ALIGN float tile[kTileFloats];
    HWY_ALIGN float weights[kAttnUnitQueries][kBlockKeys];
    HWY_ALIGN float key[kMaxHeadDim];
    int64_t offsets[kBlockKeys];
    const int32_t shared = shared_offsets(at, offsets);
    const bool same_keys = shared == kBlockKeys || unit.segment->ancestors.empty();

    load_keys(at, offsets, shared, tile);
    if (same_keys) score_rows(at, unit.first_row, unit.end_row, tile, weights);
    for (int32_t row = unit.first_row; !same_keys && row < unit.end_row; ++row) {
        for_each_path_key(at, row, [&](int32_t lane, int64_t offset) HWY_ATTR {
            load_row(type, at.k + offset, dim, key);
            put_key(key, dim, lane, tile);
        });
        score_rows(at, row, row + 1, tile, weights);
    }

    load_values(at, offsets, shared, tile);
    if (same_keys) weigh_rows(at, unit.first_row, unit.end_row, tile, weights);
    for (int32_t row = unit.first_row; !same_keys && row < unit.end_row; ++row) {
        for_each_path_key(at, row, [&](int32_t lane, int64_t offset) HWY_ATTR {
            load_row(type, at.v + offset, dim, tile + lane * padded_dim(dim));
        });
        weigh_rows(at, row, row + 1, tile, weights);
    }
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
    const float* records = unit.record(row, head, 0, params.heads, stride);
    float largest = records[padded];
    for (int32_t b = 1; b < blocks; ++b) {
        largest = std::max(largest, records[b * stride + padded]);
    }
    HWY_ALIGN float sums[kMaxHeadDim] = {};
    float total = 0;
    for (int32_t b = 0; b < blocks; ++b) {
        const float* record = records + b * stride;
        const F32Vec weight = exp_of(d, hn::Set(d, record[padded] - largest));
        total += hn::GetLane(weight) * record[padded + 1];
        for (int32_t i = 0; i < padded; i += kLane) {
            const F32Vec sum = hn::Load(d, sums + i);
            hn::Store(hn::MulAdd(weight, hn::LoadU(d, record + i), sum), d, sums + i);
        }
    }
    float* out =
        params.out + ((int64_t{unit.segment->first_row} + row) * params.heads + head) * dim;
    for (int32_t i = 0; i < dim; ++i) out[i] = sums[i] / total;
}

}  // namespace kd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kd {

HWY_EXPORT(attend_block);
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

void run_pass(const AttnVerifyGqaParams& params, const Pass& pass, ThreadPool& threads) {
    auto unit_of = [&](int64_t index, int64_t AttnUnit::*first) {
        int u = pass.count - 1;
        while (pass.units[u].*first > index) --u;
        return u;
    };
    threads.parallel_for(pass.tasks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            const AttnUnit& unit = pass.units[unit_of(task, &AttnUnit::first_task)];
            const int64_t index = task - unit.first_task;
            HWY_DYNAMIC_DISPATCH(attend_block)
            (params, unit, static_cast<int32_t>(index % params.kv_heads),
             static_cast<int32_t>(index / params.kv_heads));
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
