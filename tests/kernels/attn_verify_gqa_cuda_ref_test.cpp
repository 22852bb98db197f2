#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_ref.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "attn_check.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_cases.h"

namespace kd {
namespace {

struct HostCase {
    explicit HostCase(const AttnVerifyGqaCudaCase& test)
        : in(make_attn_verify_gqa_cuda_inputs(test)),
          query(static_cast<size_t>(in.query_bytes), std::byte{0xff}),
          kv(static_cast<size_t>(in.kv_bytes), std::byte{0xff}) {
        fill_attn_verify_gqa_cuda(in, query.data(), kv.data());
    }

    void attend() {
        const int64_t rows = int64_t{in.step.nodes()} * in.shape.heads;
        out.assign(static_cast<size_t>(rows * in.shape.head_dim), std::nan(""));
        lse.assign(static_cast<size_t>(rows), std::nan(""));
        in.tensors.q = query.data();
        in.tensors.k = kv.data();
        in.tensors.v = kv.data() + in.v_offset_bytes;
        attn_verify_gqa_cuda_ref(in.shape, in.step.batch(), in.tensors, out, lse);
    }

    std::vector<uint16_t> rounded() const {
        std::vector<uint16_t> bits;
        for (const double value : out) bits.push_back(bf16_nearest(static_cast<float>(value)));
        return bits;
    }
    std::vector<float> rounded_lse() const { return {lse.begin(), lse.end()}; }

    testing::AssertionResult agrees(const HostCase& got, bool with_lse = true) const {
        return attn_rows_agree(got.rounded(), with_lse ? got.rounded_lse() : std::vector<float>(),
                               out, lse, {in.step.nodes(), in.shape.heads, in.shape.head_dim},
                               attn_tolerance(static_cast<kdt_kv_format>(in.shape.kv_format)));
    }

    AttnVerifyGqaCudaInputs in;
    std::vector<std::byte> query;
    std::vector<std::byte> kv;
    std::vector<double> out;
    std::vector<double> lse;
};

AttnVerifyGqaCudaCase small(kdt_kv_format format, bool joined, CaseTail tail) {
    AttnVerifyGqaCudaCase test;
    test.name = "small";
    test.heads = 6;
    test.kv_heads = 2;
    test.head_dim = 64;
    test.format = format;
    test.joined_kv = joined;
    test.fused_query = joined;
    test.step.requests = {{130, 7, CaseTree::random, tail}, {0, 3, CaseTree::star, tail}};
    test.step.page_size = 16;
    test.step.page_starts = joined;
    test.step.seed = 3;
    return test;
}

TEST(AttnVerifyGqaCudaRef, OneKeyGivesItsValueForEachHeadOfTheGroup) {
    AttnVerifyGqaCudaCase test = small(KDT_KV_BF16, true, CaseTail::light);
    test.step.requests = {{0, 1, CaseTree::chain, CaseTail::light}};
    HostCase host(test);
    host.attend();
    // Joined: K of head 0, V of head 0, K of head 1, V of head 1.
    const std::byte* row = host.kv.data() + host.in.step.tail_slots[0] * 2 * 4 * 64;
    for (int32_t head = 0; head < 6; ++head) {
        for (int32_t i = 0; i < 64; ++i) {
            EXPECT_EQ(host.out[static_cast<size_t>(head * 64 + i)],
                      bf16_value(word_at(row + 2 * ((head / 3 * 2 + 1) * 64 + i))));
        }
    }
}

TEST(AttnVerifyGqaCudaRef, TheWindowCountsPositions) {
    AttnVerifyGqaCudaCase test = small(KDT_KV_BF16, false, CaseTail::light);
    test.step.requests = {{70, 5, CaseTree::chain, CaseTail::light}};
    for (const int32_t window : {1, 2, 5, 6, 64, 74, 75, 1000}) {
        test.sliding_window = window;
        HostCase host(test);
        host.query.assign(host.query.size(), std::byte{0});
        host.attend();
        for (int32_t node = 0; node < 5; ++node) {
            EXPECT_NEAR(host.lse[static_cast<size_t>(6 * node)],
                        std::log(std::min(window, 71 + node)), 1e-12);
        }
    }
}

TEST(AttnVerifyGqaCudaRef, LayoutsHoldTheSameValues) {
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8}) {
        HostCase apart(small(format, false, CaseTail::heavy));
        HostCase joined(small(format, true, CaseTail::heavy));
        apart.attend();
        joined.attend();
        EXPECT_EQ(apart.out, joined.out);
        EXPECT_EQ(apart.lse, joined.lse);
    }
}

TEST(AttnVerifyGqaCudaRef, PlantedFaultsAreSeen) {
    struct Fault {
        const char* name;
        bool tail;
        std::function<void(HostCase&)> plant;
    };
    const std::vector<Fault> faults = {
        {"a sibling is seen", true, [](HostCase& host) { host.in.step.ancestors[2 * 9] |= 2; }},
        {"the parent is not seen", true,
         [](HostCase& host) { host.in.step.ancestors[2 * 9] &= ~uint64_t{1}; }},
        {"the last context key is missing", false,
         [](HostCase& host) { host.in.step.context[0] -= 1; }},
        {"a page twice", false,
         [](HostCase& host) { host.in.step.pages[5] = host.in.step.pages[4]; }},
        {"the neighbouring K/V head", false,
         [](HostCase& host) { host.in.tensors.kv_head_stride = 0; }},
        {"V scale", false,
         [](HostCase& host) {
             host.in.tensors.v_scale *= 1.01f;
             for (double& value : host.out) value *= 1.01;
         }},
        {"the window is one short", false,
         [](HostCase& host) { host.in.shape.sliding_window -= 1; }},
    };
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8}) {
        for (const CaseTail tail : {CaseTail::light, CaseTail::heavy}) {
            AttnVerifyGqaCudaCase test = small(format, true, tail);
            for (const Fault& fault : faults) {
                SCOPED_TRACE(testing::Message() << fault.name << ", format " << format);
                if (fault.tail != (tail == CaseTail::heavy)) continue;
                const bool of_window = std::string_view(fault.name).starts_with("the window");
                const bool of_scale = std::string_view(fault.name) == "V scale";
                if (of_scale && format == KDT_KV_BF16) continue;
                test.sliding_window = of_window ? 65 : 0;
                HostCase sound(test);
                sound.attend();
                EXPECT_TRUE(sound.agrees(sound));
                HostCase faulty(test);
                fault.plant(faulty);
                faulty.attend();
                EXPECT_FALSE(sound.agrees(faulty));
                EXPECT_FALSE(sound.agrees(faulty, false));
            }
        }
    }
}

}  // namespace
}  // namespace kd
