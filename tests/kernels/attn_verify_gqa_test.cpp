#include "kernels/attn_verify_gqa/attn_verify_gqa.h"

#include <algorithm>
#include <numeric>

#include "kernel_test.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_cases.h"
#include "kernels/cases/random.h"

namespace kd {
namespace {

std::vector<float> run(AttnVerifyGqaParams params, int64_t rows, int64_t max_keys, Stream& stream) {
    std::vector<float> out = nan_filled(rows * params.heads * params.head_dim);
    std::vector<float> scratch = nan_filled(attn_verify_gqa_scratch_floats(
        params.heads, params.head_dim, max_keys, stream.threads->threads()));
    params.out = out.data();
    params.scratch = scratch.data();
    attn_verify_gqa(params, stream);
    return out;
}

TEST(AttnVerifyGqa, AgreesWithTheReference) {
    ThreadPool threads(2);
    Stream stream{&threads, Kernels::fast};
    Stream reference{&threads, Kernels::reference};
    for (const AttnVerifyGqaCase& test : attn_verify_gqa_cases()) {
        SCOPED_TRACE(test.name);
        const AttnVerifyGqaInputs in = make_attn_verify_gqa_inputs(test);
        std::vector<std::vector<float>> results;
        for_each_target([&] {
            results.push_back(run(in.params, in.rows, in.max_keys, stream));
            EXPECT_TRUE(same_bits(results.back(), run(in.params, in.rows, in.max_keys, stream)));
        });
        const std::vector<float> exact = run(in.params, in.rows, in.max_keys, reference);
        for (const std::vector<float>& result : results) {
            EXPECT_TRUE(within(result, exact, test.heads * test.head_dim,
                               [&](size_t) { return attn_verify_gqa_tolerance(test); }));
        }
    }
}

/// One path of tokens, whose positions have fixed keys, values and queries; it is attended to in
/// different ways, and the output of its last row must be the same to the bit in all of them.
class Path {
  public:
    static constexpr int32_t kHeads = 3;
    static constexpr int32_t kKvHeads = 1;
    static constexpr int32_t kDim = 20;  // not whole vectors on any target

    Path(int32_t keys, DType type, uint32_t seed) : keys_(keys), random_(seed), type_(type) {
        q_ = random_.values(int64_t{keys} * kHeads * kDim);
        k_ = random_.values(int64_t{keys} * kDim);
        v_ = random_.values(int64_t{keys} * kDim);
    }

    /// The last `tail` positions are new rows among `rows` rows: as a causal chunk or on a random
    /// tree whose other nodes, and all unused slots, hold NaN. Returns the last position's output.
    std::vector<float> attend(int32_t tail, int32_t rows, bool tree, uint32_t seed,
                              Stream& stream) {
        CaseRandom random(seed);
        const int32_t slots = keys_ + rows + 7;
        KvView kv{type_, 1, slots, kKvHeads, kDim, nullptr};
        std::vector<std::byte> cache(static_cast<size_t>(kv.bytes()), std::byte{0xff});
        kv.data = cache.data();
        std::vector<int32_t> free(static_cast<size_t>(slots));
        std::iota(free.begin(), free.end(), 0);
        for (size_t i = free.size() - 1; i > 0; --i) {
            std::swap(free[i],
                      free[static_cast<size_t>(random.below(static_cast<int32_t>(i) + 1))]);
        }
        const int32_t context = keys_ - tail;
        const std::vector<int32_t> context_slots(free.begin(), free.begin() + context);
        const std::vector<int32_t> row_slots(free.begin() + context, free.begin() + context + rows);
        for (int32_t i = 0; i < context; ++i) write(kv, context_slots[static_cast<size_t>(i)], i);

        // Which rows are the path: in a chunk the first ones, in a tree a random rising choice.
        std::vector<int32_t> nodes(static_cast<size_t>(rows));
        std::iota(nodes.begin(), nodes.end(), 0);
        while (tree && std::ssize(nodes) > tail) {
            nodes.erase(nodes.begin() + 1 +
                        random.below(static_cast<int32_t>(std::ssize(nodes)) - 1));
        }
        nodes.resize(static_cast<size_t>(tail));
        std::vector<int32_t> depth(static_cast<size_t>(rows), 0);
        std::vector<uint64_t> words(static_cast<size_t>(rows) * kAncestorWords, 0);
        for (int32_t node = 0; node < rows; ++node) {
            const auto on_path = std::lower_bound(nodes.begin(), nodes.end(), node);
            int32_t parent = node == 0 ? -1 : random.below(node);
            if (on_path != nodes.end() && *on_path == node) {
                parent = on_path == nodes.begin() ? -1 : *(on_path - 1);
                write(kv, row_slots[static_cast<size_t>(node)],
                      context + static_cast<int32_t>(on_path - nodes.begin()));
            }
            uint64_t* own = &words[static_cast<size_t>(node) * kAncestorWords];
            if (parent >= 0) {
                depth[static_cast<size_t>(node)] = depth[static_cast<size_t>(parent)] + 1;
                std::copy_n(&words[static_cast<size_t>(parent) * kAncestorWords], kAncestorWords,
                            own);
            }
            own[node / 64] |= uint64_t{1} << (node % 64);
        }
        const int32_t last = nodes.back();
        std::vector<float> q = random.values(int64_t{rows} * kHeads * kDim);
        std::copy_n(q_.begin() + (keys_ - 1) * kHeads * kDim, kHeads * kDim,
                    q.begin() + last * kHeads * kDim);
        AttnSegment segment{.rows = rows, .context = context_slots, .slots = row_slots};
        if (tree) {
            segment.depth = depth;
            segment.ancestors = words;
        }
        const AttnVerifyGqaParams params{.heads = kHeads,
                                         .kv_heads = kKvHeads,
                                         .head_dim = kDim,
                                         .scale = 0.25f,
                                         .q = q.data(),
                                         .q_stride = kHeads * kDim,
                                         .segments = std::span(&segment, 1),
                                         .kv = kv};
        const std::vector<float> out = run(params, rows, context + rows, stream);
        return {out.begin() + last * kHeads * kDim, out.begin() + (last + 1) * kHeads * kDim};
    }

