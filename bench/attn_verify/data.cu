#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cfloat>

#include "attn_verify/data.h"
#include "attn_verify/device.h"

namespace kd::bench {

namespace {

constexpr int32_t kLatent = 512;
constexpr int32_t kRow656Bytes = 656;  // 512 e4m3, 4 float scales, 64 bf16
constexpr int32_t kThreads = 256;

// ---- filling ----------------------------------------------------------------------------------

__device__ __forceinline__ uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/// Four values uniform in [-limit, limit] of counter `at`.
__device__ __forceinline__ void random4(uint64_t at, uint32_t seed, float limit, float (&to)[4]) {
    const uint64_t bits = mix((at + 1) * 0x9e3779b97f4a7c15u ^ uint64_t{seed} << 32);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        const auto part = static_cast<int32_t>(bits >> (16 * i) & 0xffffu);
        to[i] = (static_cast<float>(part) - 32767.5f) * (limit / 32767.5f);
    }
}

__device__ __forceinline__ void random8(uint64_t at, uint32_t seed, float limit, float (&to)[8]) {
    float half[4];
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
        random4(2 * at + h, seed, limit, half);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) to[4 * h + i] = half[i];
    }
}

__device__ __forceinline__ uint4 as_bf16(const float (&x)[8]) {
    uint32_t words[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
    }
    return uint4{words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ uint2 as_e4m3(const float (&x)[8], float inverse_scale) {
    uint32_t words[2] = {};
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
        const uint32_t byte =
            __nv_cvt_float_to_fp8(x[i] * inverse_scale, __NV_SATFINITE, __NV_E4M3);
        words[i / 4] |= byte << (8 * (i % 4));
    }
    return uint2{words[0], words[1]};
}

/// Scale of 128-value group `group` of a 656-byte row: 0.25 to 0.5.
__device__ __forceinline__ float group_scale(int64_t slot, int32_t group, uint32_t seed) {
    const uint64_t bits = mix(static_cast<uint64_t>(slot * 4 + group) ^ uint64_t{seed} << 40);
    return 0.25f + 0.25f * static_cast<float>(bits >> 40) * 0x1p-24f;
}

/// Values [8 * chunk, 8 * chunk + 8) of one slot.
__device__ __forceinline__ void write_chunk(const CacheBuffer& cache, int64_t slot, int32_t chunk,
                                            uint32_t seed, float limit) {
    float x[8];
    random8(static_cast<uint64_t>(slot) * (cache.values / 8) + chunk, seed, limit, x);
    const int32_t first = 8 * chunk;
    if (cache.format == KDT_KV_BF16) {
        std::byte* row = cache.base + slot * cache.values * 2;
        *reinterpret_cast<uint4*>(row + first * 2) = as_bf16(x);
    } else if (cache.format == KDT_KV_FP8) {
        std::byte* row = cache.base + slot * cache.values;
        *reinterpret_cast<uint2*>(row + first) = as_e4m3(x, 1 / kFp8Scale);
    } else {
        std::byte* row = cache.base + slot * kRow656Bytes;
        if (first < kLatent) {
            const int32_t group = first / 128;
            const float scale = group_scale(slot, group, seed);
            *reinterpret_cast<uint2*>(row + first) = as_e4m3(x, 1 / scale);
            if (first % 128 == 0) *reinterpret_cast<float*>(row + kLatent + 4 * group) = scale;
        } else {
            std::byte* rope = row + kLatent + 16;
            *reinterpret_cast<uint4*>(rope + (first - kLatent) * 2) = as_bf16(x);
        }
    }
}

/// Grid: any; each thread takes chunks of 8 values in turn. slots null: all of them in order.
__global__ void fill_cache_kernel(CacheBuffer cache, const int32_t* slots, int64_t count,
                                  uint32_t seed, float limit) {
    const int32_t chunks = cache.values / 8;
    const int64_t total = count * chunks;
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t row = i / chunks;
        const int64_t slot = slots ? slots[row] : row;
        write_chunk(cache, slot, static_cast<int32_t>(i - row * chunks), seed, limit);
    }
}

