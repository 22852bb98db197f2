// rope_append_cuda against its reference. Values that do not rotate are equal to the bit, FP8 bytes
// and scales too; a rotated value lies between the roundings of the exact one, less and plus the
// error bound of the angle. Everything else in Q and the cache keeps its bytes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "base/dtype.h"
#include "device_array.h"
#include "kernels/cases/random.h"
#include "kernels/rope_append/rope_append_cuda.h"
#include "kernels/rope_append/rope_append_cuda_ref.h"

namespace kd {
namespace {

struct Case {
    const char* name;
    kdt_attn_kind kind;
    kdt_kv_format format;
    int32_t rows;
    int32_t heads, kv_heads, head_dim;
    int32_t rotated;
    kdt_rope_pairing pairing;
    float attention_factor;
    int32_t gap;      // values between the rows and heads of q, k, v and the cache: 0 or 16
    int32_t real;     // row_count on the device; -1: none
    int32_t padding;  // every so many rows has a negative slot; 0: none
};

constexpr auto GQA = KDT_ATTN_GQA;
constexpr auto MLA = KDT_ATTN_MLA;
constexpr auto BF16 = KDT_KV_BF16;
constexpr auto FP8 = KDT_KV_FP8;
constexpr auto FP8_656 = KDT_KV_FP8_MLA656;
constexpr auto ADJACENT = KDT_ROPE_ADJACENT;
constexpr auto HALF = KDT_ROPE_HALF;

constexpr Case kCases[] = {
    {"llama", GQA, BF16, 9, 32, 8, 128, 128, HALF, 1, 0, -1, 0},
    {"llama_adjacent", GQA, BF16, 9, 32, 8, 128, 128, ADJACENT, 1, 16, 7, 3},
    {"one_row", GQA, BF16, 1, 1, 1, 64, 64, HALF, 1, 0, -1, 0},
    {"half_rotated", GQA, BF16, 5, 6, 2, 96, 48, HALF, 1, 16, -1, 0},
    {"three_quarters", GQA, BF16, 5, 12, 1, 128, 96, HALF, 1, 0, 4, 0},
    {"uneven_half", GQA, BF16, 5, 6, 2, 64, 36, HALF, 1, 16, -1, 2},
    {"two_values", GQA, BF16, 3, 2, 1, 64, 2, HALF, 1, 0, -1, 0},
    {"uneven_adjacent", GQA, BF16, 5, 6, 2, 96, 38, ADJACENT, 1, 0, -1, 0},
    {"unrotated", GQA, BF16, 4, 4, 2, 64, 0, HALF, 1, 0, -1, 0},
    {"wide", GQA, BF16, 4, 8, 4, 256, 256, HALF, 1.25f, 0, -1, 0},
    {"fp8", GQA, FP8, 7, 16, 2, 128, 128, HALF, 1, 16, 6, 3},
    {"fp8_adjacent", GQA, FP8, 7, 16, 2, 128, 64, ADJACENT, 1, 0, -1, 0},
    {"fp8_uneven", GQA, FP8, 7, 3, 3, 256, 250, HALF, 1, 0, -1, 0},
    {"mla_8", MLA, BF16, 17, 8, 1, 576, 64, ADJACENT, 1, 0, -1, 0},
    {"mla_128", MLA, BF16, 3, 128, 1, 576, 64, HALF, 1.1f, 16, 3, 2},
    {"mla_partial", MLA, BF16, 5, 12, 1, 576, 34, HALF, 1, 0, -1, 0},
    {"mla_fp8", MLA, FP8, 6, 16, 1, 576, 64, ADJACENT, 1, 16, 5, 4},
    {"mla_656", MLA, FP8_656, 19, 8, 1, 576, 64, ADJACENT, 1, 0, 17, 5},
    {"mla_656_half", MLA, FP8_656, 6, 64, 1, 576, 64, HALF, 1.1f, 16, -1, 0},
    {"mla_656_uneven", MLA, FP8_656, 2, 1, 1, 576, 22, HALF, 1, 0, -1, 0},
    {"many_rows", MLA, BF16, 300, 8, 1, 576, 64, HALF, 1, 0, 280, 7},
};

struct Inputs {
    Case test;
    kdt_rope_append_params params = {};  // without pointers
    std::vector<uint16_t> q, k, v;
    std::vector<uint8_t> k_cache, v_cache;
    std::vector<int32_t> positions, slots, real;
    std::vector<float> frequency;
    int64_t slot_bytes = 0;

