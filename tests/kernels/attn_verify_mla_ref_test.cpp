#include "kernels/attn_verify_mla/attn_verify_mla_ref.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "attn_check.h"
#include "kernels/attn_verify_mla/attn_verify_mla_cases.h"

namespace kd {
namespace {

/// A case in host memory.
struct HostCase {
    explicit HostCase(const AttnVerifyMlaCase& test)
        : in(make_attn_verify_mla_inputs(test)),
          query(static_cast<size_t>(in.query_bytes), std::byte{0xff}),
          kv(static_cast<size_t>(in.kv_bytes), std::byte{0xff}) {
        fill_attn_verify_mla(in, query.data(), kv.data());
    }

    /// What the reference says; `lse` and `out` are kept.
    void attend() {
        const int64_t rows = int64_t{in.step.nodes()} * in.shape.heads;
        out.assign(static_cast<size_t>(rows * 512), std::nan(""));
        lse.assign(static_cast<size_t>(rows), std::nan(""));
        in.tensors.q_latent = query.data();
        in.tensors.q_rope = query.data() + in.rope_offset_bytes;
        in.tensors.kv = kv.data();
        attn_verify_mla_ref(in.shape, in.step.batch(), in.tensors, out, lse);
    }

    /// Its results as a perfect kernel would round them.
    std::vector<uint16_t> rounded() const {
        std::vector<uint16_t> bits;
        for (const double value : out) bits.push_back(bf16_nearest(static_cast<float>(value)));
        return bits;
    }
    std::vector<float> rounded_lse() const { return {lse.begin(), lse.end()}; }

    testing::AssertionResult agrees(std::span<const uint16_t> got,
                                    std::span<const float> got_lse) const {
        return attn_rows_agree(got, got_lse, out, lse, {in.step.nodes(), in.shape.heads, 512},
                               attn_tolerance(static_cast<kdt_kv_format>(in.shape.kv_format)));
    }

