#include <algorithm>
#include <cmath>

#include "attn_verify/data.h"
#include "kv_layout/measure.h"

namespace kd::kv_layout {

namespace {

using bench::Case;
using bench::check;

constexpr uint16_t kUnwritten = 0xffff;  // a NaN

void call(kdt_status status, const char* what) {
    if (status == KDT_OK) return;
    throw std::runtime_error(std::string(what) + ": " + kdt_last_error());
}

kdt_attn_shape shape_of(const Case& c) {
    kdt_attn_shape shape{};
    shape.struct_bytes = sizeof(shape);
    shape.kind = c.kind;
    shape.heads = c.heads;
    shape.kv_heads = c.kv_heads;
    shape.head_dim = c.head_dim;
    shape.kv_format = c.kv_format;
    shape.mode = KDT_ATTN_FAST;
    shape.path = KDT_PATH_AUTO;
    return shape;
}

float scale_of(const Case& c) {
    // MLA: a query head of the model has 128 + 64 values before absorption.
    return 1 / std::sqrt(c.kind == KDT_ATTN_MLA ? 192.0f : static_cast<float>(c.head_dim));
}

/// Ancestor words of the binary tree in which node n hangs on node (n - 1) / 2.
std::vector<uint64_t> ancestors_of(const Case& c) {
    std::vector<uint64_t> words;
    for (int32_t request = 0; request < c.batch; ++request) {
        const size_t first = words.size();
        for (size_t node = 0; node < static_cast<size_t>(c.nodes); ++node) {
            uint64_t own[2] = {};
            if (node > 0) {
                own[0] = words[first + (node - 1) / 2 * 2];
                own[1] = words[first + (node - 1) / 2 * 2 + 1];
            }
            own[node / 64] |= uint64_t{1} << (node % 64);
            words.insert(words.end(), {own[0], own[1]});
        }
    }
    return words;
}

/// [requests, stride] page ids.
std::vector<int32_t> pages_of(const Sequences& sequences, const Layout& layout, int64_t stride) {
    std::vector<int32_t> pages(static_cast<size_t>(stride * sequences.requests()));
    size_t first = 0;
    for (size_t request = 0; request < sequences.tokens.size(); ++request) {
        const auto tokens = static_cast<size_t>(sequences.tokens[request]);
        const auto page_size = static_cast<size_t>(layout.page_size);
        for (size_t position = 0; position < tokens; position += page_size) {
            const auto row = static_cast<size_t>(sequences.row[first + position]);
            pages[request * static_cast<size_t>(stride) + position / page_size] =
                layout.slot[row] / layout.page_size;
        }
        first += tokens;
    }
    return pages;
}

}  // namespace

/// Where the data of a case lies in the memory block.
struct Bench::AttentionData {
    int32_t pools = 0;
    int32_t pool_slots = 0;
    int32_t rows = 0;        // of a pool: the context's, then the tree tails'
    size_t rows_bytes = 0;   // of one cache of one pool, row after row
    size_t cache_bytes = 0;  // the same rows in their slots
    size_t q_bytes = 0, out_bytes = 0;
    std::byte* origin = nullptr;  // [pools, caches] rows in order
    std::byte* caches = nullptr;  // [pools, caches]; GQA: K, then V
    std::byte* q = nullptr;       // [pools]
    uint16_t* out = nullptr;      // [pools] bf16
    int32_t* slots = nullptr;     // [rows]
    int32_t* context = nullptr;
    int32_t* node_start = nullptr;
    int32_t* pages = nullptr;
    uint64_t* ancestors = nullptr;
    std::byte* workspace = nullptr;
    size_t workspace_bytes = 0;
    size_t bytes = 0;

