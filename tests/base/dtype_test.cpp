#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "support/flush_to_zero.h"

namespace kd {
namespace {

// The value of a 16-bit float from its definition: (-1)^s * m * 2^e, in double.
double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::quiet_NaN();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// A 16-bit format and the conversions under test.
struct Format {
    int exponent_bits;
    int mantissa_bits;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);

    double value(uint16_t bits) const { return value_of(bits, exponent_bits, mantissa_bits); }
    uint16_t infinity() const {
        return static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
    }
};

class HalfFormats : public testing::TestWithParam<Format> {};

TEST_P(HalfFormats, WidensAllValues) {
    const Format& format = GetParam();
    for (uint32_t b = 0; b < 65536; ++b) {
        const uint16_t bits = static_cast<uint16_t>(b);
        const double expected = format.value(bits);
        const float actual = format.widen(bits);
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(actual)) << b;
            ASSERT_TRUE(std::isnan(format.widen(format.narrow(actual)))) << b;
            continue;
        }
        ASSERT_EQ(double{actual}, expected) << b;
        ASSERT_EQ(std::signbit(actual), (bits >> 15) != 0) << b;
        ASSERT_EQ(format.narrow(actual), bits) << b;
    }
}

TEST_P(HalfFormats, NarrowsToTheNearestAndTiesToEven) {
    const Format& format = GetParam();
    for (uint32_t b = 0; b < format.infinity(); ++b) {
        const uint16_t low = static_cast<uint16_t>(b);
        const uint16_t high = static_cast<uint16_t>(b + 1);
        // Infinity stands where the next finite value would: half-way to it, numbers overflow.
        const double next = high == format.infinity()
                                ? 2 * format.value(low) - format.value(static_cast<uint16_t>(b - 1))
                                : format.value(high);
        const double middle = (format.value(low) + next) / 2;
        const float tie = static_cast<float>(middle);
        ASSERT_EQ(double{tie}, middle) << b;  // a float holds the middle of two 16-bit values
        const uint16_t even = low % 2 == 0 ? low : high;
        const float below = std::nextafter(tie, 0.0f);
        const float above = std::nextafter(tie, std::numeric_limits<float>::infinity());
        for (const int sign : {1, -1}) {
            const uint16_t bit = static_cast<uint16_t>(sign < 0 ? 0x8000 : 0);
            const float s = static_cast<float>(sign);
            ASSERT_EQ(format.narrow(s * tie), even | bit) << b;
            ASSERT_EQ(format.narrow(s * below), low | bit) << b;
            ASSERT_EQ(format.narrow(s * above), high | bit) << b;
        }
    }
}

TEST_P(HalfFormats, NarrowsExtremes) {
    const Format& format = GetParam();
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(format.narrow(infinity), format.infinity());
    EXPECT_EQ(format.narrow(-infinity), format.infinity() | 0x8000);
    EXPECT_EQ(format.narrow(std::numeric_limits<float>::max()), format.infinity());
    EXPECT_EQ(format.narrow(0.0f), 0);
    EXPECT_EQ(format.narrow(-0.0f), 0x8000);
    // NaNs of every payload stay NaN, also those whose high bits are zero.
    for (const uint32_t payload : {1u, 0x1000u, 0x400000u, 0x7fffffu}) {
        const float nan = std::bit_cast<float>(0x7f800000u | payload);
        EXPECT_TRUE(std::isnan(format.value(format.narrow(nan)))) << payload;
        EXPECT_TRUE(std::isnan(format.value(format.narrow(-nan)))) << payload;
    }
}

INSTANTIATE_TEST_SUITE_P(Dtype, HalfFormats,
                         testing::Values(Format{5, 10, f16_to_f32, f32_to_f16},
                                         Format{8, 7, bf16_to_f32, f32_to_bf16}),
                         [](const auto& test) {
                             return test.param.exponent_bits == 5 ? "F16" : "Bf16";
                         });

// A scale of a block may be one of these, whatever a host has told its threads.
TEST(Dtype, SubnormalHalvesWhereSubnormalFloatsAreZero) {
    std::vector<float> widened;
    std::vector<uint16_t> narrowed;
    {
        const FlushToZero flush;
        for (uint16_t bits = 0; bits < 0x400; ++bits) {
            widened.push_back(f16_to_f32(bits));
            narrowed.push_back(f32_to_f16(widened.back()));
        }
    }
    for (uint16_t bits = 0; bits < 0x400; ++bits) {
        EXPECT_EQ(widened[bits], std::ldexp(static_cast<float>(bits), -24)) << bits;
        EXPECT_EQ(narrowed[bits], bits);
    }
}