    bool mla() const { return test.kind == MLA; }
    int32_t q_dim() const { return mla() ? 64 : test.head_dim; }
    int64_t value_bytes() const { return test.format == BF16 ? 2 : 1; }

    explicit Inputs(const Case& t) : test(t) {
        CaseRandom random(static_cast<uint32_t>(t.rows * 64 + t.heads + t.rotated));
        kdt_rope_append_params& p = params;
        p.struct_bytes = sizeof p;
        p.kind = t.kind;
        p.kv_format = t.format;
        p.rows = t.rows;
        p.heads = t.heads;
        p.kv_heads = t.kv_heads;
        p.head_dim = t.head_dim;
        p.rotated = t.rotated;
        p.pairing = t.pairing;
        p.attention_factor = t.attention_factor;
        p.k_scale = 0.0123f;
        p.v_scale = 0.037f;
        const int32_t k_values = mla() ? 512 : t.kv_heads * t.head_dim;
        const int32_t v_values = mla() ? 64 : k_values;
        p.q_head_stride = q_dim() + t.gap;
        p.q_row_stride = t.heads * p.q_head_stride + t.gap;
        p.k_row_stride = k_values + t.gap;
        p.v_row_stride = v_values + t.gap;
        p.kv_head_stride = t.head_dim + t.gap;
        p.kv_slot_stride = t.format == FP8_656 ? 656 : mla() ? 576 : t.kv_heads * p.kv_head_stride;
        p.kv_slot_stride += t.gap;
        slot_bytes = p.kv_slot_stride * value_bytes();

        auto rows_of = [&](int32_t values, int64_t row_stride, int32_t width, int64_t stride) {
            // NaN in the gaps; magnitudes from 2^-6 to 8, now and then 0.
            std::vector<uint16_t> all(static_cast<size_t>(t.rows * row_stride), 0xffff);
            for (int32_t row = 0; row < t.rows; ++row) {
                for (int32_t i = 0; i < values; ++i) {
                    const auto at =
                        static_cast<size_t>(row * row_stride + i / width * stride + i % width);
                    const float magnitude = std::ldexp(1.0f, random.below(10) - 6);
                    all[at] = random.below(50) == 0 ? 0 : f32_to_bf16(random.value(magnitude));
                }
            }
            return all;
        };
        q = rows_of(t.heads * q_dim(), p.q_row_stride, q_dim(), p.q_head_stride);
        k = rows_of(k_values, p.k_row_stride, k_values, 0);
        v = rows_of(v_values, p.v_row_stride, v_values, 0);
        if (t.format == FP8_656)
            std::fill_n(k.begin() + 128, 128, uint16_t{0});  // a group of zeros

        const int32_t slot_count = t.rows + 9;
        k_cache.assign(static_cast<size_t>(slot_count * slot_bytes), 0xff);
        v_cache.assign(mla() ? 0 : k_cache.size(), 0xff);
        slots.resize(static_cast<size_t>(slot_count));
        std::iota(slots.begin(), slots.end(), 0);
        for (size_t i = slots.size() - 1; i > 0; --i) {
            std::swap(slots[i], slots[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
        }
        slots.resize(static_cast<size_t>(t.rows));
        positions.resize(slots.size());
        for (size_t row = 0; row < slots.size(); ++row) {
            positions[row] = row % 3 == 0 ? 262143 + random.below(129) : random.below(262144);
            if (t.padding > 0 && static_cast<int32_t>(row) % t.padding == t.padding - 1) {
                slots[row] = -1;
            }
        }
        real = {t.real};
        frequency.resize(static_cast<size_t>(t.rotated / 2));
        for (size_t i = 0; i < frequency.size(); ++i) {
            frequency[i] =
                static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / t.rotated));
        }
    }

