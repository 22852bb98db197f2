#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "attn_reference.h"
#include "device_array.h"
#include "kernels/cuda/ptx.cuh"

namespace kd {

namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kChunk = 128;  // keys at a time

// ---- values -----------------------------------------------------------------------------------

struct MlaFill {
    kdt_kv_format format;
    uint32_t seed;
    int32_t heads;
    kdt_attn_mla_tensors tensors;
    int64_t slot_bytes;
    int64_t rope_offset_bytes;
};

/// Grid: rows.
__global__ void fill_mla_rows(MlaFill fill, const CaseRow* rows, std::byte* kv) {
    const CaseRow row = rows[blockIdx.x];
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < mla_row_parts(fill.format);
         i += static_cast<int32_t>(blockDim.x)) {
        write_mla_value(fill.format, fill.seed, fill.tensors.scale, fill.tensors.kv_scale, row, i,
                        kv + row.slot * fill.slot_bytes);
    }
}

/// Grid: (heads, nodes).
__global__ void fill_mla_queries(MlaFill fill, const uint64_t* ids, std::byte* query) {
    const int64_t node = blockIdx.y;
    const auto head = static_cast<int32_t>(blockIdx.x);
    const kdt_attn_mla_tensors& t = fill.tensors;
    std::byte* latent = query + 2 * (node * t.q_latent_node_stride + head * t.q_latent_head_stride);
    std::byte* rope = query + fill.rope_offset_bytes +
                      2 * (node * t.q_rope_node_stride + head * t.q_rope_head_stride);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < 576;
         i += static_cast<int32_t>(blockDim.x)) {
        put_word(i < 512 ? latent + 2 * i : rope + 2 * (i - 512),
                 query_bits(fill.seed, ids[node], head, 576, i));
    }
}

struct GqaFill {
    kdt_kv_format format;
    uint32_t seed;
    int32_t kv_heads;
    int32_t head_dim;
    kdt_attn_gqa_tensors tensors;
    int64_t value_bytes;
    int64_t v_offset_bytes;
};

/// Grid: rows.
__global__ void fill_gqa_rows(GqaFill fill, const CaseRow* rows, std::byte* kv) {
    const CaseRow row = rows[blockIdx.x];
    const kdt_attn_gqa_tensors& t = fill.tensors;
    for (int32_t at = static_cast<int32_t>(threadIdx.x); at < fill.kv_heads * fill.head_dim;
         at += static_cast<int32_t>(blockDim.x)) {
        const int32_t head = at / fill.head_dim;
        const int32_t i = at % fill.head_dim;
        std::byte* k =
            kv + fill.value_bytes * (row.slot * t.kv_slot_stride + head * t.kv_head_stride);
        write_gqa_value(fill.format, fill.seed, CaseStream::key, t.scale, t.k_scale, row, head,
                        fill.head_dim, i, k);
        write_gqa_value(fill.format, fill.seed, CaseStream::value, t.scale, t.v_scale, row, head,
                        fill.head_dim, i, k + fill.v_offset_bytes);
    }
}

/// Grid: (heads, nodes).
__global__ void fill_gqa_queries(GqaFill fill, const uint64_t* ids, std::byte* query) {
    const int64_t node = blockIdx.y;
    const auto head = static_cast<int32_t>(blockIdx.x);
    const kdt_attn_gqa_tensors& t = fill.tensors;
    std::byte* q = query + 2 * (node * t.q_node_stride + head * t.q_head_stride);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < fill.head_dim;
         i += static_cast<int32_t>(blockDim.x)) {
        put_word(q + 2 * i, query_bits(fill.seed, ids[node], head, fill.head_dim, i));
    }
}

// ---- attention --------------------------------------------------------------------------------

__device__ double query_value(const std::byte* q, int32_t i) {
    return bf16_value(*reinterpret_cast<const uint16_t*>(q + 2 * i));
}

struct MlaSource {
    kdt_kv_format format;
    kdt_attn_mla_tensors t;
    int64_t slot_bytes;