  private:
    void write(const KvView& kv, int32_t slot, int32_t position) const {
        for (int32_t i = 0; i < kDim; ++i) {
            const float pair[2] = {k_[static_cast<size_t>(position * kDim + i)],
                                   v_[static_cast<size_t>(position * kDim + i)]};
            std::byte* rows[2] = {kv.layer(0).k, kv.layer(0).v};
            for (int side = 0; side < 2; ++side) {
                std::byte* to = rows[side] + slot * kv.row_bytes() + bytes_of(type_, i);
                const uint16_t half = f32_to_f16(pair[side]);
                if (type_ == DType::f16) std::memcpy(to, &half, sizeof half);
                if (type_ == DType::f32) std::memcpy(to, &pair[side], sizeof(float));
            }
        }
    }

    int32_t keys_;
    CaseRandom random_;
    DType type_;
    std::vector<float> q_, k_, v_;
};

TEST(AttnVerifyGqa, APathIsTheSameHoweverItComes) {
    ThreadPool one(1), two(2), three(3);
    for_each_target([&] {
        // Every context modulo 64, once below and once above a whole block.
        for (int32_t keys = 60; keys < 60 + 64; ++keys) {
            SCOPED_TRACE(testing::Message() << keys << " keys");
            Path path(keys + 64 * (keys % 2), keys % 3 == 0 ? DType::f32 : DType::f16, 5);
            Stream stream{&one, Kernels::fast};
            const std::vector<float> plain = path.attend(1, 1, false, 1, stream);
            for (const float value : plain) ASSERT_TRUE(std::isfinite(value));
            Stream others[] = {{&two, Kernels::fast}, {&three, Kernels::fast}};
            ASSERT_TRUE(same_bits(path.attend(1, 1, true, 2, others[0]), plain)) << "root alone";
            ASSERT_TRUE(same_bits(path.attend(5, 5, true, 3, others[1]), plain)) << "chain";
            ASSERT_TRUE(same_bits(path.attend(4, 13, true, 4, others[0]), plain)) << "tree";
            ASSERT_TRUE(same_bits(path.attend(9, 128, true, 5, others[1]), plain)) << "large tree";
            ASSERT_TRUE(same_bits(path.attend(20, 20, false, 6, stream), plain)) << "chunk";
            ASSERT_TRUE(same_bits(path.attend(11, 19, false, 7, others[0]), plain)) << "early row";
        }
    });
}

TEST(AttnVerifyGqa, BatchesAndThreadsChangeNothing) {
    const AttnVerifyGqaCase test{"",
                                 6,
                                 2,
                                 24,
                                 DType::f16,
                                 {{70, 20, false},
                                  {5, 3, true},
                                  {64, 64, true},
                                  {0, 9, false},
                                  {191, 1, true},
                                  {57, 16, false, true}},
                                 44};
    const AttnVerifyGqaInputs in = make_attn_verify_gqa_inputs(test);
    ThreadPool one(1), two(2), three(3);
    for_each_target([&] {
        Stream stream{&one, Kernels::fast};
        std::vector<float> alone;
        for (const AttnSegment& segment : in.segments) {
            AttnVerifyGqaParams params = in.params;
            AttnSegment first = segment;
            first.first_row = 0;
            params.q += int64_t{segment.first_row} * params.q_stride;
            params.segments = std::span(&first, 1);
            const std::vector<float> out = run(params, segment.rows, in.max_keys, stream);
            alone.insert(alone.end(), out.begin(), out.end());
        }
        for (ThreadPool* pool : {&one, &two, &three}) {
            Stream other{pool, Kernels::fast};
            EXPECT_TRUE(same_bits(run(in.params, in.rows, in.max_keys, other), alone));
        }
    });
}

TEST(AttnVerifyGqa, NotANumberOnThePathReachesTheOutput) {
    const AttnVerifyGqaCase test{"", 1, 1, 16, DType::f16, {{80, 2, false}}, 3};
    AttnVerifyGqaInputs in = make_attn_verify_gqa_inputs(test);
    const KvLayer layer = in.params.kv.layer(1);
    const uint16_t nan_bits = 0x7e00;
    std::memcpy(layer.k + in.segments[0].context[3] * in.params.kv.row_bytes(), &nan_bits, 2);
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    for_each_target([&] {
        for (const float value : run(in.params, in.rows, in.max_keys, stream)) {
            EXPECT_TRUE(std::isnan(value));
        }
    });
}

}  // namespace
}  // namespace kd