    const int32_t* tail_slots(const Sequences& sequences) const { return slots + sequences.rows; }
};

Bench::AttentionData Bench::attention_data(const Case& c, const Sequences& sequences,
                                           const Layout& largest, std::byte* base) const {
    AttentionData at;
    Parts parts{.base = base};
    const auto slot_bytes = static_cast<size_t>(c.slot_bytes());
    const auto batch = static_cast<size_t>(c.batch);
    const size_t nodes = batch * static_cast<size_t>(c.nodes);
    at.pools = pools_for(double(sequences.rows) * double(c.slot_bytes()) * c.caches());
    at.pool_slots = largest.pool_slots;
    at.rows = sequences.rows + static_cast<int32_t>(nodes);
    at.rows_bytes = (static_cast<size_t>(at.rows) * slot_bytes + 255) / 256 * 256;
    // The tree tails lie behind the pool, as in a session's scratch run.
    at.cache_bytes = ((static_cast<size_t>(at.pool_slots) + nodes) * slot_bytes + 255) / 256 * 256;
    const auto heads = static_cast<size_t>(c.rows());
    at.q_bytes = (heads * static_cast<size_t>(c.head_dim) * 2 + 255) / 256 * 256;
    at.out_bytes = (heads * static_cast<size_t>(c.value_dim()) * 2 + 255) / 256 * 256;
    const size_t caches = static_cast<size_t>(at.pools) * static_cast<size_t>(c.caches());
    at.origin = parts.take<std::byte>(caches * at.rows_bytes);
    at.caches = parts.take<std::byte>(caches * at.cache_bytes);
    at.q = parts.take<std::byte>(static_cast<size_t>(at.pools) * at.q_bytes);
    at.out = parts.take<uint16_t>(static_cast<size_t>(at.pools) * at.out_bytes / 2);
    at.slots = parts.take<int32_t>(static_cast<size_t>(at.rows));
    at.context = parts.take<int32_t>(batch);
    at.node_start = parts.take<int32_t>(batch + 1);
    at.pages = parts.take<int32_t>(batch * static_cast<size_t>(std::max(c.context, 1)));
    at.ancestors = parts.take<uint64_t>(2 * nodes);
    const kdt_attn_shape shape = shape_of(c);
    call(kdt_attn_workspace_bytes(&shape, c.batch, c.batch * c.nodes, c.context,
                                  &at.workspace_bytes),
         "kdt_attn_workspace_bytes");
    at.workspace = parts.take<std::byte>(at.workspace_bytes);
    at.bytes = parts.bytes;
    return at;
}

void Bench::fill(const Case& c, const Sequences& sequences, const AttentionData& at) {
    for (int32_t part = 0; part < at.pools * c.caches(); ++part) {
        const bench::CacheBuffer origin{
            .base = at.origin + static_cast<size_t>(part) * at.rows_bytes,
            .slots = at.rows,
            .values = c.kind == KDT_ATTN_MLA ? bench::kMlaDim : c.kv_heads * c.head_dim,
            .format = c.kv_format};
        bench::fill_cache(origin, static_cast<uint32_t>(part), stream_.get());
    }
    bench::fill_queries(at.q, static_cast<int64_t>(at.q_bytes / 2) * at.pools, 77, stream_.get());
    std::vector<int32_t> node_start;
    for (int32_t r = 0; r <= c.batch; ++r) node_start.push_back(r * c.nodes);
    upload(at.context, sequences.tokens);
    upload(at.node_start, node_start);
    upload(at.ancestors, ancestors_of(c));
    stream_.wait();
}

kdt_attn_batch Bench::place(const Case& c, const Sequences& sequences, const Layout& layout,
                            const AttentionData& at) {
    std::vector<int32_t> slots = layout.slot;
    for (int32_t i = 0; i < c.batch * c.nodes; ++i) slots.push_back(at.pool_slots + i);
    upload(at.slots, slots);
    const int64_t stride =
        std::max((int64_t{c.context} + layout.page_size - 1) / layout.page_size, int64_t{1});
    upload(at.pages, pages_of(sequences, layout, stride));
    for (size_t part = 0; part < static_cast<size_t>(at.pools * c.caches()); ++part) {
        place_rows(at.origin + part * at.rows_bytes, at.caches + part * at.cache_bytes, at.slots,
                   at.rows, static_cast<int32_t>(c.slot_bytes()), stream_.get());
    }
    check(
        cudaMemsetAsync(at.out, 0xff, at.out_bytes * static_cast<size_t>(at.pools), stream_.get()),
        "NaN into the output");
    stream_.wait();

    kdt_attn_batch batch{};
    batch.struct_bytes = sizeof(batch);
    batch.requests = c.batch;
    batch.max_nodes = c.batch * c.nodes;
    batch.max_context = c.context;
    batch.page_size = layout.page_size;
    batch.context = at.context;
    batch.node_start = at.node_start;
    batch.tail_slots = at.tail_slots(sequences);
    batch.ancestors = at.ancestors;
    batch.pages = at.pages;
    batch.pages_stride = stride;
    return batch;
}

void Bench::verify(const Case& c, const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                   const AttentionData& at, int32_t pool) {
    const auto index = static_cast<size_t>(pool);
    std::byte* const cache = at.caches + index * static_cast<size_t>(c.caches()) * at.cache_bytes;
    std::byte* const q = at.q + index * at.q_bytes;
    uint16_t* const out = at.out + index * at.out_bytes / 2;
    const int64_t node_values = int64_t{c.heads} * c.head_dim;
    if (c.kind == KDT_ATTN_MLA) {
        kdt_attn_mla_tensors tensors{};
        tensors.struct_bytes = sizeof(tensors);
        tensors.scale = scale_of(c);
        tensors.kv_scale = bench::kFp8Scale;
        tensors.q_latent = q;
        tensors.q_rope = q + bench::kMlaLatent * 2;
        tensors.q_latent_node_stride = tensors.q_rope_node_stride = node_values;
        tensors.q_latent_head_stride = tensors.q_rope_head_stride = c.head_dim;
        tensors.kv = cache;
        tensors.kv_slot_stride = c.kv_format == KDT_KV_FP8_MLA656 ? 656 : bench::kMlaDim;
        tensors.out = out;
        call(kdt_attn_verify_mla(&shape, &batch, &tensors, at.workspace, at.workspace_bytes,
                                 stream_.get()),
             "kdt_attn_verify_mla");
        return;
    }
    kdt_attn_gqa_tensors tensors{};
    tensors.struct_bytes = sizeof(tensors);
    tensors.scale = scale_of(c);
    tensors.k_scale = tensors.v_scale = bench::kFp8Scale;
    tensors.q = q;
    tensors.q_node_stride = node_values;
    tensors.q_head_stride = c.head_dim;
    tensors.k = cache;
    tensors.v = cache + at.cache_bytes;
    tensors.kv_slot_stride = int64_t{c.kv_heads} * c.head_dim;
    tensors.kv_head_stride = c.head_dim;
    tensors.out = out;
    call(kdt_attn_verify_gqa(&shape, &batch, &tensors, at.workspace, at.workspace_bytes,
                             stream_.get()),
         "kdt_attn_verify_gqa");
}

std::vector<Row> Bench::attention(const Case& c, const Sequences& sequences,
                                  const std::vector<Layout>& layouts) {
    const size_t bytes = attention_data(c, sequences, layouts.front(), nullptr).bytes;
    const AttentionData at = attention_data(c, sequences, layouts.front(), memory(bytes));
    fill(c, sequences, at);
    const kdt_attn_shape shape = shape_of(c);
    std::vector<Row> result;
    std::vector<uint16_t> expected;
    for (const Layout& layout : layouts) {
        const kdt_attn_batch batch = place(c, sequences, layout, at);
        call(kdt_attn_plan(&shape, &batch, at.workspace, at.workspace_bytes, stream_.get()),
             "kdt_attn_plan");
        Row row{.part = "attention",
                .op = bench::op_name(c),
                .kv_dtype = bench::format_name(c.kv_format),
                .row_bytes = static_cast<int32_t>(c.slot_bytes()),
                .buffers = c.caches(),
                .batch = c.batch,
                .context = c.context,
                .heads = c.heads,
                .kv_heads = c.kv_heads,
                .nodes = c.nodes,
                .tokens = static_cast<int64_t>(sequences.row.size()),
                .pools = at.pools,
                .bytes = double(sequences.row.size()) * double(c.slot_bytes()) * c.caches()};
        set_timing(row, time(at.pools, [&](int32_t pool) { verify(c, shape, batch, at, pool); }));
        const std::vector<uint16_t> out =
            download(at.out, at.out_bytes / 2 * static_cast<size_t>(at.pools));
        if (expected.empty()) expected = out;
        // kUnwritten: no kernel has been there.
        row.same_output = out == expected && std::ranges::find(out, kUnwritten) == out.end();
        describe(sequences, layout, row);
        result.push_back(row);
    }
    compare_with_whole(result);
    return result;
}

}  // namespace kd::kv_layout
