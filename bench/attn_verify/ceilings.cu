#include <algorithm>
#include <cstdint>

#include "attn_verify/ceilings.h"

namespace kd::bench {

namespace {

// ---- reading memory ---------------------------------------------------------------------------

__device__ __forceinline__ uint4 load_once(const uint4* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

/// Every thread reads `rounds` times kUnroll 16-byte words, all kUnroll in flight; grid and block
/// as launched. The store never happens on random data, but the compiler cannot know.
template <int32_t kUnroll>
__global__ void read_kernel(const uint4* data, int32_t rounds, uint32_t* never) {
    const int64_t threads = int64_t{gridDim.x} * blockDim.x;
    const uint4* from = data + int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    uint32_t seen = 0;
    for (int32_t round = 0; round < rounds; ++round, from += threads * kUnroll) {
        uint4 words[kUnroll];
#pragma unroll
        for (int32_t i = 0; i < kUnroll; ++i) words[i] = load_once(from + i * threads);
#pragma unroll
        for (int32_t i = 0; i < kUnroll; ++i) {
            seen ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
        }
    }
    if (seen == 0x9e3779b9u) *never = seen;
}

// ---- bf16 products ----------------------------------------------------------------------------

__device__ __forceinline__ uint32_t hash(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/// Two random bf16 of magnitude 0.5 to 1: power, and with it the clock, depends on the data.
__device__ __forceinline__ uint32_t random_bf16x2(uint32_t seed) {
    return (hash(seed) & 0x807f807fu) | 0x3f003f00u;
}

constexpr int32_t kMmaTiles = 8;  // independent accumulators a warp
constexpr int32_t kMmaFlops = 2 * 16 * 8 * 16;

/// `rounds` times kMmaTiles products m16n8k16 in every warp, operands in registers.
__global__ void __launch_bounds__(256) mma_sync_kernel(int32_t rounds, float* never) {
    const uint32_t seed = (blockIdx.x * blockDim.x + threadIdx.x) * 64;
    uint32_t a[kMmaTiles][4];
    uint32_t b[kMmaTiles][2];
    float c[kMmaTiles][4] = {};
#pragma unroll
    for (int32_t t = 0; t < kMmaTiles; ++t) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) a[t][i] = random_bf16x2(seed + 6 * t + i);
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) b[t][i] = random_bf16x2(seed + 6 * t + 4 + i);
    }
    for (int32_t round = 0; round < rounds; ++round) {
#pragma unroll
        for (int32_t t = 0; t < kMmaTiles; ++t) {
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                : "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
                : "r"(a[t][0]), "r"(a[t][1]), "r"(a[t][2]), "r"(a[t][3]), "r"(b[t][0]),
                  "r"(b[t][1]));
        }
    }
    float sum = 0;
#pragma unroll
    for (int32_t t = 0; t < kMmaTiles; ++t) sum += c[t][0] + c[t][1] + c[t][2] + c[t][3];
    if (sum == 1.2345f) *never = sum;
}

// A block of two warp groups: each multiplies its own 64 x 64 A tile by a shared 256 x 64 B tile,
// three stages of both in turn, all K-major with the 128-byte swizzle (rows of 128 bytes, so a tile
// is dense and, filled with random values, needs no address arithmetic).
constexpr int32_t kWgmmaStages = 3;
constexpr int32_t kATileBytes = 64 * 64 * 2;
constexpr int32_t kBTileBytes = 256 * 64 * 2;
constexpr int32_t kStageBytes = 2 * kATileBytes + kBTileBytes;
constexpr int32_t kWgmmaBytes = kWgmmaStages * kStageBytes + 1024;  // 1024: alignment
constexpr int32_t kWgmmaFlops = 2 * 64 * 256 * 16;
constexpr int32_t kWgmmasPerRound = 4 * kWgmmaStages;  // of one warp group

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// K-major operand, 128-byte swizzle, 1024 bytes from one group of 8 rows to the next.
__device__ __forceinline__ uint64_t descriptor(uint32_t shared_address) {
    return uint64_t{(shared_address & 0x3ffffu) >> 4} | uint64_t{1} << 16 |
           uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

/// d += A [64, 16] B [256, 16]^T.
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
        "%127 "
        "}, %128, %129, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
          "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
          "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
          "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]),
          "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),
          "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
          "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),
          "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b));
}
#endif

__global__ void __launch_bounds__(256, 1)
    wgmma_kernel([[maybe_unused]] int32_t rounds, [[maybe_unused]] float* never) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t s_raw[];
    const uint32_t raw = static_cast<uint32_t>(__cvta_generic_to_shared(s_raw));
    const uint32_t padding = (1024 - raw % 1024) % 1024;
    uint32_t* s_words = reinterpret_cast<uint32_t*>(s_raw + padding);
    for (int32_t i = threadIdx.x; i < kWgmmaStages * kStageBytes / 4; i += blockDim.x) {
        s_words[i] = random_bf16x2(blockIdx.x * (kWgmmaStages * kStageBytes / 4) + i);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    const uint32_t group = threadIdx.x / 128;
    uint64_t a[kWgmmaStages], b[kWgmmaStages];
#pragma unroll
    for (int32_t s = 0; s < kWgmmaStages; ++s) {
        const uint32_t stage = raw + padding + s * kStageBytes;
        a[s] = descriptor(stage + group * kATileBytes);
        b[s] = descriptor(stage + 2 * kATileBytes);
    }
    float d[128] = {};
    for (int32_t round = 0; round < rounds; ++round) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int32_t s = 0; s < kWgmmaStages; ++s) {
#pragma unroll
            for (int32_t k = 0; k < 4; ++k) {  // 16 values are 32 bytes: 2 in descriptor units
                wgmma_m64n256k16(d, a[s] + 2 * k, b[s] + 2 * k);
            }
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float sum = 0;
#pragma unroll
    for (int32_t i = 0; i < 128; ++i) sum += d[i];
    if (sum == 1.2345f) *never = sum;
#endif
}