__global__ void fill_queries_kernel(uint4* q, int64_t chunks, uint32_t seed) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < chunks; i += step) {
        float x[8];
        random8(static_cast<uint64_t>(i), seed, 1.7320508f, x);
        q[i] = as_bf16(x);
    }
}

uint32_t blocks_for(int64_t items) {
    const int64_t blocks = (items + kThreads - 1) / kThreads;
    return static_cast<uint32_t>(blocks < 1 ? 1 : blocks > 8192 ? 8192 : blocks);
}

// ---- the plain computation --------------------------------------------------------------------

__device__ __forceinline__ float bf16_at(const std::byte* from, int32_t index) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[index]);
}

__device__ __forceinline__ float e4m3_at(const std::byte* from, int32_t index) {
    const auto byte = static_cast<__nv_fp8_storage_t>(from[index]);
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)));
}

/// Value `index` of a cache row.
__device__ __forceinline__ float cache_value(const std::byte* row, int32_t index,
                                             kdt_kv_format format) {
    if (format == KDT_KV_BF16) return bf16_at(row, index);
    if (format == KDT_KV_FP8) return e4m3_at(row, index) * kFp8Scale;
    if (index >= kLatent) return bf16_at(row + kLatent + 16, index - kLatent);
    const float* scales = reinterpret_cast<const float*>(row + kLatent);
    return e4m3_at(row, index) * scales[index / 128];
}

struct NodeOfRequest {
    int32_t request;
    int32_t node;  // in the request
    int32_t first_node;
    int32_t keys;
};

__device__ NodeOfRequest locate(const kdt_attn_batch& batch, int32_t node) {
    int32_t request = 0;
    while (request + 1 < batch.requests && node >= batch.node_start[request + 1]) ++request;
    const int32_t first = batch.node_start[request];
    return {request, node - first, first,
            batch.context[request] + batch.node_start[request + 1] - first};
}

__device__ __forceinline__ int64_t slot_of(const kdt_attn_batch& batch, const NodeOfRequest& at,
                                           int32_t key) {
    const int32_t context = batch.context[at.request];
    if (key >= context) return batch.tail_slots[at.first_node + key - context];
    const int64_t page = batch.pages[at.request * batch.pages_stride + key / batch.page_size];
    return page * batch.page_size + key % batch.page_size;
}

/// scores [nodes * heads, width]: -inf where the node does not see the key. Grid (heads, nodes); a
/// warp takes a key at a time.
__global__ void reference_scores_kernel(ReferenceInputs in, int64_t width, float* scores) {
    __shared__ float s_q[576];
    const int32_t head = blockIdx.x;
    const int64_t row = int64_t{blockIdx.y} * in.heads + head;
    const NodeOfRequest at = locate(in.batch, static_cast<int32_t>(blockIdx.y));
    const auto* q = static_cast<const std::byte*>(in.q) + row * in.head_dim * 2;
    for (int32_t i = threadIdx.x; i < in.head_dim; i += blockDim.x) s_q[i] = bf16_at(q, i);
    __syncthreads();

    const int32_t context = in.batch.context[at.request];
    const int64_t head_offset = head / (in.heads / in.kv_heads) * in.head_bytes;
    const uint64_t* seen = in.batch.ancestors + 2 * int64_t{blockIdx.y};
    const int32_t lane = threadIdx.x % 32;
    const auto warps = static_cast<int32_t>(blockDim.x / 32);
    for (int32_t key = static_cast<int32_t>(threadIdx.x / 32); key < at.keys; key += warps) {
        const int32_t tail = key - context;
        if (tail >= 0 && (seen[tail / 64] >> (tail % 64) & 1) == 0) {
            if (lane == 0) scores[row * width + key] = -INFINITY;
            continue;
        }
        const std::byte* k = in.k + slot_of(in.batch, at, key) * in.slot_bytes + head_offset;
        float sum = 0;
        for (int32_t i = lane; i < in.head_dim; i += 32) {
            sum += s_q[i] * cache_value(k, i, in.format);
        }
#pragma unroll
        for (int32_t offset = 16; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(~0u, sum, offset);
        }
        if (lane == 0) scores[row * width + key] = sum * in.scale;
    }
}