    __device__ double query(int32_t node, int32_t head, int32_t i) const {
        const auto* latent = static_cast<const std::byte*>(t.q_latent) +
                             2 * (node * t.q_latent_node_stride + head * t.q_latent_head_stride);
        const auto* rope = static_cast<const std::byte*>(t.q_rope) +
                           2 * (node * t.q_rope_node_stride + head * t.q_rope_head_stride);
        return i < 512 ? query_value(latent, i) : query_value(rope, i - 512);
    }
    __device__ double key(int64_t slot, int32_t, int32_t i) const {
        const auto* row = static_cast<const std::byte*>(t.kv) + slot * slot_bytes;
        if (format == KDT_KV_BF16) return query_value(row, i);
        return mla_value(format, t.kv_scale, row, i);
    }
    __device__ double value(int64_t slot, int32_t head, int32_t i) const {
        return key(slot, head, i);
    }
};

struct GqaSource {
    kdt_kv_format format;
    kdt_attn_gqa_tensors t;
    int32_t group;
    int64_t value_bytes;

    __device__ double query(int32_t node, int32_t head, int32_t i) const {
        return query_value(static_cast<const std::byte*>(t.q) +
                               2 * (node * t.q_node_stride + head * t.q_head_stride),
                           i);
    }
    __device__ double cached(const void* cache, float scale, int64_t slot, int32_t head,
                             int32_t i) const {
        const auto* row = static_cast<const std::byte*>(cache) +
                          value_bytes * (slot * t.kv_slot_stride + head / group * t.kv_head_stride);
        if (format == KDT_KV_BF16) return query_value(row, i);
        return gqa_value(format, scale, row, i);
    }
    __device__ double key(int64_t slot, int32_t head, int32_t i) const {
        return cached(t.k, t.k_scale, slot, head, i);
    }
    __device__ double value(int64_t slot, int32_t head, int32_t i) const {
        return cached(t.v, t.v_scale, slot, head, i);
    }
};

/// Slot of key `key` (a position of the context, then nodes) if `node` sees it, else -1.
__device__ int64_t visible_slot(const kdt_attn_batch& batch, int32_t window, int32_t request,
                                int32_t node, int32_t key) {
    const int32_t context = batch.context[request];
    const int32_t oldest = window > 0 ? context + batch.depth[node] - window + 1 : 0;
    if (key < context) {
        if (key < oldest) return -1;
        const int64_t first =
            batch.pages_start ? batch.pages_start[request] : request * batch.pages_stride;
        const int64_t page = batch.pages[first + key / batch.page_size];
        return page * batch.page_size + key % batch.page_size;
    }
    const int32_t other = key - context;
    if ((batch.ancestors[2 * int64_t{node} + other / 64] >> (other % 64) & 1) == 0) return -1;
    const int32_t at = batch.node_start[request] + other;
    if (window > 0 && context + batch.depth[at] < oldest) return -1;
    return batch.tail_slots[at];
}

