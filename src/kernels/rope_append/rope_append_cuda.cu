#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/rope_append/rope_append_cuda.h"

namespace kd {

namespace {

using Params = kdt_rope_append_params;

constexpr int32_t kThreads = 128;
constexpr int32_t kItemPairs = 8;  // a thread's share: 8 pairs of one head, 16 values
constexpr int32_t kItemValues = 2 * kItemPairs;
constexpr int32_t kMaxPairs = 128;  // head_dim 256
static_assert(kMaxPairs <= kThreads, "one angle a thread");

constexpr int32_t kLatent = 512;
constexpr int32_t kRope = 64;
constexpr int32_t kLatentItems = kLatent / kItemValues;
constexpr int32_t kRopeItems = kRope / kItemValues;
// KDT_KV_FP8_MLA656: e4m3 latent, a float scale of each 128 values, bf16 rope key.
constexpr int32_t kGroupItems = 128 / kItemValues;
constexpr int32_t kScalesAt = kLatent;
constexpr int32_t kRopeAt = kScalesAt + 4 * kLatent / 128;

/// cos and sin of position * frequency. The product of an int32 and a float is exact in double, and
/// so is the reduction to a part of a turn but for turns * 2^-52: at position 2^18 + 128 and
/// frequency 1 that is 6e-11. What remains is float32: rounding of the part (1e-7) and sincospif (1
/// ulp, 6e-8 to 1.2e-7): together below 2.5e-7, against 2e-3 for half a bf16 step.
__device__ __forceinline__ float2 cos_sin(int32_t position, float frequency) {
    constexpr double kTurnsPerRadian = 0.15915494309189533577;
    const double turns = double(position) * double(frequency) * kTurnsPerRadian;
    const float half_turns = static_cast<float>(2.0 * (turns - rint(turns)));
    float2 result;
    sincospif(half_turns, &result.y, &result.x);
    return result;
}

/// How an item's values lie in its head: two runs of 8, at first and second. Adjacent pairs and
/// values that do not rotate: one run of 16. Halves: the first members of the 8 pairs, then the
/// second ones. Where the number of pairs is no multiple of 8 these are not aligned, and the last
/// item's not even runs: `scattered`, value by value.
struct Layout {
    int32_t first_pair;
    int32_t pairs;  // of the head that rotate
    int32_t first;
    int32_t second;
    bool halves;
    bool scattered;

    __device__ __forceinline__ Layout(int32_t item, int32_t pairs_, bool rotates, bool adjacent)
        : first_pair(kItemPairs * item),
          pairs(pairs_),
          first(kItemValues * item),
          second(first + 8),
          halves(rotates && !adjacent && first_pair < pairs),
          scattered(halves && pairs % 8 != 0) {
        if (halves) {
            first = first_pair;
            second = first + pairs;
        }
    }

