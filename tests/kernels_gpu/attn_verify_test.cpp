// kdt_attn_verify_mla and kdt_attn_verify_gqa over their case lists, in both paths and modes,
// against the float64 references.
#include <cmath>
#include <tuple>

#include "attn_device.h"
#include "attn_reference.h"

namespace kd {
namespace {

using Variant = std::tuple<size_t, kdt_attn_path, kdt_attn_mode>;

/// Runs one case in one path and mode; the last case stays on the device for its other variants.
template <class Case>
class AttnVerifyCases : public AttnGpuTest, public testing::WithParamInterface<Variant> {
  public:
    static void TearDownTestSuite() { last().reset(); }

  protected:
    struct Last {
        Last(size_t i, AttnDeviceCase on_device_case)
            : index(i), on_device(std::move(on_device_case)) {}
        size_t index;
        AttnDeviceCase on_device;
    };
    static std::unique_ptr<Last>& last() {
        static std::unique_ptr<Last> kept;
        return kept;
    }

    template <class MakeInputs>
    void check(const Case& test, MakeInputs&& make_inputs) {
        const auto [index, path, mode] = GetParam();
        if (!last() || last()->index != index) {
            last().reset();
            last() = std::make_unique<Last>(index, AttnDeviceCase(make_inputs(test)));
            if (HasFailure()) last().reset();
            ASSERT_FALSE(HasFailure());
        }
        AttnDeviceCase& on_device = last()->on_device;
        const std::optional<kdt_attn_shape> shape = shape_of(on_device, path, mode);
        if (!shape) GTEST_SKIP() << "a tree deeper than 64";
        const AttnRun run = run_attn(on_device, *shape);
        if (run.status == KDT_UNSUPPORTED) GTEST_SKIP() << run.message;
        ASSERT_EQ(run.status, KDT_OK) << run.message;
        const testing::AssertionResult agreed = on_device.agrees(run.out, run.lse);
        EXPECT_TRUE(agreed);
        RecordProperty("errors", agreed.message());
        if (reduced_cases()) return;
        const AttnRun again = run_attn(on_device, *shape);
        EXPECT_TRUE(run.out == again.out) << "a second run gave other rows";
        EXPECT_TRUE(std::memcmp(run.lse.data(), again.lse.data(), run.lse.size() * sizeof(float)) ==
                    0)
            << "a second run gave other log-sum-exps";
    }
};

template <class Case>
std::vector<size_t> selected(std::span<const Case> cases) {
    std::vector<size_t> indices;
    for (size_t i = 0; i < cases.size(); ++i) {
        if (cases[i].reduced || !reduced_cases()) indices.push_back(i);
    }
    return indices;
}

std::string variant_name(const std::string& name, const Variant& variant) {
    return name + "_" + name_of(std::get<1>(variant)) + "_" + name_of(std::get<2>(variant));
}

using AttnVerifyMla = AttnVerifyCases<AttnVerifyMlaCase>;
TEST_P(AttnVerifyMla, AgreesWithTheReference) {
    check(attn_verify_mla_cases()[std::get<0>(GetParam())],
          [](const AttnVerifyMlaCase& test) { return make_attn_verify_mla_inputs(test); });
}
INSTANTIATE_TEST_SUITE_P(Cases, AttnVerifyMla,
                         testing::Combine(testing::ValuesIn(selected(attn_verify_mla_cases())),
                                          testing::Values(KDT_PATH_WGMMA, KDT_PATH_MMA_SYNC),
                                          testing::Values(KDT_ATTN_FAST, KDT_ATTN_DETERMINISTIC)),
                         [](const testing::TestParamInfo<Variant>& variant) {
                             return variant_name(
                                 attn_verify_mla_cases()[std::get<0>(variant.param)].name,
                                 variant.param);
                         });

using AttnVerifyGqa = AttnVerifyCases<AttnVerifyGqaCudaCase>;
TEST_P(AttnVerifyGqa, AgreesWithTheReference) {
    check(attn_verify_gqa_cuda_cases()[std::get<0>(GetParam())],
          [](const AttnVerifyGqaCudaCase& test) { return make_attn_verify_gqa_cuda_inputs(test); });
}
INSTANTIATE_TEST_SUITE_P(Cases, AttnVerifyGqa,
                         testing::Combine(testing::ValuesIn(selected(attn_verify_gqa_cuda_cases())),
                                          testing::Values(KDT_PATH_WGMMA, KDT_PATH_MMA_SYNC),
                                          testing::Values(KDT_ATTN_FAST, KDT_ATTN_DETERMINISTIC)),
                         [](const testing::TestParamInfo<Variant>& variant) {
                             return variant_name(
                                 attn_verify_gqa_cuda_cases()[std::get<0>(variant.param)].name,
                                 variant.param);
                         });

// ---- the references themselves ----------------------------------------------------------------

class AttnReferences : public AttnGpuTest {};

void expect_same(const AttnDeviceCase& on_device) {
    std::vector<double> out, lse, host_out, host_lse;
    on_device.attend_exactly(out, lse);
    on_device.attend_on_host(host_out, host_lse);
    double worst = 0;
    for (size_t i = 0; i < out.size(); ++i) {
        worst = std::max(worst, std::fabs(out[i] - host_out[i]));
        ASSERT_FALSE(std::isnan(out[i])) << i;
    }
    for (size_t i = 0; i < lse.size(); ++i) {
        worst = std::max(worst, std::fabs(lse[i] - host_lse[i]));
    }
    EXPECT_LT(worst, 1e-11);
}

TEST_F(AttnReferences, OfTheDeviceIsThatOfTheHost) {
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8, KDT_KV_FP8_MLA656}) {
        SCOPED_TRACE(format);
        AttnVerifyMlaCase test;
        test.heads = 3;
        test.format = format;
        test.step.requests = {{300, 9, CaseTree::random, CaseTail::heavy},
                              {0, 2, CaseTree::chain, CaseTail::light},
                              {65, 0, CaseTree::chain, CaseTail::light},
                              {64, 5, CaseTree::star, CaseTail::light}};
        test.step.page_size = 16;
        test.step.page_starts = format == KDT_KV_FP8;
        test.fused_query = format == KDT_KV_FP8_MLA656;
        test.slot_padding = 16;
        test.logit_cap = format == KDT_KV_FP8 ? 20.0f : 0.0f;
        expect_same(AttnDeviceCase(make_attn_verify_mla_inputs(test)));
        if (format == KDT_KV_FP8_MLA656) continue;
        AttnVerifyGqaCudaCase gqa;
        gqa.heads = 6;
        gqa.kv_heads = 2;
        gqa.head_dim = format == KDT_KV_BF16 ? 96 : 256;
        gqa.format = format;
        gqa.step = test.step;
        gqa.logit_cap = test.logit_cap;
        gqa.sliding_window = format == KDT_KV_BF16 ? 67 : 2;
        gqa.joined_kv = gqa.fused_query = format == KDT_KV_FP8;
        expect_same(AttnDeviceCase(make_attn_verify_gqa_cuda_inputs(gqa)));
    }
}

TEST_F(AttnReferences, ReadE4m3AsTheDeviceDoes) {
    float values[256];
    decode_e4m3_on_device(values);
    for (int32_t code = 0; code < 256; ++code) {
        const float ours = e4m3_value(static_cast<uint8_t>(code));
        EXPECT_TRUE(ours == values[code] || (std::isnan(ours) && std::isnan(values[code]))) << code;
    }
}

/// A step that the kernel must not take for another: the checks above can fail.
TEST_F(AttnReferences, SeeAFaultThroughTheSameChecks) {
    AttnVerifyMlaCase test;
    test.step.requests = {{3000, 9, CaseTree::star, CaseTail::heavy}};
    AttnDeviceCase on_device(make_attn_verify_mla_inputs(test));
    const AttnRun run = run_attn(on_device, on_device.shape());
    ASSERT_EQ(run.status, KDT_OK) << run.message;
    EXPECT_TRUE(on_device.agrees(run.out, run.lse));
    AttnStep other = on_device.step();
    other.ancestors[2 * 7] |= 2;  // node 7 sees its sibling 1
    on_device.set_step(other);
    EXPECT_FALSE(on_device.agrees(run.out, run.lse));
}

}  // namespace
}  // namespace kd