/// Grid: (heads, nodes). A chunk of keys at a time: scores by a warp each, then values by a thread
/// per dimension, rescaled whenever the largest score grows.
template <class Source>
__global__ void __launch_bounds__(kThreads, 4)
    reference(Source source, kdt_attn_batch batch, int32_t heads, int32_t key_dim,
              int32_t value_dim, int32_t window, double scale, double cap, double* out,
              double* lse) {
    __shared__ double s_query[576];
    __shared__ double s_score[kChunk];
    __shared__ int64_t s_slot[kChunk];
    const auto head = static_cast<int32_t>(blockIdx.x);
    const auto node = static_cast<int32_t>(blockIdx.y);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    int32_t request = 0;
    while (batch.node_start[request + 1] <= node) ++request;
    const int32_t keys =
        batch.context[request] + batch.node_start[request + 1] - batch.node_start[request];
    for (int32_t i = thread; i < key_dim; i += kThreads) s_query[i] = source.query(node, head, i);

    double largest = -INFINITY;
    double sum = 0;
    double acc[2] = {};
    for (int32_t first = 0; first < keys; first += kChunk) {
        __syncthreads();
        if (thread < kChunk) {
            const int32_t key = first + thread;
            s_slot[thread] =
                key < keys ? visible_slot(batch, window, request, node, key) : int64_t{-1};
            s_score[thread] = -INFINITY;
        }
        __syncthreads();
        for (int32_t k = thread / 32; k < kChunk; k += kThreads / 32) {
            if (s_slot[k] < 0) continue;
            double score = 0;
            for (int32_t i = thread % 32; i < key_dim; i += 32) {
                score += s_query[i] * source.key(s_slot[k], head, i);
            }
            for (int32_t lane = 16; lane > 0; lane /= 2) {
                score += __shfl_xor_sync(0xffffffffu, score, lane);
            }
            score *= scale;
            if (cap > 0) score = cap * tanh(score / cap);
            if (thread % 32 == 0) s_score[k] = score;
        }
        __syncthreads();
        double chunk_largest = largest;
        for (int32_t k = 0; k < kChunk; ++k) chunk_largest = fmax(chunk_largest, s_score[k]);
        __syncthreads();
        if (chunk_largest == -INFINITY) continue;
        const double rescale = exp(largest - chunk_largest);
        largest = chunk_largest;
        if (thread < kChunk) s_score[thread] = exp(s_score[thread] - largest);
        __syncthreads();
        sum *= rescale;
        acc[0] *= rescale;
        acc[1] *= rescale;
#pragma unroll 8
        for (int32_t k = 0; k < kChunk; ++k) {
            if (s_slot[k] < 0) continue;
            sum += s_score[k];
            if (thread < value_dim) acc[0] += s_score[k] * source.value(s_slot[k], head, thread);
            if (thread + kThreads < value_dim) {
                acc[1] += s_score[k] * source.value(s_slot[k], head, thread + kThreads);
            }
        }
    }
    const int64_t at = int64_t{node} * heads + head;
    if (thread == 0) lse[at] = largest == -INFINITY ? -INFINITY : largest + log(sum);
    for (int32_t part = 0; part < 2; ++part) {
        const int32_t i = thread + part * kThreads;
        if (i < value_dim) out[at * value_dim + i] = sum > 0 ? acc[part] / sum : 0;
    }
}

__global__ void count_differing(const uint32_t* a, const uint32_t* b, int64_t words,
                                unsigned long long* differing) {
    unsigned long long own = 0;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
         i += int64_t{gridDim.x} * blockDim.x) {
        own += a[i] != b[i] ? 1 : 0;
    }
    if (own > 0) atomicAdd(differing, own);
}

__global__ void late_copies(LateCopy first, LateCopy second) {
    ptx::grid_dependency_launch();
    constexpr int64_t kClocks = 100'000;  // some 50 us: the next kernel is then where it waits
    for (const int64_t start = clock64(); clock64() - start < kClocks;) {
    }
    for (const LateCopy& copy : {first, second}) {
        for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < copy.bytes / 16;
             i += int64_t{gridDim.x} * blockDim.x) {
            reinterpret_cast<uint4*>(copy.to)[i] = reinterpret_cast<const uint4*>(copy.from)[i];
        }
    }
}

__global__ void decode_e4m3(float* values) {
    const __half_raw raw =
        __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(threadIdx.x), __NV_E4M3);
    values[threadIdx.x] = __half2float(__half(raw));
}

dim3 grid_of(int32_t heads, int32_t nodes) {
    return {static_cast<unsigned>(heads), static_cast<unsigned>(nodes)};
}

}  // namespace

