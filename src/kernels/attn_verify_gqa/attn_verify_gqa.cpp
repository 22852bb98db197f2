#include "kernels/attn_verify_gqa/attn_verify_gqa.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/attn_verify_gqa/attn_verify_gqa_path.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_unit.h"
#include "kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attn_verify_gqa/attn_verify_gqa.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_block_inl.h"

HWY_BEFORE_NAMESPACE();
namespace kd::HWY_NAMESPACE {

/// Where one task reads and writes.
struct Place {
    const AttnVerifyGqaParams& params;
    const AttnUnit& unit;
    int32_t kv_head;
    int32_t block;

    const std::byte* k_row(int64_t slot) const { return head_of(layer().k, slot); }
    const std::byte* v_row(int64_t slot) const { return head_of(layer().v, slot); }

    const float* query(int32_t row, int32_t head) const {
        return params.q + (int64_t{unit.segment->first_row} + row) * params.q_stride +
               int64_t{head} * params.head_dim;
    }
    float* record(int32_t row, int32_t head) const {
        return unit.record(row, head, block, params.heads, record_floats(params.head_dim));
    }

  private:
    KvLayer layer() const { return params.kv.layer(params.layer); }
    const std::byte* head_of(const std::byte* rows, int64_t slot) const {
        KD_CHECK(slot >= 0 && slot < params.kv.slots, "slot {} of {}", slot, params.kv.slots);
        return rows + slot * params.kv.row_bytes() +
               bytes_of(params.kv.type, int64_t{kv_head} * params.head_dim);
    }
};

/// The block's keys that all rows of the unit share: those of the context, and for a causal chunk
/// its own rows up to the unit's last (later ones are masked per row by the count of valid keys).
HWY_INLINE int32_t load_shared(const Place& at, KvTile& tile) {
    const AttnSegment& segment = *at.unit.segment;
    const int32_t dim = at.params.head_dim;
    const int64_t context = static_cast<int64_t>(segment.context.size());
    const int64_t first = int64_t{at.block} * kBlockKeys;
    const int64_t end = context + (segment.ancestors.empty() ? at.unit.end_row : 0);
    const auto keys = static_cast<int32_t>(std::clamp<int64_t>(end - first, 0, kBlockKeys));
    // Columns without a key are masked later; they only have to hold something.
    if (keys < kBlockKeys) std::fill_n(tile.k, dim * kBlockKeys, 0.0f);
    HWY_ALIGN float rows[4 * kMaxDim];
    for (int32_t j = 0; j < keys; ++j) {
        const int64_t position = first + j;
        const int64_t slot = position < context
                                 ? segment.context[static_cast<size_t>(position)]
                                 : segment.slots[static_cast<size_t>(position - context)];
        load_row(at.params.kv.type, at.v_row(slot), dim, tile.v + j * padded_dim(dim));
        load_row(at.params.kv.type, at.k_row(slot), dim, rows + (j % 4) * kMaxDim);
        if (j % 4 == 3) put_4_keys(rows, kMaxDim, dim, j - 3, tile.k);
    }
    for (int32_t j = keys / 4 * 4; j < keys; ++j) {
        put_key(rows + (j % 4) * kMaxDim, dim, j, tile.k);
    }
    return keys;
}

/// The tree row's own keys of this block, behind those of the context: at their path positions.
HWY_INLINE void load_path(const Place& at, int32_t row, KvTile& tile) {
    const AttnSegment& segment = *at.unit.segment;
    const int32_t dim = at.params.head_dim;
    const int64_t start =
        static_cast<int64_t>(segment.context.size()) - int64_t{at.block} * kBlockKeys;
    HWY_ALIGN float key[kMaxDim];
    for_each_path_node(segment, row, [&](int32_t i, int32_t node) HWY_ATTR {
        const int64_t lane = start + i;
        if (lane < 0 || lane >= kBlockKeys) return;
        const int64_t slot = segment.slots[static_cast<size_t>(node)];
        load_row(at.params.kv.type, at.k_row(slot), dim, key);
        put_key(key, dim, static_cast<int32_t>(lane), tile.k);
        load_row(at.params.kv.type, at.v_row(slot), dim, tile.v + lane * padded_dim(dim));
    });
}

/// Queries of rows [begin, end), all heads that share the K/V head. Only queries with equally many
/// keys share a pass, so that no key is touched for a row that does not see it.
HWY_INLINE void attend_rows(const Place& at, const KvTile& tile, int32_t begin, int32_t end) {
    const AttnVerifyGqaParams& params = at.params;
    const int32_t group = params.heads / params.kv_heads;
    const float* q[kQueriesPerPass];
    float* records[kQueriesPerPass];
    int32_t queries = 0;
    int32_t seen = 0;
    auto flush = [&]() HWY_ATTR {
        if (queries > 0) {
            attend_some(queries, tile, params.head_dim, seen, params.scale, q, records);
        }
        queries = 0;
    };
    for (int32_t row = begin; row < end; ++row) {
        const int64_t keys = path_keys(*at.unit.segment, row) - int64_t{at.block} * kBlockKeys;
        const auto valid = static_cast<int32_t>(std::clamp<int64_t>(keys, 0, kBlockKeys));
        if (valid == 0) continue;
        if (valid != seen) flush();
        seen = valid;
        for (int32_t h = 0; h < group; ++h) {
            q[queries] = at.query(row, at.kv_head * group + h);
            records[queries] = at.record(row, at.kv_head * group + h);
            if (++queries == kQueriesPerPass) flush();
        }
    }
    flush();
}

void attend_block(const AttnVerifyGqaParams& params, const AttnUnit& unit, int32_t kv_head,
                  int32_t block) {
    const Place at{params, unit, kv_head, block};
    KvTile tile;
    const int32_t shared = load_shared(at, tile);
    if (shared == kBlockKeys || unit.segment->ancestors.empty()) {
        attend_rows(at, tile, unit.first_row, unit.end_row);
        return;
    }
    for (int32_t row = unit.first_row; row < unit.end_row; ++row) {
        load_path(at, row, tile);
        attend_rows(at, tile, row, row + 1);
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
    HWY_ALIGN float sums[kMaxDim] = {};
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

// Rows that share the keys of a task: enough to spread the unpacking of K and V over, few enough to
// leave tasks for every thread.
constexpr int32_t kUnitRows = 8;
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
    return int64_t{units_at_once(threads)} * kUnitRows * heads * blocks *
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
    Pass pass;
    for (const AttnSegment& segment : params.segments) {
        for (int32_t row = 0; row < segment.rows; row += kUnitRows) {
            add_unit(params, segment, row, std::min(row + kUnitRows, segment.rows), pass);
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