    /// The two places of a scattered item's pair in the head.
    __device__ __forceinline__ int2 places(int32_t i) const {
        const int32_t pair = first_pair + i;
        return pair < pairs ? int2{pair, pair + pairs} : int2{2 * pair, 2 * pair + 1};
    }
};

__device__ __forceinline__ void unpack(const uint4& words, float (&values)[8]) {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        values[2 * i] = __uint_as_float(word[i] << 16);
        values[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ void store_run(const float (&values)[8], uint16_t* to) {
    *reinterpret_cast<uint4*>(to) = {
        ptx::pack_bf16(values[0], values[1]), ptx::pack_bf16(values[2], values[3]),
        ptx::pack_bf16(values[4], values[5]), ptx::pack_bf16(values[6], values[7])};
}

/// e4m3(float32(value / scale)), to nearest even, saturating; `low` in the lower byte.
__device__ __forceinline__ uint32_t pack_e4m3(float low, float high, float scale) {
    return __nv_cvt_float2_to_fp8x2({__fdiv_rn(low, scale), __fdiv_rn(high, scale)}, __NV_SATFINITE,
                                    __NV_E4M3);
}

__device__ __forceinline__ uint2 e4m3_run(const float (&values)[8], float scale) {
    uint32_t pair[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
        pair[i] = pack_e4m3(values[2 * i], values[2 * i + 1], scale);
    }
    return {pair[0] | pair[1] << 16, pair[2] | pair[3] << 16};
}

/// An item as it is loaded, bf16. Unpacked later, so that nothing waits for the load until then.
struct RawItem {
    uint4 first;
    uint4 second;

    __device__ __forceinline__ RawItem(const uint16_t* head, const Layout& layout) {
        if (layout.scattered) {
            uint32_t word[8];
#pragma unroll
            for (int32_t i = 0; i < kItemPairs; i += 2) {
                const int2 low = layout.places(i);
                const int2 high = layout.places(i + 1);
                word[i / 2] = head[low.x] | uint32_t{head[high.x]} << 16;
                word[4 + i / 2] = head[low.y] | uint32_t{head[high.y]} << 16;
            }
            first = {word[0], word[1], word[2], word[3]};
            second = {word[4], word[5], word[6], word[7]};
        } else {
            first = *reinterpret_cast<const uint4*>(head + layout.first);
            second = *reinterpret_cast<const uint4*>(head + layout.second);
        }
    }
};

/// An item's values.
struct Item {
    float first[8];
    float second[8];

    __device__ __forceinline__ explicit Item(const RawItem& raw) {
        unpack(raw.first, first);
        unpack(raw.second, second);
    }

    /// angles: (cos, sin) of the row's pairs.
    __device__ __forceinline__ void rotate(const Layout& layout, const float2* angles) {
        const int32_t pairs = layout.pairs - layout.first_pair;
        angles += layout.first_pair;
        if (layout.halves) {
#pragma unroll
            for (int32_t i = 0; i < kItemPairs; ++i) {
                if (i < pairs) rotate_pair(first[i], second[i], angles[i]);
            }
        } else {
#pragma unroll
            for (int32_t i = 0; i < kItemPairs; ++i) {
                float(&run)[8] = i < 4 ? first : second;
                if (i < pairs) rotate_pair(run[2 * (i % 4)], run[2 * (i % 4) + 1], angles[i]);
            }
        }
    }

    __device__ __forceinline__ void store_bf16(uint16_t* head, const Layout& layout) const {
        if (layout.scattered) {
#pragma unroll
            for (int32_t i = 0; i < kItemPairs; ++i) {
                const int2 at = layout.places(i);
                const uint32_t word = ptx::pack_bf16(first[i], second[i]);
                head[at.x] = static_cast<uint16_t>(word);
                head[at.y] = static_cast<uint16_t>(word >> 16);
            }
        } else {
            store_run(first, head + layout.first);
            store_run(second, head + layout.second);
        }
    }

    __device__ __forceinline__ void store_e4m3(uint8_t* head, const Layout& layout,
                                               float scale) const {
        if (layout.scattered) {
#pragma unroll
            for (int32_t i = 0; i < kItemPairs; ++i) {
                const int2 at = layout.places(i);
                const uint32_t word = pack_e4m3(first[i], second[i], scale);
                head[at.x] = static_cast<uint8_t>(word);
                head[at.y] = static_cast<uint8_t>(word >> 8);
            }
            return;
        }
        const uint2 low = e4m3_run(first, scale);
        const uint2 high = e4m3_run(second, scale);
        if (layout.halves) {
            *reinterpret_cast<uint2*>(head + layout.first) = low;
            *reinterpret_cast<uint2*>(head + layout.second) = high;
        } else {
            *reinterpret_cast<uint4*>(head + layout.first) = {low.x, low.y, high.x, high.y};
        }
    }

    __device__ __forceinline__ float largest() const {
        float result = 0;
#pragma unroll
        for (int32_t i = 0; i < 8; ++i) {
            result = fmaxf(result, fmaxf(fabsf(first[i]), fabsf(second[i])));
        }
        return result;
    }

  private:
    static __device__ __forceinline__ void rotate_pair(float& a, float& b, float2 angle) {
        const float rotated = fmaf(a, angle.x, -(b * angle.y));
        b = fmaf(a, angle.y, b * angle.x);
        a = rotated;
    }
};

enum class Role { k, v, q, nothing };  // MLA: latent, rope key

/// A thread's item: which head it reads, where that goes.
struct Source {
    Role role = Role::nothing;
    int32_t head = 0;
    int32_t item = 0;  // in the head

    /// Items of a row: K (or latent), V (or rope key), then as much of Q as rotates.
    template <kdt_attn_kind kKind>
    __device__ __forceinline__ static Source at(const Params& params, int32_t index) {
        const bool mla = kKind == KDT_ATTN_MLA;
        const int32_t k_head_items = mla ? kLatentItems : params.head_dim / kItemValues;
        const int32_t v_head_items = mla ? kRopeItems : k_head_items;
        const int32_t kv_heads = mla ? 1 : params.kv_heads;
        const int32_t q_head_items = (params.rotated + kItemValues - 1) / kItemValues;
        Source source;
        int32_t head_items = k_head_items;
        if (index < kv_heads * k_head_items) {
            source.role = Role::k;
        } else if ((index -= kv_heads * k_head_items) < kv_heads * v_head_items) {
            source.role = Role::v;
            head_items = v_head_items;
        } else if ((index -= kv_heads * v_head_items) < params.heads * q_head_items) {
            source.role = Role::q;
            head_items = q_head_items;
        }
        if (source.role != Role::nothing) {
            source.head = index / head_items;
            source.item = index % head_items;
        }
        return source;
    }
};

// Each thread has one item: loads it, rotates it with the row's angles, writes it to the cache (Q:
// back). A pair is read and written by one thread, so Q needs no other ordering.
//
// Grid: rows x ceil(items of a row / kThreads). Shared memory: the row's angles.
template <kdt_attn_kind kKind, kdt_kv_format kFormat>
__global__ __launch_bounds__(kThreads) void rope_append_kernel(
    const __grid_constant__ Params params) {
    __shared__ float2 s_angles[kMaxPairs];
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();

    const int64_t row = blockIdx.x;
    const int32_t pairs = params.rotated / 2;
    const bool adjacent = params.pairing == KDT_ROPE_ADJACENT;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const Source source =
        Source::at<kKind>(params, static_cast<int32_t>(blockIdx.y) * kThreads + thread);
    const bool rotates =
        source.role == Role::q || source.role == (kKind == KDT_ATTN_MLA ? Role::v : Role::k);
    const Layout layout(source.item, pairs, rotates, adjacent);

    // Everything is loaded before anything is waited for. Padding rows are read as well: they
    // exist, and so no load waits for the row's slot.
    const int64_t slot = params.slots[row];
    const int32_t real_rows = params.row_count == nullptr ? params.rows : *params.row_count;
    const int32_t position = params.positions[row];
    const float frequency = thread < pairs ? params.inverse_frequency[thread] : 0;
    const int32_t head_dim = kKind == KDT_ATTN_MLA ? 0 : params.head_dim;  // MLA: one head
    uint16_t* const q = static_cast<uint16_t*>(params.q) + row * params.q_row_stride +
                        source.head * params.q_head_stride;
    const uint16_t* const k =
        static_cast<const uint16_t*>(params.k) + row * params.k_row_stride + source.head * head_dim;
    const uint16_t* const v =
        static_cast<const uint16_t*>(params.v) + row * params.v_row_stride + source.head * head_dim;
    // A thread without an item reads the row's first one again.
    const RawItem raw(source.role == Role::q ? q : source.role == Role::v ? v : k, layout);

    if (thread < pairs) {
        const float2 angle = cos_sin(position, frequency);
        s_angles[thread] = {angle.x * params.attention_factor, angle.y * params.attention_factor};
    }
    __syncthreads();
    if (source.role == Role::nothing || slot < 0 || row >= real_rows) return;

    Item item(raw);
    if (rotates) item.rotate(layout, s_angles);
    if (source.role == Role::q) {
        item.store_bf16(q, layout);
        return;
    }
    if constexpr (kFormat == KDT_KV_FP8_MLA656) {
        uint8_t* const to = static_cast<uint8_t*>(params.k_cache) + slot * params.kv_slot_stride;
        if (source.role == Role::v) {
            item.store_bf16(reinterpret_cast<uint16_t*>(to + kRopeAt), layout);
            return;
        }
        // The latent's items are the first warp of the row's first block, whole.
        float largest = item.largest();
#pragma unroll
        for (int32_t lanes = 1; lanes < kGroupItems; lanes *= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, lanes));
        }
        const float scale = largest > 0 ? __fdiv_rn(largest, 448.0f) : 1.0f;
        item.store_e4m3(to, layout, scale);
        if (source.item % kGroupItems == 0) {
            reinterpret_cast<float*>(to + kScalesAt)[source.item / kGroupItems] = scale;
        }
    } else {
        constexpr int32_t kValueBytes = kFormat == KDT_KV_BF16 ? 2 : 1;
        const int64_t at =
            (slot * params.kv_slot_stride + source.head * params.kv_head_stride) * kValueBytes;
        const bool mla = kKind == KDT_ATTN_MLA;
        void* const cache = source.role == Role::k || mla ? params.k_cache : params.v_cache;
        const int32_t behind = source.role == Role::v && mla ? kLatent * kValueBytes : 0;
        uint8_t* const to = static_cast<uint8_t*>(cache) + at + behind;
        if constexpr (kFormat == KDT_KV_BF16) {
            item.store_bf16(reinterpret_cast<uint16_t*>(to), layout);
        } else {
            const float scale = source.role == Role::k || mla ? params.k_scale : params.v_scale;
            item.store_e4m3(to, layout, scale);
        }
    }
}
static_assert(kLatentItems == 32 && kThreads % 32 == 0, "MLA656: the latent is one warp");

template <kdt_attn_kind kKind, kdt_kv_format kFormat>
cudaError_t launch(const Params& params, cudaStream_t stream) {
    const bool mla = kKind == KDT_ATTN_MLA;
    const int32_t kv_items =
        mla ? kLatentItems + kRopeItems : 2 * params.kv_heads * (params.head_dim / kItemValues);
    const int32_t q_items = params.heads * ((params.rotated + kItemValues - 1) / kItemValues);

    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = {static_cast<unsigned>(params.rows),
                      static_cast<unsigned>((kv_items + q_items + kThreads - 1) / kThreads), 1};
    config.blockDim = kThreads;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, rope_append_kernel<kKind, kFormat>, params);
}

}  // namespace

cudaError_t rope_append_cuda(const kdt_rope_append_params& params, cudaStream_t stream) {
    if (params.rows <= 0) return cudaSuccess;
    const bool bf16 = params.kv_format == KDT_KV_BF16;
    if (params.kind == KDT_ATTN_GQA) {
        return bf16 ? launch<KDT_ATTN_GQA, KDT_KV_BF16>(params, stream)
                    : launch<KDT_ATTN_GQA, KDT_KV_FP8>(params, stream);
    }
    if (params.kv_format == KDT_KV_FP8_MLA656) {
        return launch<KDT_ATTN_MLA, KDT_KV_FP8_MLA656>(params, stream);
    }
    return bf16 ? launch<KDT_ATTN_MLA, KDT_KV_BF16>(params, stream)
                : launch<KDT_ATTN_MLA, KDT_KV_FP8>(params, stream);
}

}  // namespace kd