    /// The reference's Q and caches.
    struct Result {
        std::vector<uint16_t> q;
        std::vector<uint8_t> k_cache, v_cache;
    };
    Result expected() const {
        Result result{q, k_cache, v_cache};
        kdt_rope_append_params p = params;
        p.row_count = test.real < 0 ? nullptr : real.data();
        p.positions = positions.data();
        p.slots = slots.data();
        p.inverse_frequency = frequency.data();
        p.q = result.q.data();
        p.k = k.data();
        p.v = v.data();
        p.k_cache = result.k_cache.data();
        p.v_cache = result.v_cache.data();
        rope_append_cuda_ref(p);
        return result;
    }
};

/// A inputs's arrays on the device.
struct Device {
    DeviceArray<uint16_t> q, k, v;
    DeviceArray<uint8_t> k_cache, v_cache;
    DeviceArray<int32_t> positions, slots, real;
    DeviceArray<float> frequency;
    kdt_rope_append_params params;

    explicit Device(const Inputs& inputs)
        : q(inputs.q),
          k(inputs.k),
          v(inputs.v),
          k_cache(inputs.k_cache),
          v_cache(inputs.v_cache),
          positions(inputs.positions),
          slots(inputs.slots),
          real(inputs.real),
          frequency(inputs.frequency),
          params(inputs.params) {
        params.row_count = inputs.test.real < 0 ? nullptr : real.data();
        params.positions = positions.data();
        params.slots = slots.data();
        params.inverse_frequency = frequency.data();
        params.q = q.data();
        params.k = k.data();
        params.v = v.data();
        params.k_cache = k_cache.data();
        params.v_cache = v_cache.data();
    }
    Inputs::Result result() const { return {q.read(), k_cache.read(), v_cache.read()}; }
};

/// Settles the rotated values: where a value of `got` is allowed, `expected` takes it over.
struct RotatedValues {
    const Case& test;
    kdt_rope_append_params params;  // with the host's frequencies
    int64_t checked = 0;
    int64_t off = 0;
    double worst = 0;  // distance to the nearest allowed value
    std::string where = {};

