// The ops of multi-head latent attention on the CPU: mla_append, linear_heads, attn_verify_mla_cpu.
#include <algorithm>
#include <numeric>

#include "kernel_test.h"
#include "kernels/attn_verify_mla/attn_verify_mla_cpu_cases.h"
#include "kernels/cases/random.h"
#include "kernels/linear_heads/linear_heads.h"
#include "kernels/mla_append/mla_append.h"

namespace kd {
namespace {

TEST(LinearHeads, IsEveryHeadsOwnProduct) {
    constexpr int32_t kHeads = 3, kOutputs = 7, kInputs = 5, kXStride = 9, kYStride = 8;
    constexpr int64_t kRows = 4;
    CaseRandom random(1);
    const std::vector<float> weights = random.values(kHeads * kOutputs * kInputs);
    const std::vector<float> x = random.values(kRows * kHeads * kXStride);
    std::vector<std::vector<float>> results;
    ThreadPool one(1), three(3);
    for (Stream stream : {Stream{&one, Kernels::reference}, Stream{&three, Kernels::fast}}) {
        std::vector<float>& y = results.emplace_back(nan_filled(kRows * kHeads * kYStride));
        linear_heads({.rows = kRows,
                      .heads = kHeads,
                      .outputs = kOutputs,
                      .inputs = kInputs,
                      .weights = weights.data(),
                      .x = x.data(),
                      .x_stride = kXStride,
                      .y = y.data(),
                      .y_stride = kYStride},
                     stream);
    }
    EXPECT_TRUE(same_bits(results[0], results[1]));
    for (int64_t at = 0; at < kRows * kHeads; ++at) {
        for (int64_t o = 0; o < kYStride; ++o) {
            const float value = results[0][static_cast<size_t>(at * kYStride + o)];
            if (o >= kOutputs) {
                EXPECT_TRUE(std::isnan(value)) << "written behind the outputs";
                continue;
            }
            double exact = 0;
            for (int64_t i = 0; i < kInputs; ++i) {
                exact +=
                    double{
                        weights[static_cast<size_t>((at % kHeads * kOutputs + o) * kInputs + i)]} *
                    x[static_cast<size_t>(at * kXStride + i)];
            }
            EXPECT_FLOAT_EQ(value, static_cast<float>(exact));
        }
    }
}

struct Appended {
    std::vector<float> q_latent;
    std::vector<std::byte> cache;
    KvView view;
};

constexpr int32_t kAppendHeads = 3, kLatent = 10, kRope = 8, kQStride = 14;

Appended append(std::span<const float> q, std::span<const float> kv,
                std::span<const int32_t> positions, std::span<const int32_t> slots,
                RopePairing pairing, DType type, Stream& stream) {
    const auto rows = std::ssize(positions);
    std::vector<float> angles = nan_filled(rows * kRope);
    rope_angles(positions, {.inverse_frequency = {1, 0.3, 0.1, 0.03}, .magnitude = 1},
                angles.data());
    Appended out;
    out.view = {.type = type,
                .layers = 2,
                .slots = 9,
                .kv_heads = 1,
                .head_dim = kLatent + kRope,
                .rows = KvRows::latent};
    out.cache.assign(static_cast<size_t>(out.view.bytes()), std::byte{0xff});
    out.view.data = out.cache.data();
    out.q_latent = nan_filled(rows * kAppendHeads * (kLatent + kRope));
    mla_append({.rows = rows,
                .heads = kAppendHeads,
                .latent = kLatent,
                .rope = kRope,
                .pairing = pairing,
                .q = q.data(),
                .q_stride = kQStride,
                .q_latent = out.q_latent.data(),
                .kv = kv.data(),
                .angles = angles.data(),
                .slots = slots,
                .cache = out.view,
                .layer = 1},
               stream);
    return out;
}

float cached(const Appended& appended, int64_t slot, int64_t element) {
    float value;
    const KvView& kv = appended.view;
    dequantise(kv.type, kv.layer(1).k + slot * kv.row_bytes() + bytes_of(kv.type, element), 1,
               &value);
    return value;
}

TEST(MlaAppend, WritesLatentRotatedKeyAndRotatedQueries) {
    CaseRandom random(2);
    const std::vector<int32_t> positions = {5, 0, 17, 6}, slots = {8, 2, 3, 0};
    const std::vector<float> q = random.values(4 * kAppendHeads * kQStride);
    const std::vector<float> kv = random.values(4 * (kLatent + kRope));
    ThreadPool one(1), three(3);
    const double frequency[] = {1, 0.3, 0.1, 0.03};
    for (const RopePairing pairing : {RopePairing::adjacent, RopePairing::half}) {
        for (const DType type : {DType::f32, DType::f16}) {
            Stream fast{&three, Kernels::fast};
            Stream reference{&one, Kernels::reference};
            const Appended out = append(q, kv, positions, slots, pairing, type, fast);
            const Appended plain = append(q, kv, positions, slots, pairing, type, reference);
            EXPECT_TRUE(same_bits(out.q_latent, plain.q_latent));
            EXPECT_EQ(out.cache, plain.cache);
            const double tolerance = type == DType::f16 ? 1e-3 : 1e-6;
            for (size_t row = 0; row < 4; ++row) {
                const float* from = kv.data() + row * (kLatent + kRope);
                for (int32_t i = 0; i < kLatent; ++i) {
                    EXPECT_NEAR(cached(out, slots[row], i), from[i], tolerance);
                }
                for (int32_t pair = 0; pair < kRope / 2; ++pair) {
                    const int32_t a = pairing == RopePairing::adjacent ? 2 * pair : pair;
                    const int32_t b = pairing == RopePairing::adjacent ? 2 * pair + 1 : pair + 4;
                    const double angle = positions[row] * frequency[pair];
                    const float* key = from + kLatent;
                    EXPECT_NEAR(cached(out, slots[row], kLatent + a),
                                key[a] * std::cos(angle) - key[b] * std::sin(angle), tolerance);
                    EXPECT_NEAR(cached(out, slots[row], kLatent + b),
                                key[a] * std::sin(angle) + key[b] * std::cos(angle), tolerance);
                    for (size_t h = 0; h < kAppendHeads; ++h) {
                        const float* query =
                            q.data() + (row * kAppendHeads + h + 1) * kQStride - kRope;
                        const float* to = out.q_latent.data() +
                                          (row * kAppendHeads + h) * (kLatent + kRope) + kLatent;
                        EXPECT_NEAR(to[a], query[a] * std::cos(angle) - query[b] * std::sin(angle),
                                    1e-6);
                        EXPECT_NEAR(to[b], query[a] * std::sin(angle) + query[b] * std::cos(angle),
                                    1e-6);
                        EXPECT_TRUE(std::isnan(to[-1])) << "written before the rope part";
                    }
                }
            }
            // Slot 1 and the other layer were nobody's.
            EXPECT_TRUE(std::isnan(cached(out, 1, 0)));
            EXPECT_EQ(std::count(out.cache.begin(),
                                 out.cache.begin() + out.view.slots * out.view.row_bytes(),
                                 std::byte{0xff}),
                      out.view.slots * out.view.row_bytes());
        }
    }
}

TEST(MlaAppendDeathTest, CacheOfAnotherKind) {
    MlaAppendParams params{.rows = 0, .heads = 1, .latent = 4, .rope = 2, .q_stride = 2};
    params.cache = {.type = DType::f32, .layers = 1, .slots = 1, .kv_heads = 1, .head_dim = 6};
    EXPECT_DEATH(mla_append_ref(params), "cache rows of 6, latent rows of 6");
}

std::vector<float> run(AttnVerifyMlaCpuParams params, int64_t rows, Stream& stream) {
    std::vector<float> out = nan_filled(rows * params.heads * params.latent);
    params.out = out.data();
    attn_verify_mla_cpu(params, stream);
    return out;
}

TEST(AttnVerifyMlaCpu, IsGroupedQueryAttentionWithOneLatentHead) {
    ThreadPool one(1), three(3);
    for (const AttnVerifyMlaCpuCase& test : attn_verify_mla_cpu_cases()) {
        SCOPED_TRACE(test.name);
        AttnVerifyMlaCpuInputs in = make_attn_verify_mla_cpu_inputs(test);
        Stream reference{&one, Kernels::reference};
        Stream fast{&three, Kernels::fast};
        const std::vector<float> out = run(in.params, in.gqa.rows, reference);
        EXPECT_TRUE(same_bits(run(in.params, in.gqa.rows, fast), out));
        const int32_t width = test.latent + test.rope;
        std::vector<float> whole = nan_filled(in.gqa.rows * test.heads * width);
        in.gqa.params.out = whole.data();
        attn_verify_gqa_ref(in.gqa.params);
        std::vector<float> expected;
        for (int64_t at = 0; at < in.gqa.rows * test.heads; ++at) {
            expected.insert(expected.end(), whole.begin() + at * width,
                            whole.begin() + at * width + test.latent);
        }
        EXPECT_TRUE(within(out, expected, test.heads * test.latent, [](size_t) { return 1e-6; }));
    }
}

/// One head of attention with keys and values made of the latents, as MLA is defined: in double.
std::vector<double> unabsorbed(std::span<const float> kv_b, std::span<const float> q, int32_t nope,
                               int32_t value, const std::vector<std::span<const float>>& rows,
                               int32_t latent, double scale) {
    const auto made = [&](std::span<const float> row, int32_t at) {
        return std::inner_product(row.begin(), row.begin() + latent, kv_b.begin() + at * latent,
                                  0.0);
    };
    std::vector<double> p;
    for (const std::span<const float> row : rows) {
        double score = 0;
        for (int32_t n = 0; n < nope; ++n) score += q[static_cast<size_t>(n)] * made(row, n);
        score = std::inner_product(row.begin() + latent, row.end(), q.begin() + nope, score);
        p.push_back(std::exp(score * scale));
    }
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    std::vector<double> out(static_cast<size_t>(value), 0.0);
    for (size_t j = 0; j < rows.size(); ++j) {
        for (int32_t v = 0; v < value; ++v) {
            out[static_cast<size_t>(v)] += p[j] / sum * made(rows[j], nope + v);
        }
    }
    return out;
}

/// W_UK on the query and W_UV on the weighted latents give what keys and values of their own do.
TEST(AttnVerifyMlaCpu, AbsorbedIsUnabsorbed) {
    constexpr int32_t kHeads = 3, kNope = 12, kRopePart = 8, kValue = 10, kLatentPart = 20;
    constexpr int32_t kWidth = kLatentPart + kRopePart, kHead = kNope + kRopePart, kKeys = 37;
    CaseRandom random(11);
    std::vector<std::vector<float>> kv_b;  // [heads] each [nope + value, latent]
    std::vector<float> k_b, v_b;
    for (int32_t h = 0; h < kHeads; ++h) {
        const std::vector<float>& w =
            kv_b.emplace_back(random.values((kNope + kValue) * kLatentPart, 0.4f));
        for (int32_t l = 0; l < kLatentPart; ++l) {
            for (int32_t n = 0; n < kNope; ++n) {
                k_b.push_back(w[static_cast<size_t>(n * kLatentPart + l)]);
            }
        }
        v_b.insert(v_b.end(), w.begin() + kNope * kLatentPart, w.end());
    }
    std::vector<float> cache = random.values(kKeys * kWidth);
    const std::vector<float> q = random.values(kHeads * kHead);
    std::vector<int32_t> slots(kKeys);
    std::iota(slots.begin(), slots.end(), 0);
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    std::vector<float> q_latent = nan_filled(kHeads * kWidth);
    linear_heads({.rows = 1,
                  .heads = kHeads,
                  .outputs = kLatentPart,
                  .inputs = kNope,
                  .weights = k_b.data(),
                  .x = q.data(),
                  .x_stride = kHead,
                  .y = q_latent.data(),
                  .y_stride = kWidth},
                 stream);
    for (int32_t h = 0; h < kHeads; ++h) {
        std::copy_n(q.begin() + h * kHead + kNope, kRopePart,
                    q_latent.begin() + h * kWidth + kLatentPart);
    }
    const AttnSegment segment = {
        .rows = 1, .context = std::span(slots).first(kKeys - 1), .slots = std::span(slots).last(1)};
    const std::vector<float> attended =
        run({.heads = kHeads,
             .latent = kLatentPart,
             .rope = kRopePart,
             .scale = 0.3f,
             .q = q_latent.data(),
             .segments = {&segment, 1},
             .kv = {.type = DType::f32,
                    .layers = 1,
                    .slots = kKeys,
                    .kv_heads = 1,
                    .head_dim = kWidth,
                    .data = reinterpret_cast<std::byte*>(cache.data()),
                    .rows = KvRows::latent}},
            1, stream);
    std::vector<float> values = nan_filled(kHeads * kValue);
    linear_heads({.rows = 1,
                  .heads = kHeads,
                  .outputs = kValue,
                  .inputs = kLatentPart,
                  .weights = v_b.data(),
                  .x = attended.data(),
                  .x_stride = kLatentPart,
                  .y = values.data(),
                  .y_stride = kValue},
                 stream);
    std::vector<std::span<const float>> rows;
    for (int32_t j = 0; j < kKeys; ++j)
        rows.push_back(std::span(cache).subspan(static_cast<size_t>(j * kWidth), kWidth));
    for (int32_t h = 0; h < kHeads; ++h) {
        const std::vector<double> exact =
            unabsorbed(kv_b[static_cast<size_t>(h)],
                       std::span(q).subspan(static_cast<size_t>(h * kHead), kHead), kNope, kValue,
                       rows, kLatentPart, 0.3f);
        for (int32_t v = 0; v < kValue; ++v) {
            // Rounded to float32 three times: absorbed query, attended latent, value.
            EXPECT_NEAR(values[static_cast<size_t>(h * kValue + v)], exact[static_cast<size_t>(v)],
                        2e-6)
                << "head " << h << ", element " << v;
        }
    }
}

/// A path of `tail` new rows behind `context` tokens: its last row as the end of a chain, of a
/// causal chunk, and of a tree with other nodes between.
TEST(AttnVerifyMlaCpu, APathIsTheSameHoweverItComes) {
    constexpr int32_t kHeads = 2, kWidth = 24, kLatentPart = 16, kKeys = 70;
    CaseRandom random(7);
    std::vector<std::byte> cache;
    random_weights(random, DType::f16, kKeys + 40, kWidth, 1, cache);
    KvView kv{.type = DType::f16,
              .layers = 1,
              .slots = kKeys + 40,
              .kv_heads = 1,
              .head_dim = kWidth,
              .data = cache.data(),
              .rows = KvRows::latent};
    const std::vector<float> last_query = random.values(kHeads * kWidth);
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    std::vector<int32_t> keys(kKeys);
    std::iota(keys.begin(), keys.end(), 3);
    const auto attend = [&](const AttnSegment& segment, int32_t row) {
        std::vector<float> q = random.values(int64_t{segment.rows} * kHeads * kWidth);
        std::copy(last_query.begin(), last_query.end(), q.begin() + row * kHeads * kWidth);
        const std::vector<float> out = run({.heads = kHeads,
                                            .latent = kLatentPart,
                                            .rope = kWidth - kLatentPart,
                                            .scale = 0.2f,
                                            .q = q.data(),
                                            .segments = {&segment, 1},
                                            .kv = kv},
                                           segment.rows, stream);
        return std::vector<float>(out.begin() + row * kHeads * kLatentPart,
                                  out.begin() + (row + 1) * kHeads * kLatentPart);
    };
    const std::span<const int32_t> path(keys);
    const std::vector<float> plain =
        attend({.rows = 1, .context = path.first(kKeys - 1), .slots = path.last(1)}, 0);
    for (const int32_t tail : {2, 6, 40}) {
        const auto context = path.first(static_cast<size_t>(kKeys - tail));
        EXPECT_TRUE(same_bits(
            attend(
                {.rows = tail, .context = context, .slots = path.last(static_cast<size_t>(tail))},
                tail - 1),
            plain));
        // Every path node is followed by a sibling whose slot holds something else.
        std::vector<int32_t> slots, depth;
        std::vector<uint64_t> words;
        uint64_t ancestors[kAncestorWords] = {};
        for (int32_t i = 0; i < tail; ++i) {
            for (const bool on_path : {true, false}) {
                const auto node = static_cast<int32_t>(slots.size());
                slots.push_back(on_path ? path[static_cast<size_t>(kKeys - tail + i)]
                                        : kKeys + 3 + i % 20);
                depth.push_back(i);
                uint64_t own[kAncestorWords];
                std::copy_n(ancestors, kAncestorWords, own);
                own[node / 64] |= uint64_t{1} << (node % 64);
                words.insert(words.end(), own, own + kAncestorWords);
                if (on_path && i + 1 < tail) continue;
                if (!on_path) ancestors[(node - 1) / 64] |= uint64_t{1} << ((node - 1) % 64);
            }
        }
        EXPECT_TRUE(same_bits(attend({.rows = 2 * tail,
                                      .context = context,
                                      .slots = slots,
                                      .depth = depth,
                                      .ancestors = words},
                                     2 * tail - 2),
                              plain));
    }
}

}  // namespace
}  // namespace kd
