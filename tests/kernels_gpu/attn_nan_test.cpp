// What is not a number in a key or a query reaches the rows that see it, and no others.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "attn_device.h"

namespace kd {
namespace {

class AttnNan : public AttnGpuTest {};

/// A slot of the pool that no row of the step was given: NaN.
int32_t unused_slot(const AttnStep& step) {
    std::vector<bool> used(static_cast<size_t>(step.slots));
    for (const CaseRow& row : step.rows) used[static_cast<size_t>(row.slot)] = true;
    return static_cast<int32_t>(std::ranges::find(used, false) - used.begin());
}

bool is_nan_bf16(uint16_t bits) {
    return (bits & 0x7fff) > 0x7f80;
}

/// Calls `test` with a step of two requests for caches of all formats, MLA also with few rows.
template <class Test>
void for_each_kind(float logit_cap, const Test& test) {
    AttnStepCase many;
    many.requests = {{1000, 9, CaseTree::random, CaseTail::light},
                     {300, 3, CaseTree::chain, CaseTail::light}};
    many.deepest = 6;
    AttnStepCase few;
    few.requests = {{1000, 2, CaseTree::random, CaseTail::light},
                    {300, 1, CaseTree::chain, CaseTail::light}};
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8, KDT_KV_FP8_MLA656}) {
        for (const AttnStepCase& step : {many, few}) {
            SCOPED_TRACE(testing::Message()
                         << "format " << format << ", nodes " << step.requests[0].nodes);
            AttnVerifyMlaCase mla;
            mla.heads = 5;
            mla.format = format;
            mla.logit_cap = logit_cap;
            mla.step = step;
            AttnDeviceCase on_device(make_attn_verify_mla_inputs(mla));
            test(on_device);
        }
    }
    for (const int32_t dim : {64, 128}) {
        for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8}) {
            SCOPED_TRACE(testing::Message() << "dim " << dim << ", format " << format);
            AttnVerifyGqaCudaCase gqa;
            gqa.head_dim = dim;
            gqa.format = format;
            gqa.logit_cap = logit_cap;
            gqa.step = many;
            AttnDeviceCase on_device(make_attn_verify_gqa_cuda_inputs(gqa));
            test(on_device);
        }
    }
}

/// One key of request 0 is NaN, in the middle of its context: all of its rows see it, those of the
/// other requests do not.
void spoil_one_key(AttnDeviceCase& on_device) {
    AttnStep step = on_device.step();
    const int32_t slot = unused_slot(step);
    ASSERT_LT(slot, step.slots);
    const auto first = step.pages_start.empty() ? 0 : static_cast<size_t>(step.pages_start[0]);
    step.pages[first + static_cast<size_t>(step.context[0] / 2)] = slot;
    const int64_t spoilt = int64_t{step.node_start[1]} * on_device.shape().heads;
    on_device.set_step(std::move(step));
    for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
        std::optional<kdt_attn_shape> shape = shape_of(on_device, path, mode);
        ASSERT_TRUE(shape);
        for (const int32_t splits :
             mode == KDT_ATTN_FAST ? std::vector{1, 2, 5, 0} : std::vector{0}) {
            SCOPED_TRACE(testing::Message() << splits << " splits");
            shape->splits = splits;
            if (!served(on_device, *shape)) return;
            const AttnRun run = run_attn(on_device, *shape);
            ASSERT_EQ(run.status, KDT_OK) << run.message;
            const auto nan_values = std::ranges::count_if(run.out, is_nan_bf16);
            EXPECT_EQ(nan_values, spoilt * on_device.value_dim());
            EXPECT_EQ(std::ranges::count_if(run.lse, [](float x) { return std::isnan(x); }),
                      spoilt);
            EXPECT_TRUE(is_nan_bf16(run.out.front()));
        }
    });
}

TEST_F(AttnNan, OfOneKeyShowsInEveryRowThatSeesIt) {
    for (const float logit_cap : {0.0f, 30.0f}) {
        if (reduced_cases() && logit_cap > 0) continue;
        SCOPED_TRACE(logit_cap);
        for_each_kind(logit_cap, spoil_one_key);
    }
}

/// One value of one row's query is NaN or infinite: that row is NaN, the others keep their bits.
void spoil_one_query(AttnDeviceCase& on_device) {
    constexpr uint16_t kNan = 0x7fc0, kInfinity = 0x7f80;
    const int32_t heads = on_device.shape().heads;
    for_each_variant([&](kdt_attn_path path, kdt_attn_mode mode) {
        const std::optional<kdt_attn_shape> shape = shape_of(on_device, path, mode);
        ASSERT_TRUE(shape);
        if (!served(on_device, *shape)) return;
        on_device.set_query(1, 2, 0);
        const AttnRun sound = run_attn(on_device, *shape);
        for (const uint16_t bits : {kNan, kInfinity}) {
            SCOPED_TRACE(bits);
            on_device.set_query(1, 2, bits);
            const AttnRun run = run_attn(on_device, *shape);
            ASSERT_EQ(run.status, KDT_OK) << run.message;
            int64_t wrong = 0;
            for (size_t i = 0; i < run.out.size(); ++i) {
                const bool own = static_cast<int32_t>(i) / on_device.value_dim() == heads + 2;
                wrong += own ? !is_nan_bf16(run.out[i]) : run.out[i] != sound.out[i];
            }
            for (size_t row = 0; row < run.lse.size(); ++row) {
                const bool own = static_cast<int32_t>(row) == heads + 2;
                wrong += own ? !std::isnan(run.lse[row]) : run.lse[row] != sound.lse[row];
            }
            EXPECT_EQ(wrong, 0);
        }
    });
}

TEST_F(AttnNan, OfOneQueryShowsInItsRowAlone) {
    if (reduced_cases()) GTEST_SKIP() << "reads and writes what the cases do";
    for_each_kind(0, spoil_one_query);
}

}  // namespace
}  // namespace kd
