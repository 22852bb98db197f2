#include "attn_verify/measure.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "attn_verify/data.h"
#include "kernels/attn_plan/attn_plan.h"

namespace kd::bench {

namespace {

constexpr int32_t kLeastPools = 4;
constexpr int32_t kMostPools = 256;
constexpr size_t kLeastBytes = size_t{4} << 30;
constexpr double kGraphUs = 1500;  // of the floor's time: long against the start of a graph
constexpr int32_t kPlansPerGraph = 20;

void call(kdt_status status, const char* what) {
    if (status == KDT_OK) return;
    const std::string message = std::string(what) + ": " + kdt_last_error();
    if (status == KDT_CUDA_ERROR) throw std::runtime_error(message);
    throw Refused(message);
}

/// SplitMix64: the host's random numbers, the same on every run.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    int32_t below(int64_t bound) {
        state_ += 0x9e3779b97f4a7c15u;
        uint64_t x = state_;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        return static_cast<int32_t>(x % static_cast<uint64_t>(bound));
    }

  private:
    uint64_t state_;
};

/// The step's tables as the host makes them.
struct Tables {
    std::vector<int32_t> context, node_start, tail_slots, depth, pages;
    std::vector<uint64_t> ancestors;
};

std::vector<int32_t> page_order(const Case& c, Random& random) {
    std::vector<int32_t> pages(static_cast<size_t>(c.total_pages()));
    std::iota(pages.begin(), pages.end(), 0);
    if (!c.shuffled) return pages;
    for (size_t i = pages.size(); i > 1; --i) {
        std::swap(pages[i - 1], pages[static_cast<size_t>(random.below(int64_t(i)))]);
    }
    return pages;
}

void add_tree(const Case& c, Random& random, Tables& tables) {
    const size_t first = tables.depth.size();
    for (int32_t node = 0; node < c.nodes; ++node) {
        int32_t depth = 0;
        uint64_t words[2] = {};
        if (node > 0) {
            size_t parent = 0;
            do {
                parent = first + static_cast<size_t>(random.below(node));
            } while (tables.depth[parent] >= kMaxDepth);
            depth = tables.depth[parent] + 1;
            words[0] = tables.ancestors[2 * parent];
            words[1] = tables.ancestors[2 * parent + 1];
        }
        words[node / 64] |= uint64_t{1} << (node % 64);
        tables.depth.push_back(depth);
        tables.ancestors.insert(tables.ancestors.end(), {words[0], words[1]});
    }
}

Tables make_tables(const Case& c) {
    Random random(0x5eed + static_cast<uint64_t>(c.context));
    const std::vector<int32_t> order = page_order(c, random);
    const auto prefix = static_cast<size_t>(c.batch * c.pages_per_request());
    Tables tables;
    tables.context.assign(static_cast<size_t>(c.batch), c.context);
    tables.pages.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(prefix));
    for (int32_t r = 0; r <= c.batch; ++r) tables.node_start.push_back(r * c.nodes);
    for (int32_t r = 0; r < c.batch; ++r) add_tree(c, random, tables);
    for (int32_t i = 0; i < c.batch * c.nodes; ++i) {
        const int32_t page = order[prefix + static_cast<size_t>(i / c.page_size)];
        tables.tail_slots.push_back(page * c.page_size + i % c.page_size);
    }
    return tables;
}

template <class T>
void upload(T* to, const std::vector<T>& from) {
    check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
}

float scale_of(const Case& c) {
    // MLA: a query head of the model has 128 + 64 values before absorption.
    return 1 / std::sqrt(c.kind == KDT_ATTN_MLA ? 192.0f : static_cast<float>(c.head_dim));
}

}  // namespace