    /// got, expected: the head's values, `bytes` each; an e4m3 value is stored divided by scale.
    void settle(const uint16_t* head, int32_t position, int64_t bytes, float scale,
                const uint8_t* got, uint8_t* expected, const char* what, int32_t row, int32_t h) {
        for (int32_t i = 0; i < test.rotated; ++i) {
            const double exact = rotated_value(params, head, position, i);
            const int32_t partner = rope_partner(params, i);
            // cos and sin within 2.5e-7, their factor, two products and a sum in float32 (6e-8
            // each), a quotient.
            const double bound =
                5e-7 * test.attention_factor *
                    (std::fabs(bf16_to_f32(head[i])) + std::fabs(bf16_to_f32(head[partner]))) +
                1e-7 * std::fabs(exact);
            const double low = stored(exact - bound, bytes, scale);
            const double high = stored(exact + bound, bytes, scale);
            const double value = read(got + i * bytes, bytes);
            ++checked;
            if (value >= low && value <= high) {
                std::memcpy(expected + i * bytes, got + i * bytes, static_cast<size_t>(bytes));
                continue;
            }
            ++off;
            const double distance = std::max(low - value, value - high);
            if (distance > worst || std::isnan(distance)) {
                worst = distance;
                where = std::string(what) + " row " + std::to_string(row) + " head " +
                        std::to_string(h) + " value " + std::to_string(i) + ": " +
                        std::to_string(value) + ", exact " + std::to_string(exact / scale);
            }
        }
    }
    static double stored(double value, int64_t bytes, float scale) {
        if (bytes == 2) return bf16_to_f32(f32_to_bf16(static_cast<float>(value)));
        return e4m3_value(e4m3_from(value / scale));
    }
    static double read(const uint8_t* at, int64_t bytes) {
        if (bytes == 1) return e4m3_value(*at);
        uint16_t bits;
        std::memcpy(&bits, at, sizeof bits);
        return bf16_to_f32(bits);
    }
};

void compare(const Inputs& inputs, const Inputs::Result& got) {
    const Case& test = inputs.test;
    const kdt_rope_append_params& p = inputs.params;
    Inputs::Result expected = inputs.expected();
    RotatedValues rotated{.test = test, .params = p};
    rotated.params.inverse_frequency = inputs.frequency.data();
    const int32_t rows = test.real < 0 ? test.rows : test.real;
    int32_t padding = 0;
    for (int32_t row = 0; row < rows; ++row) {
        const auto at = static_cast<size_t>(row);
        if (inputs.slots[at] < 0) {
            ++padding;
            continue;
        }
        const int32_t position = inputs.positions[at];
        for (int32_t h = 0; h < test.heads; ++h) {
            const int64_t from = row * p.q_row_stride + h * p.q_head_stride;
            rotated.settle(inputs.q.data() + from, position, 2, 1,
                           reinterpret_cast<const uint8_t*>(got.q.data() + from),
                           reinterpret_cast<uint8_t*>(expected.q.data() + from), "q", row, h);
        }
        const int64_t slot = inputs.slots[at] * inputs.slot_bytes;
        if (inputs.mla()) {
            const bool mixed = test.format == FP8_656;
            const int64_t to = slot + (mixed ? 528 : 512 * inputs.value_bytes());
            rotated.settle(inputs.v.data() + row * p.v_row_stride, position,
                           mixed ? 2 : inputs.value_bytes(), mixed ? 1 : p.k_scale,
                           got.k_cache.data() + to, expected.k_cache.data() + to, "rope key", row,
                           0);
            continue;
        }
        for (int32_t h = 0; h < test.kv_heads; ++h) {
            const int64_t to = slot + h * p.kv_head_stride * inputs.value_bytes();
            rotated.settle(inputs.k.data() + row * p.k_row_stride + h * test.head_dim, position,
                           inputs.value_bytes(), p.k_scale, got.k_cache.data() + to,
                           expected.k_cache.data() + to, "k", row, h);
        }
    }
    EXPECT_EQ(rotated.off, 0) << "of " << rotated.checked << "; worst, by " << rotated.worst << ": "
                              << rotated.where;
    EXPECT_EQ(
        rotated.checked,
        int64_t{rows - padding} * (test.heads + (inputs.mla() ? 1 : test.kv_heads)) * test.rotated);
    EXPECT_TRUE(same_bytes(got.q, expected.q, p.q_row_stride * 2)) << "q";
    EXPECT_TRUE(same_bytes(got.k_cache, expected.k_cache, inputs.slot_bytes)) << "k cache";
    EXPECT_TRUE(same_bytes(got.v_cache, expected.v_cache, inputs.slot_bytes)) << "v cache";
}

using RopeAppendCuda = GpuTest;

TEST_F(RopeAppendCuda, AgreesWithTheReference) {
    for (const Case& test : kCases) {
        SCOPED_TRACE(test.name);
        const Inputs inputs(test);
        const Device first(inputs);
        const Device second(inputs);
        ASSERT_TRUE(ok(rope_append_cuda(first.params, nullptr)));
        ASSERT_TRUE(ok(rope_append_cuda(second.params, nullptr)));
        const Inputs::Result got = first.result();
        compare(inputs, got);
        const Inputs::Result again = second.result();
        EXPECT_TRUE(same_bytes(again.q, got.q, inputs.params.q_row_stride * 2));
        EXPECT_TRUE(same_bytes(again.k_cache, got.k_cache, inputs.slot_bytes));
        EXPECT_TRUE(same_bytes(again.v_cache, got.v_cache, inputs.slot_bytes));
    }
}

TEST_F(RopeAppendCuda, NoRows) {
    kdt_rope_append_params params = {};
    EXPECT_TRUE(ok(rope_append_cuda(params, nullptr)));
}

TEST_F(RopeAppendCuda, CapturedAtTheMaximumAndReplayedWithFewer) {
    Case test = kCases[17];
    ASSERT_EQ(test.format, FP8_656);
    test.real = test.rows;
    const Inputs most(test);
    const Device device(most);
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_TRUE(ok(cudaStreamCreate(&stream)));
    ASSERT_TRUE(ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
    ASSERT_TRUE(ok(rope_append_cuda(device.params, stream)));
    ASSERT_TRUE(ok(cudaStreamEndCapture(stream, &graph)));
    ASSERT_TRUE(ok(cudaGraphInstantiate(&exec, graph, 0)));
    for (int32_t real = 0; real <= test.rows; ++real) {
        SCOPED_TRACE(real);
        test.real = real;
        const Inputs inputs(test);
        device.q.write(inputs.q);
        device.k_cache.write(inputs.k_cache);
        device.real.write(inputs.real);
        ASSERT_TRUE(ok(cudaGraphLaunch(exec, stream)));
        compare(inputs, device.result());
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

TEST_F(RopeAppendCuda, SlotsBeyondTwoToThe31Values) {
    const Inputs inputs({"far", MLA, BF16, 1, 8, 1, 576, 64, HALF, 1, 0, -1, 0});
    const Device device(inputs);
    constexpr int32_t kSlot = 3'800'000;  // 2.19e9 values
    void* far = nullptr;
    if (cudaMalloc(&far, size_t{kSlot + 1} * 1152) != cudaSuccess) {
        (void)cudaGetLastError();
        GTEST_SKIP() << "less than 5 GiB of device memory";
    }
    device.slots.write({kSlot});
    kdt_rope_append_params params = device.params;
    params.k_cache = far;
    EXPECT_TRUE(ok(rope_append_cuda(params, nullptr)));
    std::vector<uint16_t> latent(512);
    EXPECT_TRUE(ok(cudaMemcpy(latent.data(), static_cast<uint8_t*>(far) + int64_t{kSlot} * 1152,
                              1024, cudaMemcpyDeviceToHost)));
    EXPECT_TRUE(std::equal(latent.begin(), latent.end(), inputs.k.begin()));
    cudaFree(far);
}

TEST(RopeAppendCudaRef, E4m3RoundsToNearestEvenAndSaturates) {
    for (int32_t bits = 0; bits < 256; ++bits) {
        const double value = e4m3_value(static_cast<uint8_t>(bits));
        if (std::isnan(value)) continue;
        EXPECT_EQ(e4m3_from(value), bits);
        const double next = e4m3_value(static_cast<uint8_t>(bits + 1));
        if ((bits & 0x7f) >= 0x7e) continue;
        EXPECT_EQ(e4m3_from((value + next) / 2), bits % 2 == 0 ? bits : bits + 1);
    }
    EXPECT_EQ(e4m3_from(464.1), 0x7e);
    EXPECT_EQ(e4m3_from(-1e30), 0xfe);
    EXPECT_EQ(e4m3_from(std::nan("")), 0x7f);
    EXPECT_EQ(e4m3_from(0x1p-10), 0);
    EXPECT_EQ(e4m3_from(0x1.01p-10), 1);
}

}  // namespace
}  // namespace kd