TEST(Dtype, GeometryAndNames) {
    EXPECT_EQ(bytes_of(DType::f32, 3), 12);
    EXPECT_EQ(bytes_of(DType::f16, 3), 6);
    EXPECT_EQ(bytes_of(DType::bf16, 3), 6);
    EXPECT_EQ(bytes_of(DType::q8_0, 64), 68);
    EXPECT_EQ(bytes_of(DType::q4_0, 64), 36);
    EXPECT_EQ(bytes_of(DType::q4_1, 64), 40);
    EXPECT_EQ(bytes_of(DType::q4_k, 512), 288);
    EXPECT_EQ(bytes_of(DType::q6_k, 512), 420);
    EXPECT_EQ(bytes_of(DType::q5_0, 64), 44);
    EXPECT_EQ(bytes_of(DType::q5_1, 64), 48);
    EXPECT_EQ(bytes_of(DType::q5_k, 512), 352);
    EXPECT_EQ(bytes_of(DType::iq4_nl, 64), 36);
    EXPECT_EQ(bytes_of(DType::f8_e4m3, 3), 3);
    EXPECT_EQ(bytes_of(DType::int4, 64), 32);
    EXPECT_FALSE(is_quantised(DType::f8_e4m3));
    EXPECT_TRUE(is_quantised(DType::int4));
    EXPECT_FALSE(is_quantised(DType::bf16));
    EXPECT_TRUE(is_quantised(DType::q4_1));
    EXPECT_EQ(name_of(DType::q8_0), "Q8_0");
    EXPECT_EQ(name_of(DType::bf16), "BF16");
    EXPECT_EQ(name_of(DType::q4_k), "Q4_K");
    EXPECT_EQ(name_of(DType::q6_k), "Q6_K");
}

std::vector<float> dequantised(DType type, const std::vector<int>& bytes, int64_t elements) {
    std::vector<std::byte> data;
    for (const int byte : bytes) data.push_back(static_cast<std::byte>(byte));
    EXPECT_EQ(static_cast<int64_t>(data.size()), bytes_of(type, elements));
    std::vector<float> out(static_cast<size_t>(elements), NAN);
    dequantise(type, data.data(), elements, out.data());
    return out;
}

// Little-endian f16: 1.0 = 00 3c, 0.5 = 00 38, -2.0 = 00 c0, 0.25 = 00 34.
TEST(Dequantise, Floats) {
    EXPECT_EQ(dequantised(DType::f32, {0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc1}, 2),
              (std::vector<float>{1.0f, -10.0f}));
    EXPECT_EQ(dequantised(DType::f16, {0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00}, 3),
              (std::vector<float>{1.0f, -2.0f, 0x1p-24f}));
    EXPECT_EQ(dequantised(DType::bf16, {0x80, 0x3f, 0x40, 0xc0}, 2),
              (std::vector<float>{1.0f, -3.0f}));
}

TEST(Dequantise, Q8) {
    // Two blocks: scale 0.5, then -2; bytes count up from -16, then down from 127 and -128.
    std::vector<int> bytes = {0x00, 0x38};
    for (int i = 0; i < 32; ++i) bytes.push_back((i - 16) & 0xff);
    bytes.insert(bytes.end(), {0x00, 0xc0});
    for (int i = 0; i < 32; ++i) bytes.push_back(i % 2 == 0 ? 127 - i : 0x80 + i);
    const std::vector<float> out = dequantised(DType::q8_0, bytes, 64);
    for (int i = 0; i < 32; ++i) {
        EXPECT_EQ(out[static_cast<size_t>(i)], 0.5f * static_cast<float>(i - 16));
        const int q = i % 2 == 0 ? 127 - i : -128 + i;
        EXPECT_EQ(out[static_cast<size_t>(32 + i)], -2.0f * static_cast<float>(q));
    }
}