/// Where a case's data lies in the memory block; all parts 256-byte aligned.
struct Measurement::Layout {
    int32_t pools = 0;
    size_t cache_bytes = 0;  // one cache of one pool; GQA: K, then V
    size_t q_bytes = 0, out_bytes = 0;
    std::byte* caches = nullptr;  // [pools, caches]
    std::byte* q = nullptr;       // [pools]
    std::byte* out = nullptr;     // [pools]
    int32_t* context = nullptr;
    int32_t* node_start = nullptr;
    int32_t* tail_slots = nullptr;
    int32_t* depth = nullptr;
    int32_t* pages = nullptr;
    uint64_t* ancestors = nullptr;
    std::byte* workspace = nullptr;
    size_t workspace_bytes = 0;
    float* scores = nullptr;    // with --check
    float* expected = nullptr;  // with --check
    size_t bytes = 0;

    std::byte* cache(const Case& c, int32_t pool, int32_t which) const {
        return caches + (static_cast<size_t>(pool) * c.caches() + which) * cache_bytes;
    }
};

Measurement::Measurement(const Options& options) : options_(options) {
    int device = 0;
    int l2 = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "size of the L2");
    l2_bytes_ = static_cast<size_t>(l2);
    size_t bytes = kLeastBytes;
    for (const Case& c : options_.cases) {
        try {
            bytes = std::max(bytes, layout(c, nullptr).bytes);
        } catch (const Refused&) {  // run() will say so
        }
    }
    memory_.emplace(bytes);
    // Random bits, so that the read ceiling is not one of zeros.
    fill_queries(memory_->base(), static_cast<int64_t>(bytes / 16 * 8), 1, stream_.get());
    stream_.wait();
}

kdt_attn_shape Measurement::shape_of(const Case& c) const {
    kdt_attn_shape shape{};
    shape.struct_bytes = sizeof(shape);
    shape.kind = c.kind;
    shape.heads = c.heads;
    shape.kv_heads = c.kv_heads;
    shape.head_dim = c.head_dim;
    shape.kv_format = c.kv_format;
    shape.mode = options_.mode;
    shape.path = options_.path;
    shape.max_depth = options_.mode == KDT_ATTN_DETERMINISTIC ? kMaxDepth : 0;
    shape.splits = c.splits;
    return shape;
}

int32_t Measurement::pools_of(const Case& c) const {
    const double pool = double(c.slots()) * double(c.slot_bytes()) * c.caches();
    const double wanted = std::floor(3.0 * double(l2_bytes_) / pool) + 1;
    return static_cast<int32_t>(std::clamp(wanted, double(kLeastPools), double(kMostPools)));
}

Measurement::Layout Measurement::layout(const Case& c, std::byte* base) const {
    Layout at;
    auto take = [&]<class T>(T*& part, size_t count) {
        part = base ? reinterpret_cast<T*>(base + at.bytes) : nullptr;
        at.bytes += (count * sizeof(T) + 255) / 256 * 256;
    };
    const auto rows = static_cast<size_t>(c.rows());
    const auto nodes = static_cast<size_t>(c.batch * c.nodes);
    const auto batch = static_cast<size_t>(c.batch);
    at.pools = pools_of(c);
    const auto pools = static_cast<size_t>(at.pools);
    at.cache_bytes = (static_cast<size_t>(c.slots() * c.slot_bytes()) + 255) / 256 * 256;
    at.q_bytes = (rows * static_cast<size_t>(c.head_dim) * 2 + 255) / 256 * 256;
    at.out_bytes = (rows * static_cast<size_t>(c.value_dim()) * 2 + 255) / 256 * 256;
    take(at.caches, pools * static_cast<size_t>(c.caches()) * at.cache_bytes);
    take(at.q, pools * at.q_bytes);
    take(at.out, pools * at.out_bytes);
    take(at.context, batch);
    take(at.node_start, batch + 1);
    take(at.tail_slots, nodes);
    take(at.depth, nodes);
    take(at.pages, std::max<size_t>(batch * static_cast<size_t>(c.pages_per_request()), 1));
    take(at.ancestors, 2 * nodes);
    const kdt_attn_shape shape = shape_of(c);
    call(kdt_attn_workspace_bytes(&shape, c.batch, c.batch * c.nodes, c.context,
                                  &at.workspace_bytes),
         "kdt_attn_workspace_bytes");
    take(at.workspace, at.workspace_bytes);
    if (options_.check) {
        take(at.scores, rows * (static_cast<size_t>(c.context) + 128));
        take(at.expected, rows * static_cast<size_t>(c.value_dim()));
    }
    return at;
}