__device__ float block_max(float x, float* s_scratch) {
    s_scratch[threadIdx.x] = x;
    __syncthreads();
    for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            s_scratch[threadIdx.x] = fmaxf(s_scratch[threadIdx.x], s_scratch[threadIdx.x + half]);
        }
        __syncthreads();
    }
    return s_scratch[0];
}

/// Softmax of the scores and the weighted sum of V rows. Grid (heads, nodes), kThreads threads;
/// thread d takes value d and d + kThreads. Sums of 256 keys in float, those in double.
__global__ void reference_values_kernel(ReferenceInputs in, int64_t width, float* scores,
                                        float* out) {
    __shared__ float s_scratch[kThreads];
    __shared__ int64_t s_row[kThreads];
    const int64_t row = int64_t{blockIdx.y} * in.heads + blockIdx.x;
    const NodeOfRequest at = locate(in.batch, static_cast<int32_t>(blockIdx.y));
    const int64_t head_offset =
        static_cast<int32_t>(blockIdx.x) / (in.heads / in.kv_heads) * in.head_bytes;
    float* weights = scores + row * width;
    const auto thread = static_cast<int32_t>(threadIdx.x);

    float peak = -FLT_MAX;
    for (int32_t key = thread; key < at.keys; key += kThreads) peak = fmaxf(peak, weights[key]);
    peak = block_max(peak, s_scratch);

    double total = 0;
    double sums[2] = {};
    for (int32_t begin = 0; begin < at.keys; begin += kThreads) {
        __syncthreads();
        const int32_t key = begin + thread;
        if (key < at.keys) {
            s_scratch[thread] = expf(weights[key] - peak);
            s_row[thread] = slot_of(in.batch, at, key) * in.slot_bytes + head_offset;
        }
        __syncthreads();
        const int32_t count = min(kThreads, at.keys - begin);
        float part = 0;
        float parts[2] = {};
        for (int32_t i = 0; i < count; ++i) {
            const float weight = s_scratch[i];
            part += weight;
            if (weight == 0) continue;
#pragma unroll
            for (int32_t j = 0; j < 2; ++j) {
                const int32_t d = thread + j * kThreads;
                if (d < in.value_dim) {
                    parts[j] += weight * cache_value(in.v + s_row[i], d, in.format);
                }
            }
        }
        total += part;
        sums[0] += parts[0];
        sums[1] += parts[1];
    }
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) {
        const int32_t d = thread + j * kThreads;
        if (d < in.value_dim) {
            out[row * in.value_dim + d] = static_cast<float>(sums[j] / total);
        }
    }
}

}  // namespace

void fill_cache(const CacheBuffer& cache, uint32_t seed, cudaStream_t stream) {
    const uint32_t blocks = blocks_for(cache.slots * (cache.values / 8));
    fill_cache_kernel<<<blocks, kThreads, 0, stream>>>(cache, nullptr, cache.slots, seed, 1.0f);
    check(cudaGetLastError(), "filling the cache");
}

void fill_rows(const CacheBuffer& cache, const int32_t* slots, int32_t count, uint32_t seed,
               cudaStream_t stream) {
    const uint32_t blocks = blocks_for(int64_t{count} * (cache.values / 8));
    fill_cache_kernel<<<blocks, kThreads, 0, stream>>>(cache, slots, count, seed, 3.0f);
    check(cudaGetLastError(), "filling the tree's rows");
}

void fill_queries(void* q, int64_t values, uint32_t seed, cudaStream_t stream) {
    fill_queries_kernel<<<blocks_for(values / 8), kThreads, 0, stream>>>(static_cast<uint4*>(q),
                                                                         values / 8, seed);
    check(cudaGetLastError(), "filling the queries");
}

void reference_attention(const ReferenceInputs& in, int32_t nodes, float* scores, float* out,
                         cudaStream_t stream) {
    const int64_t width = int64_t{in.batch.max_context} + 128;
    const dim3 grid(static_cast<uint32_t>(in.heads), static_cast<uint32_t>(nodes));
    reference_scores_kernel<<<grid, kThreads, 0, stream>>>(in, width, scores);
    check(cudaGetLastError(), "reference scores");
    reference_values_kernel<<<grid, kThreads, 0, stream>>>(in, width, scores, out);
    check(cudaGetLastError(), "reference values");
}

}  // namespace kd::bench