void fill_on_device(const AttnVerifyMlaInputs& inputs, const CaseRow* rows, int64_t row_count,
                    const uint64_t* query_ids, std::byte* query, std::byte* kv) {
    const auto format = static_cast<kdt_kv_format>(inputs.shape.kv_format);
    const MlaFill fill{
        .format = format,
        .seed = inputs.seed,
        .heads = inputs.shape.heads,
        .tensors = inputs.tensors,
        .slot_bytes = inputs.tensors.kv_slot_stride * (format == KDT_KV_BF16 ? 2 : 1),
        .rope_offset_bytes = inputs.rope_offset_bytes};
    if (row_count > 0) fill_mla_rows<<<static_cast<unsigned>(row_count), 192>>>(fill, rows, kv);
    if (inputs.step.nodes() > 0) {
        fill_mla_queries<<<grid_of(inputs.shape.heads, inputs.step.nodes()), 192>>>(fill, query_ids,
                                                                                    query);
    }
    EXPECT_TRUE(ok(cudaGetLastError()));
}

void fill_on_device(const AttnVerifyGqaCudaInputs& inputs, const CaseRow* rows, int64_t row_count,
                    const uint64_t* query_ids, std::byte* query, std::byte* kv) {
    const auto format = static_cast<kdt_kv_format>(inputs.shape.kv_format);
    const GqaFill fill{.format = format,
                       .seed = inputs.seed,
                       .kv_heads = inputs.shape.kv_heads,
                       .head_dim = inputs.shape.head_dim,
                       .tensors = inputs.tensors,
                       .value_bytes = format == KDT_KV_BF16 ? 2 : 1,
                       .v_offset_bytes = inputs.v_offset_bytes};
    if (row_count > 0) fill_gqa_rows<<<static_cast<unsigned>(row_count), 128>>>(fill, rows, kv);
    if (inputs.step.nodes() > 0) {
        fill_gqa_queries<<<grid_of(inputs.shape.heads, inputs.step.nodes()), 128>>>(fill, query_ids,
                                                                                    query);
    }
    EXPECT_TRUE(ok(cudaGetLastError()));
}

void attn_verify_mla_reference(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                               const kdt_attn_mla_tensors& tensors, int32_t nodes, double* out,
                               double* lse) {
    if (nodes == 0) return;
    const auto format = static_cast<kdt_kv_format>(shape.kv_format);
    const MlaSource source{.format = format,
                           .t = tensors,
                           .slot_bytes = tensors.kv_slot_stride * (format == KDT_KV_BF16 ? 2 : 1)};
    reference<<<grid_of(shape.heads, nodes), kThreads>>>(
        source, batch, shape.heads, 576, 512, 0, tensors.scale, tensors.logit_cap, out, lse);
    EXPECT_TRUE(ok(cudaGetLastError()));
}

void attn_verify_gqa_reference(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                               const kdt_attn_gqa_tensors& tensors, int32_t nodes, double* out,
                               double* lse) {
    if (nodes == 0) return;
    const auto format = static_cast<kdt_kv_format>(shape.kv_format);
    const GqaSource source{.format = format,
                           .t = tensors,
                           .group = shape.heads / shape.kv_heads,
                           .value_bytes = format == KDT_KV_BF16 ? 2 : 1};
    reference<<<grid_of(shape.heads, nodes), kThreads>>>(
        source, batch, shape.heads, shape.head_dim, shape.head_dim, shape.sliding_window,
        tensors.scale, tensors.logit_cap, out, lse);
    EXPECT_TRUE(ok(cudaGetLastError()));
}

void count_differing_words(const uint32_t* a, const uint32_t* b, int64_t words,
                           unsigned long long* differing, void* stream) {
    if (words == 0) return;
    count_differing<<<264, 256, 0, static_cast<cudaStream_t>(stream)>>>(a, b, words, differing);
    EXPECT_TRUE(ok(cudaGetLastError()));
}

void copy_late(const LateCopy& first, const LateCopy& second, void* stream) {
    late_copies<<<32, 256, 0, static_cast<cudaStream_t>(stream)>>>(first, second);
    EXPECT_TRUE(ok(cudaGetLastError()));
}

void decode_e4m3_on_device(float* values) {
    const DeviceArray<float> decoded{std::vector<float>(256)};
    decode_e4m3<<<1, 256>>>(decoded.data());
    const std::vector<float> read = decoded.read();
    std::copy(read.begin(), read.end(), values);
}

}  // namespace kd