kdt_attn_batch Measurement::fill(const Case& c, const Layout& at) {
    const Tables tables = make_tables(c);
    upload(at.context, tables.context);
    upload(at.node_start, tables.node_start);
    upload(at.tail_slots, tables.tail_slots);
    upload(at.depth, tables.depth);
    upload(at.pages, tables.pages);
    upload(at.ancestors, tables.ancestors);
    const int32_t values = c.kind == KDT_ATTN_MLA ? kMlaDim : c.kv_heads * c.head_dim;
    for (int32_t pool = 0; pool < at.pools; ++pool) {
        for (int32_t which = 0; which < c.caches(); ++which) {
            const CacheBuffer cache{.base = at.cache(c, pool, which),
                                    .slots = c.slots(),
                                    .values = values,
                                    .format = c.kv_format};
            const auto seed = static_cast<uint32_t>(2 * pool + which);
            fill_cache(cache, seed, stream_.get());
            fill_rows(cache, at.tail_slots, c.batch * c.nodes, seed + 1000, stream_.get());
        }
    }
    fill_queries(at.q, static_cast<int64_t>(at.q_bytes / 2) * at.pools, 77, stream_.get());
    stream_.wait();

    kdt_attn_batch batch{};
    batch.struct_bytes = sizeof(batch);
    batch.requests = c.batch;
    batch.max_nodes = c.batch * c.nodes;
    batch.max_context = c.context;
    batch.page_size = c.page_size;
    batch.context = at.context;
    batch.node_start = at.node_start;
    batch.tail_slots = at.tail_slots;
    batch.ancestors = at.ancestors;
    batch.depth = at.depth;
    batch.pages = at.pages;
    batch.pages_stride = c.pages_per_request();
    return batch;
}

void Measurement::verify(const Case& c, const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                         const Layout& at, int32_t pool) {
    std::byte* const q = at.q + static_cast<size_t>(pool) * at.q_bytes;
    std::byte* const out = at.out + static_cast<size_t>(pool) * at.out_bytes;
    const int64_t node_values = int64_t{c.heads} * c.head_dim;
    if (c.kind == KDT_ATTN_MLA) {
        kdt_attn_mla_tensors tensors{};
        tensors.struct_bytes = sizeof(tensors);
        tensors.scale = scale_of(c);
        tensors.kv_scale = kFp8Scale;
        tensors.q_latent = q;
        tensors.q_rope = q + kMlaLatent * 2;
        tensors.q_latent_node_stride = tensors.q_rope_node_stride = node_values;
        tensors.q_latent_head_stride = tensors.q_rope_head_stride = c.head_dim;
        tensors.kv = at.cache(c, pool, 0);
        tensors.kv_slot_stride = c.kv_format == KDT_KV_FP8_MLA656 ? 656 : kMlaDim;
        tensors.out = out;
        call(kdt_attn_verify_mla(&shape, &batch, &tensors, at.workspace, at.workspace_bytes,
                                 stream_.get()),
             "kdt_attn_verify_mla");
        return;
    }
    kdt_attn_gqa_tensors tensors{};
    tensors.struct_bytes = sizeof(tensors);
    tensors.scale = scale_of(c);
    tensors.k_scale = tensors.v_scale = kFp8Scale;
    tensors.q = q;
    tensors.q_node_stride = node_values;
    tensors.q_head_stride = c.head_dim;
    tensors.k = at.cache(c, pool, 0);
    tensors.v = at.cache(c, pool, 1);
    tensors.kv_slot_stride = int64_t{c.kv_heads} * c.head_dim;
    tensors.kv_head_stride = c.head_dim;
    tensors.out = out;
    call(kdt_attn_verify_gqa(&shape, &batch, &tensors, at.workspace, at.workspace_bytes,
                             stream_.get()),
         "kdt_attn_verify_gqa");
}