// ---- launches ---------------------------------------------------------------------------------

__global__ void empty_kernel() {}

__global__ void empty_pdl_kernel() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

double best(const std::vector<double>& times) {
    return *std::ranges::min_element(times);
}

template <int32_t kUnroll>
double read_rate(const DeviceMemory& memory, int32_t blocks, int32_t threads, uint32_t* never,
                 const Stream& stream) {
    const int64_t bytes = std::min(static_cast<int64_t>(memory.bytes()), int64_t{8} << 30);
    const int64_t round_bytes = int64_t{blocks} * threads * kUnroll * 16;
    const auto rounds = static_cast<int32_t>(bytes / round_bytes);
    const Graph graph(stream, [&] {
        read_kernel<kUnroll><<<blocks, threads, 0, stream.get()>>>(
            reinterpret_cast<const uint4*>(memory.base()), rounds, never);
        check(cudaGetLastError(), "read kernel");
    });
    return double(rounds) * double(round_bytes) / best(graph.time_us(1, 3)) * 1e-6;
}

double measure_read(const DeviceMemory& memory, int32_t sms, uint32_t* never,
                    const Stream& stream) {
    double rate = 0;
    for (const int32_t threads : {256, 512, 1024}) {
        for (const int32_t blocks_per_sm : {1, 2, 4, 16}) {
            const int32_t blocks = blocks_per_sm * sms;
            rate = std::max({rate, read_rate<4>(memory, blocks, threads, never, stream),
                             read_rate<8>(memory, blocks, threads, never, stream)});
        }
    }
    return rate;
}

double measure_mma_sync(int32_t sms, float* never, const Stream& stream) {
    constexpr int32_t kRounds = 16384;
    double rate = 0;
    for (const int32_t blocks_per_sm : {1, 2}) {
        const int32_t blocks = blocks_per_sm * sms;
        const Graph graph(stream, [&] {
            mma_sync_kernel<<<blocks, 256, 0, stream.get()>>>(kRounds, never);
            check(cudaGetLastError(), "mma.sync kernel");
        });
        const double flops = double(blocks) * 8 * kRounds * kMmaTiles * kMmaFlops;
        rate = std::max(rate, flops / best(graph.time_us(1, 5)) * 1e-6);
    }
    return rate;
}

double measure_wgmma(int32_t sms, float* never, const Stream& stream) {
    constexpr int32_t kRounds = 2048;
    check(cudaFuncSetAttribute(wgmma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kWgmmaBytes),
          "shared memory of the wgmma kernel");
    const Graph graph(stream, [&] {
        wgmma_kernel<<<sms, 256, kWgmmaBytes, stream.get()>>>(kRounds, never);
        check(cudaGetLastError(), "wgmma kernel");
    });
    const double flops = double(sms) * 2 * kRounds * kWgmmasPerRound * kWgmmaFlops;
    return flops / best(graph.time_us(1, 5)) * 1e-6;
}

double measure_gap(int32_t sms, bool pdl, const Stream& stream) {
    constexpr int32_t kNodes = 1000;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<uint32_t>(sms));
    config.blockDim = dim3(128);
    config.stream = stream.get();
    config.attrs = &attribute;
    config.numAttrs = pdl ? 1 : 0;
    const Graph graph(stream, [&] {
        for (int32_t i = 0; i < kNodes; ++i) {
            check(cudaLaunchKernelEx(&config, pdl ? empty_pdl_kernel : empty_kernel),
                  "empty kernel");
        }
    });
    return quantile(graph.time_us(2, 9), 0.5) / kNodes;
}

}  // namespace

Ceilings measure_ceilings(const DeviceMemory& memory, const Stream& stream) {
    int device = 0;
    cudaDeviceProp properties{};
    check(cudaGetDevice(&device), "device");
    check(cudaGetDeviceProperties(&properties, device), "device properties");
    const int32_t sms = properties.multiProcessorCount;
    DeviceMemory never(256);
    Ceilings ceilings;
    ceilings.read_tb_s =
        measure_read(memory, sms, reinterpret_cast<uint32_t*>(never.base()), stream);
    float* const sink = reinterpret_cast<float*>(never.base());
    ceilings.mma_sync_tflop_s = measure_mma_sync(sms, sink, stream);
    if (properties.major == 9) ceilings.wgmma_tflop_s = measure_wgmma(sms, sink, stream);
    ceilings.launch_gap_us = measure_gap(sms, false, stream);
    ceilings.launch_gap_pdl_us = measure_gap(sms, true, stream);
    return ceilings;
}

}  // namespace kd::bench