// Byte i holds element i in its low nibble and element i + 16 in its high nibble.
TEST(Dequantise, Q4) {
    std::vector<int> bytes = {0x00, 0x38};
    for (int i = 0; i < 16; ++i) bytes.push_back(i | ((15 - i) << 4));
    bytes.insert(bytes.end(), {0x00, 0xc0});
    for (int i = 0; i < 16; ++i) bytes.push_back(0x3a);
    std::vector<float> out = dequantised(DType::q4_0, bytes, 64);
    for (int i = 0; i < 16; ++i) {
        const size_t e = static_cast<size_t>(i);
        EXPECT_EQ(out[e], 0.5f * static_cast<float>(i - 8));
        EXPECT_EQ(out[e + 16], 0.5f * static_cast<float>(7 - i));
        EXPECT_EQ(out[e + 32], -4.0f);
        EXPECT_EQ(out[e + 48], 10.0f);
    }

    bytes = {0x00, 0x34, 0x00, 0xc0};  // scale 0.25, minimum -2
    for (int i = 0; i < 16; ++i) bytes.push_back(i | ((15 - i) << 4));
    out = dequantised(DType::q4_1, bytes, 32);
    for (int i = 0; i < 16; ++i) {
        const size_t e = static_cast<size_t>(i);
        EXPECT_EQ(out[e], 0.25f * static_cast<float>(i) - 2.0f);
        EXPECT_EQ(out[e + 16], 0.25f * static_cast<float>(15 - i) - 2.0f);
    }
}

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < hex.size(); i += 2) {
        bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    return bytes;
}

// Golden values of outside implementations: tools/make_dtype_fixtures.py.
nlohmann::json fixture() {
    std::ifstream file(KD_TEST_DATA "/base/dtypes.json");
    return nlohmann::json::parse(file);
}

void expect_same_floats(std::span<const float> actual, const std::string& hex) {
    const std::vector<std::byte> expected = bytes_of_hex(hex);
    ASSERT_EQ(actual.size_bytes(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
        float weight;
        std::memcpy(&weight, &expected[i * sizeof weight], sizeof weight);
        ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(weight))
            << "weight " << i << ": " << actual[i] << ", not " << weight;
    }
}

// To the bit what the gguf package makes of random blocks.
TEST(Dequantise, BlocksAsTheGgufPackage) {
    const auto types = fixture().at("blocks");
    for (const DType type : {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                             DType::iq4_nl, DType::q4_k, DType::q5_k, DType::q6_k}) {
        SCOPED_TRACE(name_of(type));
        const auto& blocks = types.at(std::string(name_of(type)));
        ASSERT_EQ(blocks.size(), 4u);
        std::vector<std::byte> data;
        std::string expected;
        for (const auto& entry : blocks) {
            const std::vector<std::byte> block = bytes_of_hex(entry.at("block"));
            ASSERT_EQ(std::ssize(block), block_bytes(type));
            data.insert(data.end(), block.begin(), block.end());
            expected += entry.at("weights").get<std::string>();
        }
        std::vector<float> out(static_cast<size_t>(4 * block_elements(type)), NAN);
        dequantise(type, data.data(), std::ssize(out), out.data());
        expect_same_floats(out, expected);
    }
}

TEST(Dequantise, AllCodesOfF8AsMlDtypes) {
    std::vector<std::byte> codes(256);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
    std::vector<float> out(256, 0);
    dequantise(DType::f8_e4m3, codes.data(), 256, out.data());
    EXPECT_TRUE(std::isnan(out[0x7f]) && std::isnan(out[0xff]));
    EXPECT_EQ(out[0x7e], 448.0f);
    expect_same_floats(out, fixture().at("f8_e4m3"));
}

// Byte i holds element 2i in its low nibble and element 2i + 1 in its high nibble.
TEST(Dequantise, Int4) {
    std::vector<int> bytes;
    for (int i = 0; i < 16; ++i) bytes.push_back(i | ((15 - i) << 4));
    const std::vector<float> out = dequantised(DType::int4, bytes, 32);
    for (int i = 0; i < 16; ++i) {
        const size_t e = static_cast<size_t>(2 * i);
        EXPECT_EQ(out[e], static_cast<float>(i - 8));
        EXPECT_EQ(out[e + 1], static_cast<float>(7 - i));
    }
}

TEST(BlockScales, BlocksAreCutOffAtTheEnds) {
    const float values[] = {1, 2, 3, 4, 5, 6};
    const BlockScales scales{reinterpret_cast<const std::byte*>(values), DType::f32, 4, 8};
    EXPECT_EQ(scales.count(9, 9), 6);
    EXPECT_EQ(scales.count(8, 16), 4);
    EXPECT_EQ(scales.at(0, 0, 9), 1);
    EXPECT_EQ(scales.at(3, 7, 9), 1);
    EXPECT_EQ(scales.at(3, 8, 9), 2);
    EXPECT_EQ(scales.at(4, 0, 9), 3);
    EXPECT_EQ(scales.at(8, 8, 9), 6);
    EXPECT_EQ(BlockScales{}.at(8, 8, 9), 1);
}

}  // namespace
}  // namespace kd