double Measurement::relative_l2(const Case& c, const kdt_attn_batch& batch, const Layout& at) {
    const bool mla = c.kind == KDT_ATTN_MLA;
    const ReferenceInputs inputs{.batch = batch,
                                 .format = c.kv_format,
                                 .heads = c.heads,
                                 .kv_heads = c.kv_heads,
                                 .head_dim = c.head_dim,
                                 .value_dim = c.value_dim(),
                                 .scale = scale_of(c),
                                 .q = at.q,
                                 .k = at.cache(c, 0, 0),
                                 .v = at.cache(c, 0, mla ? 0 : 1),
                                 .slot_bytes = c.slot_bytes(),
                                 .head_bytes = mla ? 0 : c.slot_bytes() / c.kv_heads};
    reference_attention(inputs, c.batch * c.nodes, at.scores, at.expected, stream_.get());
    stream_.wait();
    const auto count = static_cast<size_t>(c.rows()) * static_cast<size_t>(c.value_dim());
    std::vector<float> expected(count);
    std::vector<uint16_t> got(count);
    check(cudaMemcpy(expected.data(), at.expected, count * 4, cudaMemcpyDeviceToHost), "download");
    check(cudaMemcpy(got.data(), at.out, count * 2, cudaMemcpyDeviceToHost), "download");
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; ++i) {
        const float value = std::bit_cast<float>(uint32_t{got[i]} << 16);
        difference += (double(value) - expected[i]) * (double(value) - expected[i]);
        norm += double(expected[i]) * expected[i];
    }
    return std::sqrt(difference / norm);
}

double Measurement::splits_used(const Case& c, const Layout& at) const {
    PlanHeader header{};
    check(cudaMemcpy(&header, at.workspace, sizeof(header), cudaMemcpyDeviceToHost), "download");
    const int32_t rows = c.nodes * (c.heads / c.kv_heads);
    const int32_t tiles = c.batch * c.kv_heads * ((rows + kTileRows - 1) / kTileRows);
    return double(header.partials > 0 ? header.partials : header.units) / tiles;
}

Result Measurement::run(const Case& c, double layer_floor_us) {
    const Layout at = layout(c, memory_->base());
    const kdt_attn_shape shape = shape_of(c);
    const kdt_attn_batch batch = fill(c, at);
    auto plan = [&] {
        call(kdt_attn_plan(&shape, &batch, at.workspace, at.workspace_bytes, stream_.get()),
             "kdt_attn_plan");
    };

    // Once without a graph: loads the kernels, and what --check looks at.
    check(cudaMemsetAsync(at.out, 0xff, at.out_bytes, stream_.get()), "NaN into the output");
    plan();
    verify(c, shape, batch, at, 0);
    stream_.wait();

    Result result;
    result.pools = at.pools;
    result.splits = splits_used(c, at);
    if (options_.check) result.rel_l2 = relative_l2(c, batch, at);

    const double wanted = std::clamp(kGraphUs / layer_floor_us, 8.0, 64.0);
    const auto rounds = static_cast<int32_t>(std::ceil(wanted / at.pools));
    result.layers = rounds * at.pools;
    const Graph layers(stream_, [&] {
        for (int32_t i = 0; i < result.layers; ++i) verify(c, shape, batch, at, i % at.pools);
    });
    std::vector<double> times = layers.time_us(2, options_.repeat);
    for (double& time : times) time /= result.layers;
    result.us = quantile(times, 0.5);
    result.min_us = quantile(times, 0);
    result.iqr_us = quantile(times, 0.75) - quantile(times, 0.25);

    const Graph plans(stream_, [&] {
        for (int32_t i = 0; i < kPlansPerGraph; ++i) plan();
    });
    result.plan_us = quantile(plans.time_us(1, 9), 0.5) / kPlansPerGraph;
    return result;
}

}  // namespace kd::bench