    AttnVerifyMlaInputs in;
    std::vector<std::byte> query;
    std::vector<std::byte> kv;
    std::vector<double> out;
    std::vector<double> lse;
};

AttnVerifyMlaCase small(kdt_kv_format format, CaseTail tail) {
    AttnVerifyMlaCase test;
    test.name = "small";
    test.heads = 2;
    test.format = format;
    test.step.requests = {{130, 7, CaseTree::random, tail}, {0, 3, CaseTree::star, tail}};
    test.step.page_size = 16;
    test.step.seed = 3;
    return test;
}

TEST(AttnVerifyMlaRef, OneKeyGivesItsValue) {
    AttnVerifyMlaCase test = small(KDT_KV_BF16, CaseTail::light);
    test.step.requests = {{0, 1, CaseTree::chain, CaseTail::light}};
    HostCase host(test);
    host.attend();
    const std::byte* row = host.kv.data() + host.in.step.tail_slots[0] * 1152;
    for (int32_t head = 0; head < 2; ++head) {
        double score = 0;
        for (int32_t i = 0; i < 576; ++i) {
            const std::byte* q = i < 512 ? host.query.data() + 2 * (head * 512 + i)
                                         : host.query.data() + 2 * (2 * 512 + head * 64 + i - 512);
            score += double{bf16_value(word_at(q))} * bf16_value(word_at(row + 2 * i));
        }
        EXPECT_NEAR(host.lse[static_cast<size_t>(head)], score * host.in.tensors.scale, 1e-12);
        for (int32_t i = 0; i < 512; ++i) {
            EXPECT_EQ(host.out[static_cast<size_t>(head * 512 + i)],
                      bf16_value(word_at(row + 2 * i)));
        }
    }
}

TEST(AttnVerifyMlaRef, ScoresOfZeroGiveTheMean) {
    AttnVerifyMlaCase test = small(KDT_KV_BF16, CaseTail::light);
    test.step.requests = {{70, 3, CaseTree::chain, CaseTail::light}};
    HostCase host(test);
    host.query.assign(host.query.size(), std::byte{0});
    host.attend();
    for (int32_t node = 0; node < 3; ++node) {
        EXPECT_NEAR(host.lse[static_cast<size_t>(2 * node)], std::log(71 + node), 1e-12);
    }
    double mean = 0;
    for (const CaseRow& row : host.in.step.rows) {
        mean += bf16_value(word_at(host.kv.data() + row.slot * 1152 + 2 * 33)) / 73.0;
    }
    EXPECT_NEAR(host.out[2 * 2 * 512 + 33], mean, 1e-12);
}

TEST(AttnVerifyMlaRef, ARowWithoutKeysIsZero) {
    HostCase host(small(KDT_KV_BF16, CaseTail::light));
    const size_t last = host.in.step.depth.size() - 1;  // of the request without a context
    host.in.step.ancestors[2 * last] = host.in.step.ancestors[2 * last + 1] = 0;
    host.attend();
    EXPECT_EQ(host.lse.back(), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(host.out.back(), 0);
    std::vector<uint16_t> got = host.rounded();
    EXPECT_TRUE(host.agrees(got, host.rounded_lse()));
    got.back() = 0x3f80;
    EXPECT_FALSE(host.agrees(got, host.rounded_lse()));
}

TEST(AttnVerifyMlaRef, TheCapBoundsTheScores) {
    AttnVerifyMlaCase test = small(KDT_KV_BF16, CaseTail::heavy);
    test.step.requests = {{0, 1, CaseTree::chain, CaseTail::heavy}};
    HostCase free(test);
    free.attend();
    test.logit_cap = 0.5f;
    HostCase capped(test);
    capped.attend();
    EXPECT_NEAR(capped.lse[0], 0.5 * std::tanh(free.lse[0] / 0.5), 1e-9);
}

/// Every fault that a kernel may plausibly have must be seen by the checker, in every format: with
/// heavy tails where the fault lies in the tail, with light ones where it lies in the context.
TEST(AttnVerifyMlaRef, PlantedFaultsAreSeen) {
    struct Fault {
        const char* name;
        bool tail;  // shows with heavy tails; the others with light ones
        std::function<void(HostCase&)> plant;
    };
    const std::vector<Fault> faults = {
        {"a sibling is seen", true,
         [](HostCase& host) { host.in.step.ancestors[2 * 9] |= 2; }},  // request 1: node 2, node 1
        {"the parent is not seen", true,
         [](HostCase& host) { host.in.step.ancestors[2 * 9] &= ~uint64_t{1}; }},
        {"a node does not see itself", true,
         [](HostCase& host) { host.in.step.ancestors[2 * 9] &= ~uint64_t{4}; }},
        {"the last context key is missing", false,
         [](HostCase& host) { host.in.step.context[0] -= 1; }},
        {"a tile of keys is missing", false, [](HostCase& host) { host.in.step.context[0] -= 64; }},
        {"two pages are swapped for one", false,
         [](HostCase& host) { host.in.step.pages[1] = host.in.step.pages[2]; }},
        {"a tail slot of another node", true,
         [](HostCase& host) { host.in.step.tail_slots[8] = host.in.step.tail_slots[9]; }},
        {"a scale off by 2 %", false, [](HostCase& host) { host.in.tensors.scale *= 1.02f; }},
        {"rope left out", false,
         [](HostCase& host) {
             for (size_t i = host.query.size() / 576 * 512; i < host.query.size(); ++i) {
                 host.query[i] = std::byte{0};
             }
         }},
    };
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8, KDT_KV_FP8_MLA656}) {
        for (const CaseTail tail : {CaseTail::light, CaseTail::heavy}) {
            HostCase sound(small(format, tail));
            sound.attend();
            EXPECT_TRUE(sound.agrees(sound.rounded(), sound.rounded_lse()));
            EXPECT_TRUE(sound.agrees(sound.rounded(), {}));
            for (const Fault& fault : faults) {
                SCOPED_TRACE(testing::Message() << fault.name << ", format " << format);
                if (fault.tail != (tail == CaseTail::heavy)) continue;
                HostCase faulty(small(format, tail));
                fault.plant(faulty);
                faulty.attend();
                // With the log-sum-exp, and from the rows alone.
                EXPECT_FALSE(sound.agrees(faulty.rounded(), faulty.rounded_lse()));
                EXPECT_FALSE(sound.agrees(faulty.rounded(), {}));
            }
        }
    }
}

TEST(AttnVerifyMlaRef, HeavyTailsShowAMaskFaultAtAnyContext) {
    AttnVerifyMlaCase test = small(KDT_KV_BF16, CaseTail::heavy);
    test.heads = 1;
    test.step.requests = {{20000, 3, CaseTree::star, CaseTail::heavy}};
    HostCase sound(test);
    sound.attend();
    HostCase faulty(test);
    faulty.in.step.ancestors[2 * 2] |= 2;
    faulty.attend();
    EXPECT_FALSE(sound.agrees(faulty.rounded(), {}));
}

TEST(AttnVerifyMlaRef, TheCheckerSeesSingleValues) {
    HostCase host(small(KDT_KV_BF16, CaseTail::light));
    host.attend();
    const std::vector<uint16_t> sound = host.rounded();
    const std::vector<float> lse = host.rounded_lse();
    std::vector<uint16_t> got = sound;
    got[777] = 0xffff;
    EXPECT_FALSE(host.agrees(got, lse));
    got = sound;
    got[777] = 0x7f80;  // infinity
    EXPECT_FALSE(host.agrees(got, lse));
    got = sound;
    for (size_t i = 512; i < 1024; ++i) std::swap(got[i], got[512 + i]);  // one row for another
    EXPECT_FALSE(host.agrees(got, lse));
    got = sound;
    for (size_t i = 512; i < 1024; i += 2) std::swap(got[i], got[i + 1]);
    EXPECT_FALSE(host.agrees(got, lse));
    std::vector<float> wrong_lse = lse;
    wrong_lse[3] *= 1.4427f;  // base 2
    EXPECT_FALSE(host.agrees(sound, wrong_lse));
    wrong_lse = lse;
    wrong_lse[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(host.agrees(sound, wrong_lse));
}

/// What the rounding of values to bf16 costs stays within the tolerance on its own.
TEST(AttnVerifyMlaRef, ToleranceLeavesRoomForRounding) {
    for (const AttnVerifyMlaCase& test : attn_verify_mla_cases()) {
        if (test.name != "edges_h8_bf16" && test.name != "nodes_33") continue;
        SCOPED_TRACE(test.name);
        HostCase host(test);
        host.attend();
        EXPECT_TRUE(host.agrees(host.rounded(), host.rounded_lse()));
    }
}

}  // namespace
}  // namespace kd
