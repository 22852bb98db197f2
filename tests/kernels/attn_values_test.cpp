#include "kernels/cases/attn_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace kd {
namespace {

TEST(AttnValues, Bf16) {
    EXPECT_EQ(bf16_value(0x3f80), 1.0f);
    EXPECT_EQ(bf16_value(0xc2aa), -85.0f);
    EXPECT_EQ(bf16_nearest(1.0f), 0x3f80);
    EXPECT_EQ(bf16_nearest(1.0f + 0x1p-8f), 0x3f80);  // a tie goes to the even one
    EXPECT_EQ(bf16_nearest(1.0f + 0x3p-8f), 0x3f82);
    EXPECT_EQ(bf16_nearest(1.0f + 0x1.01p-8f), 0x3f81);
    EXPECT_EQ(bf16_nearest(-0.5f), 0xbf00);
    EXPECT_TRUE(std::isnan(bf16_value(0xffff)));
}

TEST(AttnValues, E4m3) {
    // Values of the table in OCP's specification of 8-bit floats.
    EXPECT_EQ(e4m3_value(0x00), 0.0f);
    EXPECT_EQ(e4m3_value(0x01), 0x1p-9f);
    EXPECT_EQ(e4m3_value(0x07), 0x7p-9f);
    EXPECT_EQ(e4m3_value(0x08), 0x1p-6f);
    EXPECT_EQ(e4m3_value(0x38), 1.0f);
    EXPECT_EQ(e4m3_value(0xbc), -1.5f);
    EXPECT_EQ(e4m3_value(0x7e), 448.0f);
    EXPECT_TRUE(std::isnan(e4m3_value(0x7f)));
    EXPECT_TRUE(std::isnan(e4m3_value(0xff)));
    for (int32_t code = 0; code < 0x7e; ++code) {
        const float value = e4m3_value(static_cast<uint8_t>(code));
        EXPECT_LT(value, e4m3_value(static_cast<uint8_t>(code + 1)));
        EXPECT_EQ(e4m3_value(static_cast<uint8_t>(code | 0x80)), -value);
        EXPECT_EQ(e4m3_below(value), code);
    }
    EXPECT_EQ(e4m3_below(1.99f), 0x3f);
    EXPECT_EQ(e4m3_below(1e9f), 0x7e);
}

TEST(AttnValues, RowsOf656Bytes) {
    std::vector<std::byte> row(656);
    row[0] = std::byte{0x38};                 // 1.0, first scale
    row[511] = std::byte{0xb8};               // -1.0, fourth scale
    put_word(&row[512 + 2], 0x4000);          // 2.0f
    put_word(&row[512 + 3 * 4 + 2], 0x4040);  // 3.0f
    put_word(&row[528], 0x3f80);
    put_word(&row[654], 0xbf80);
    EXPECT_EQ(mla_value(KDT_KV_FP8_MLA656, 7, row.data(), 0), 2.0);
    EXPECT_EQ(mla_value(KDT_KV_FP8_MLA656, 7, row.data(), 511), -3.0);
    EXPECT_EQ(mla_value(KDT_KV_FP8_MLA656, 7, row.data(), 512), 1.0);
    EXPECT_EQ(mla_value(KDT_KV_FP8_MLA656, 7, row.data(), 575), -1.0);
    EXPECT_EQ(mla_value(KDT_KV_FP8, 7, row.data(), 511), -7.0);
}

TEST(AttnValues, RowsOfTheSameIdAreTheSame) {
    for (const kdt_kv_format format : {KDT_KV_BF16, KDT_KV_FP8, KDT_KV_FP8_MLA656}) {
        const auto bytes = static_cast<size_t>(mla_row_bytes(format));
        std::vector<std::byte> a(bytes, std::byte{0xff});
        std::vector<std::byte> b(bytes, std::byte{0xff});
        std::vector<std::byte> other(bytes, std::byte{0xff});
        for (int32_t i = 0; i < mla_row_parts(format); ++i) {
            write_mla_value(format, 5, 0.2f, 0.6f, {.slot = 1, .id = 9}, i, a.data());
            write_mla_value(format, 5, 0.2f, 0.6f, {.slot = 2, .id = 9}, i, b.data());
            write_mla_value(format, 5, 0.2f, 0.6f, {.slot = 1, .id = 10}, i, other.data());
        }
        EXPECT_EQ(a, b);
        EXPECT_NE(a, other);
        double squares = 0;
        for (int32_t i = 0; i < 576; ++i) {
            const double value = mla_value(format, 0.6f, a.data(), i);
            EXPECT_TRUE(std::isfinite(value)) << i;
            squares += value * value;
        }
        EXPECT_NEAR(std::sqrt(squares / 576), 0.58, 0.06);
    }
}

TEST(AttnValues, QueryRowsHaveLargestValuesOfTheirOwn) {
    std::set<float> largest;
    int32_t zeros = 0;
    int32_t in_latent = 0;
    for (uint64_t id = 0; id < 40; ++id) {
        for (int32_t head = 0; head < 8; ++head) {
            float top = 0;
            int32_t at = -1;
            for (int32_t i = 0; i < 576; ++i) {
                const float value = std::fabs(bf16_value(query_bits(5, id, head, 576, i)));
                if (value <= top) continue;
                top = value;
                at = i;
            }
            largest.insert(top);
            zeros += at < 0 ? 1 : 0;
            in_latent += at >= 0 && at < 512 ? 1 : 0;
        }
    }
    EXPECT_EQ(largest, (std::set<float>{0, 0.125, 0.25, 0.5, 1, 2, 4}));
    EXPECT_NEAR(zeros, 320 / 16, 12);
    EXPECT_NEAR(in_latent, 320 / 4, 30);
}

}  // namespace
}  // namespace kd
