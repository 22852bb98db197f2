// GGUF files as they should be: what is read is what was written.
#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "support/gguf_writer.h"
#include "support/tiny_model.h"

namespace kd {
namespace {

std::string message_of(const auto& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "nothing was thrown";
}

/// Expects an Error that names every one of `parts`.
void expect_refused(const auto& action, const std::vector<std::string>& parts) {
    const std::string message = message_of(action);
    for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    }
}

std::vector<float> ramp(size_t count, float step = 0.125f) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = step * (static_cast<float>(i % 37) - 18);
    return values;
}

GgufWriter every_metadata_type() {
    GgufWriter writer;
    writer.set("u8", uint8_t{200});
    writer.set("i8", int8_t{-100});
    writer.set("u16", uint16_t{60000});
    writer.set("i16", int16_t{-30000});
    writer.set("u32", uint32_t{4000000000});
    writer.set("i32", int32_t{-2000000000});
    writer.set("u64", uint64_t{18446744073709551615u});
    writer.set("i64", std::numeric_limits<int64_t>::min());
    writer.set("f32", 1.5f);
    writer.set("f64", 1e300);
    writer.set("yes", true);
    writer.set("no", false);
    writer.set_string("string", "caf\xc3\xa9 \n");
    writer.set_string("empty string", "");
    writer.set_strings("strings", {"a", "", "ccc"});
    writer.set_strings("no strings", {});
    writer.set_array<uint8_t>("array u8", {0, 255});
    writer.set_array<int8_t>("array i8", {-128, 127});
    writer.set_array<uint16_t>("array u16", {65535});
    writer.set_array<int16_t>("array i16", {-32768});
    writer.set_array<uint32_t>("array u32", {4294967295u});
    writer.set_array<int32_t>("array i32", {-1, 0, 1});
    writer.set_array<uint64_t>("array u64", {9223372036854775807u});
    writer.set_array<uint64_t>("array huge u64", {1, 9223372036854775808u});
    writer.set_array<int64_t>("array i64", {std::numeric_limits<int64_t>::min()});
    writer.set_array<float>("array f32", {0.5f, -2.0f});
    writer.set_array<double>("array f64", {0.5});
    writer.set_array<bool>("array bool", {true, false});
    writer.set_array<int32_t>("array of none", {});
    return writer;
}

class GgufMetadata : public testing::Test {
  protected:
    GgufMetadata() : gguf_((every_metadata_type().write(file_.path()), file_.path())) {}

    TempPath file_;
    GgufFile gguf_;
};

TEST_F(GgufMetadata, NumbersAreWidened) {
    EXPECT_EQ(gguf_.version(), 3u);
    EXPECT_EQ(gguf_.metadata().size(), 29u);
    EXPECT_EQ(gguf_.integer("u8", 0, 255), 200);
    EXPECT_EQ(gguf_.integer("i8", -128, 127), -100);
    EXPECT_EQ(gguf_.integer("u16", 0, 65535), 60000);
    EXPECT_EQ(gguf_.integer("i16", -32768, 0), -30000);
    EXPECT_EQ(gguf_.integer("u32", 0, 4294967295), 4000000000);
    EXPECT_EQ(gguf_.integer("i32", -2147483648, 0), -2000000000);
    EXPECT_EQ(std::get<uint64_t>(*gguf_.find("u64")), 18446744073709551615u);
    EXPECT_EQ(gguf_.integer("i64", std::numeric_limits<int64_t>::min(), 0),
              std::numeric_limits<int64_t>::min());
    EXPECT_EQ(gguf_.number("f32", 1, 2), 1.5);
    EXPECT_EQ(gguf_.number("f64", 0, 1e301), 1e300);
    EXPECT_TRUE(gguf_.boolean_or("yes", false));
    EXPECT_FALSE(gguf_.boolean_or("no", true));
}

TEST_F(GgufMetadata, StringsAndArrays) {
    EXPECT_EQ(gguf_.string("string"), "caf\xc3\xa9 \n");
    EXPECT_EQ(gguf_.string("empty string"), "");
    EXPECT_EQ(gguf_.strings("strings"), (std::vector<std::string_view>{"a", "", "ccc"}));
    EXPECT_TRUE(gguf_.strings("no strings").empty());
    using Integers = std::vector<int64_t>;
    EXPECT_EQ(gguf_.integers("array u8"), (Integers{0, 255}));
    EXPECT_EQ(gguf_.integers("array i8"), (Integers{-128, 127}));
    EXPECT_EQ(gguf_.integers("array u16"), (Integers{65535}));
    EXPECT_EQ(gguf_.integers("array i16"), (Integers{-32768}));
    EXPECT_EQ(gguf_.integers("array u32"), (Integers{4294967295}));
    EXPECT_EQ(gguf_.integers("array i32"), (Integers{-1, 0, 1}));
    EXPECT_EQ(gguf_.integers("array u64"), (Integers{9223372036854775807}));
    EXPECT_EQ(gguf_.integers("array i64"), (Integers{std::numeric_limits<int64_t>::min()}));
    EXPECT_EQ(gguf_.integers("array of none"), Integers{});
    EXPECT_EQ(gguf_.floats("array f32"), (std::vector<float>{0.5f, -2.0f}));
    EXPECT_EQ(std::get<GgufArray>(*gguf_.find("array bool")).count, 2u);
}

TEST_F(GgufMetadata, FallbacksOnlyForAbsentKeys) {
    EXPECT_EQ(gguf_.find("absent"), nullptr);
    EXPECT_EQ(gguf_.integer_or("absent", 7, 0, 1), 7);
    EXPECT_EQ(gguf_.number_or("absent", 0.5, 1, 2), 0.5);
    EXPECT_TRUE(gguf_.boolean_or("absent", true));
    EXPECT_EQ(gguf_.string_or("absent", "x"), "x");
    EXPECT_EQ(gguf_.integer_or("u8", 7, 0, 255), 200);
    EXPECT_EQ(gguf_.number_or("f32", 7, 0, 255), 1.5);
    EXPECT_EQ(gguf_.string_or("empty string", "x"), "");
    expect_refused([&] { gguf_.integer_or("u8", 7, 0, 199); }, {"'u8'", "200", "[0, 199]"});
    expect_refused([&] { gguf_.boolean_or("u8", true); }, {"'u8'", "200", "not a bool"});
    expect_refused([&] { gguf_.string_or("u8", "x"); }, {"'u8'", "200", "not a string"});
    expect_refused([&] { gguf_.number_or("u8", 1, 0, 255); }, {"'u8'", "200", "not a float"});
}

TEST_F(GgufMetadata, RefusalsNameFileKeyAndValue) {
    const std::string& path = file_.path();
    expect_refused([&] { gguf_.integer("absent", 0, 1); }, {path, "'absent'", "missing"});
    expect_refused([&] { gguf_.integer("yes", 0, 1); }, {path, "'yes'", "bool true", "integer"});
    expect_refused([&] { gguf_.integer("f32", 0, 9); }, {path, "'f32'", "1.5", "integer"});
    expect_refused([&] { gguf_.integer("i8", 0, 9); }, {path, "'i8'", "-100", "[0, 9]"});
    expect_refused([&] { gguf_.integer("u64", 0, std::numeric_limits<int64_t>::max()); },
                   {path, "'u64'", "18446744073709551615"});
    expect_refused([&] { gguf_.number("f32", 2, 3); }, {path, "'f32'", "1.5", "[2, 3]"});
    expect_refused([&] { gguf_.string("strings"); }, {path, "'strings'", "array of 3 string"});
    expect_refused([&] { gguf_.strings("string"); }, {path, "'string'", "\\x0a", "not an array"});
    expect_refused([&] { gguf_.strings("array i32"); }, {path, "'array i32'", "3 int32"});
    expect_refused([&] { gguf_.integers("array f32"); }, {path, "'array f32'", "2 float32"});
    expect_refused([&] { gguf_.integers("strings"); }, {path, "'strings'", "3 string"});
    expect_refused([&] { gguf_.integers("array bool"); }, {path, "'array bool'", "2 bool"});
    expect_refused([&] { gguf_.integers("array huge u64"); },
                   {path, "'array huge u64'", "element 1", "9223372036854775808"});
    expect_refused([&] { gguf_.floats("array f64"); }, {path, "'array f64'", "1 float64"});
}

TEST(Gguf, NaNIsInNoRange) {
    const TempPath file;
    GgufWriter writer;
    writer.set("nan", std::numeric_limits<float>::quiet_NaN());
    writer.set("inf", std::numeric_limits<double>::infinity());
    writer.write(file.path());
    const GgufFile gguf(file.path());
    expect_refused([&] { gguf.number("nan", -1e300, 1e300); }, {"'nan'", "nan"});
    expect_refused([&] { gguf.number("inf", -1e300, 1e300); }, {"'inf'", "inf"});
}

TEST(Gguf, TensorsOfEveryTypeAndAlignment) {
    for (const uint32_t alignment : {8u, 32u, 64u, 4096u, 65536u}) {
        const TempPath file;
        GgufWriter writer;
        writer.alignment = alignment;
        writer.set("general.alignment", alignment);
        const std::vector<float> weights = ramp(3 * 256);
        const std::vector<DType> types = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,
                                          DType::q4_0, DType::q4_1, DType::q4_k, DType::q6_k,
                                          DType::q5_0, DType::q5_1, DType::q5_k, DType::iq4_nl};
        for (const DType type : types) writer.add_tensor(name_of(type), type, 3, 256, weights);
        writer.write(file.path());

        const GgufFile gguf(file.path());
        ASSERT_EQ(gguf.tensors().size(), types.size());
        EXPECT_EQ(gguf.find_tensor("F64"), nullptr);
        for (const DType type : types) {
            const FileTensor* tensor = gguf.find_tensor(name_of(type));
            ASSERT_NE(tensor, nullptr) << name_of(type);
            EXPECT_EQ(tensor->type, type);
            EXPECT_EQ(tensor->dims, (std::vector<int64_t>{256, 3}));
            EXPECT_EQ(tensor->rows(), 3);
            EXPECT_EQ(tensor->columns(), 256);
            EXPECT_EQ(tensor->bytes, bytes_of(type, 3 * 256));
            EXPECT_EQ((tensor->data - gguf.file().data()) % alignment, 0);
            const std::string expected = quantise(type, weights);
            EXPECT_EQ(std::memcmp(tensor->data, expected.data(), expected.size()), 0);
            check_finite(*tensor, file.path());
        }
    }
}

TEST(Gguf, QuantisersInvertDequantiseWithinHalfAStep) {
    const std::vector<float> weights = ramp(2 * 256, 0.01f);
    // The reach is 0.36: half a step of 127, 8 and 15 levels, and what f16 rounds off the scale and
    // minimum. Q4_0's code 7 stands for 7/8 of the reach on one side, so a whole step there.
    const auto expect_close = [&](DType type, float tolerance) {
        const std::string data = quantise(type, weights);
        std::vector<float> back(weights.size());
        dequantise(type, reinterpret_cast<const std::byte*>(data.data()), ssize(back), back.data());
        for (size_t i = 0; i < back.size(); ++i) {
            ASSERT_NEAR(back[i], weights[i], tolerance) << name_of(type) << " at " << i;
        }
    };
    expect_close(DType::f32, 0);
    expect_close(DType::f16, 0.0002f);
    expect_close(DType::bf16, 0.0008f);
    expect_close(DType::q8_0, 0.18f / 127 + 0.0002f);
    expect_close(DType::q4_0, 0.18f / 8 + 0.0225f);
    expect_close(DType::q4_1, 0.18f / 15 + 0.0005f);
    // Scales and minima are rounded too: steps grow by 1/62 or 1/126 of the largest and by a
    // fifteenth of what a minimum grows by, 1/63 of the deepest.
    expect_close(DType::q4_k, 0.18f / 15 * (1 + 2.0f / 62) + 0.0005f);
    expect_close(DType::q5_k, 0.18f / 31 * (1 + 2.0f / 62) + 0.0005f);
    expect_close(DType::q5_0, 0.18f / 16 + 0.01125f);
    expect_close(DType::q5_1, 0.18f / 31 + 0.0005f);
    // The widest gap of the table: -127 to -104, of a reach of 113.
    expect_close(DType::iq4_nl, 0.18f * 11.5f / 113 + 0.0005f);
    expect_close(DType::f8_e4m3, 0.18f / 16);
    expect_close(DType::q6_k, 0.09f / 31 * (1 + 2.0f / 126) + 0.0002f);
}

TEST(Gguf, OneToFourDimensionsAndNone) {
    const TempPath file;
    GgufWriter writer;
    writer.add_tensor({"d1", {3}, 0, std::string(12, '\0'), {}});
    writer.add_tensor({"d4", {32, 2, 3, 5}, 8, std::string(30 * 34, '\0'), {}});
    writer.write(file.path());
    const GgufFile gguf(file.path());
    EXPECT_EQ(gguf.find_tensor("d1")->rows(), 1);
    EXPECT_EQ(gguf.find_tensor("d4")->rows(), 30);
    EXPECT_EQ(gguf.find_tensor("d4")->bytes, 30 * 34);

    GgufWriter{}.write(file.path());
    EXPECT_TRUE(GgufFile(file.path()).tensors().empty());
}

TEST(Gguf, TensorsMayLieInAnyOrderWithGaps) {
    const TempPath file;
    GgufWriter writer;
    writer.add_tensor({"second", {8}, 0, std::string(32, 'b'), 64});
    writer.add_tensor({"first", {8}, 0, std::string(32, 'a'), 0});
    writer.add_tensor({"filler", {8}, 0, std::string(32, 'c'), 32});
    writer.write(file.path());
    const GgufFile gguf(file.path());
    EXPECT_LT(gguf.find_tensor("first")->data, gguf.find_tensor("second")->data);
}

TEST(Gguf, Version2HasTheSameLayout) {
    const TempPath file;
    GgufWriter writer = every_metadata_type();
    writer.version = 2;
    writer.add_tensor("w", DType::f32, 0, 32, ramp(32));
    writer.write(file.path());
    const GgufFile gguf(file.path());
    EXPECT_EQ(gguf.version(), 2u);
    EXPECT_EQ(gguf.integer("u8", 0, 255), 200);
}

TEST(Gguf, ReleasedPagesAreReadAgain) {
    const TempPath file;
    std::string bytes(3 * 4096 + 17, 'x');
    bytes.back() = 'y';
    write_test_file(file.path(), bytes);
    const MappedFile mapped(file.path());
    ASSERT_EQ(mapped.bytes(), bytes.size());
    mapped.release(mapped.data(), mapped.bytes());
    mapped.release(mapped.data() + 5000, 10);
    mapped.release(mapped.data() + mapped.bytes(), 0);
    EXPECT_EQ(std::memcmp(mapped.data(), bytes.data(), bytes.size()), 0);
}

TEST(Gguf, CheckFiniteNamesTensorAndPlace) {
    struct Case {
        DType type;
        int64_t byte;  // where the non-finite bits go
        std::string bits;
        std::string place;
    };
    const std::string f16_inf = raw_bytes(uint16_t{0xfc00});
    const std::string f16_nan = raw_bytes(uint16_t{0x7c01});
    const float inf = std::numeric_limits<float>::infinity();
    const std::vector<Case> cases = {
        {DType::f32, 4 * 8191, raw_bytes(-inf), "weight 8191"},
        {DType::f32, 0, raw_bytes(std::nanf("")), "weight 0"},
        {DType::f16, 2 * 4096, f16_nan, "weight 4096"},
        {DType::bf16, 2 * 17, raw_bytes(uint16_t{0x7f80}), "weight 17"},
        {DType::q8_0, 34 * 255, f16_inf, "block 255"},
        {DType::q4_0, 18 * 100, f16_nan, "block 100"},
        {DType::q4_1, 20 * 7, f16_nan, "block 7"},
        {DType::q4_1, 20 * 9 + 2, f16_inf, "block 9"},
        {DType::q4_k, 144 * 31, f16_inf, "block 31"},
        {DType::q4_k, 144 * 3 + 2, f16_nan, "block 3"},
        {DType::q6_k, 210 * 30 + 208, f16_nan, "block 30"},
        {DType::q5_0, 22 * 100, f16_nan, "block 100"},
        {DType::q5_1, 24 * 7, f16_nan, "block 7"},
        {DType::q5_1, 24 * 9 + 2, f16_inf, "block 9"},
        {DType::q5_k, 176 * 31, f16_inf, "block 31"},
        {DType::q5_k, 176 * 3 + 2, f16_nan, "block 3"},
        {DType::iq4_nl, 18 * 255, f16_inf, "block 255"},
    };
    for (const Case& c : cases) {
        const TempPath file;
        // The largest finite values and codes that look like infinities must pass.
        std::string data = quantise(c.type, ramp(8192));
        if (!is_quantised(c.type)) data.replace(0, 4, raw_bytes(uint32_t{0x7bff7bffu}));
        if (c.type == DType::q8_0) data.replace(34 * 3 + 2, 4, "\xff\x7f\xff\x7f");
        if (c.type == DType::q4_k) data.replace(144 * 3 + 4, 4, "\xff\x7f\xff\x7f");
        if (c.type == DType::q5_0) data.replace(22 * 3 + 2, 4, "\xff\x7f\xff\x7f");
        if (c.type == DType::q5_1) data.replace(24 * 3 + 4, 4, "\xff\x7f\xff\x7f");
        if (c.type == DType::q5_k) data.replace(176 * 3 + 4, 4, "\xff\x7f\xff\x7f");
        if (c.type == DType::iq4_nl) data.replace(18 * 3 + 2, 4, "\xff\x7f\xff\x7f");
        if (c.type == DType::q6_k) data.replace(210 * 3, 4, "\xff\x7f\xff\x7f");
        GgufWriter writer;
        writer.add_tensor({"w", {256, 32}, ggml_type(c.type), data, {}});
        writer.write(file.path());
        const GgufFile good(file.path());
        EXPECT_NO_THROW(check_finite(good.tensors()[0], file.path())) << name_of(c.type);

        const TempPath bad_file;
        data.replace(static_cast<size_t>(c.byte), c.bits.size(), c.bits);
        GgufWriter bad_writer;
        bad_writer.add_tensor({"w", {256, 32}, ggml_type(c.type), data, {}});
        bad_writer.write(bad_file.path());
        const GgufFile bad(bad_file.path());
        expect_refused([&] { check_finite(bad.tensors()[0], bad_file.path()); },
                       {bad_file.path(), "'w'", c.place, "not finite"});
    }
}

TEST(Gguf, TinyModelIsReproducible) {
    const std::string bytes = tiny_model().bytes();
    EXPECT_EQ(bytes, tiny_model().bytes());
    EXPECT_NE(bytes, tiny_model({.seed = 2}).bytes());
    const TempPath file;
    write_tiny_model(file.path(), {.tied = false});
    const GgufFile gguf(file.path());
    EXPECT_EQ(gguf.tensors().size(), 1u + 2 * 9 + 2);
    for (const FileTensor& tensor : gguf.tensors()) check_finite(tensor, file.path());
    EXPECT_EQ(gguf.strings("tokenizer.ggml.tokens").size(), 320u);
    EXPECT_EQ(gguf.strings("tokenizer.ggml.merges").size(), 320u - 3 - 256);
    EXPECT_THROW(tiny_model({.hidden = 48}), Error);
    EXPECT_THROW(tiny_model({.heads = 3}), Error);
    EXPECT_THROW(tiny_model({.vocabulary = 258}), Error);
}

TEST(Gguf, TinyModelVocabularyIsSound) {
    for (const int vocabulary : {259, 320, 8192}) {
        const TempPath file;
        write_tiny_model(file.path(), {.vocabulary = vocabulary});
        const GgufFile gguf(file.path());
        const auto& tokens = gguf.strings("tokenizer.ggml.tokens");
        const auto& merges = gguf.strings("tokenizer.ggml.merges");
        EXPECT_EQ(gguf.integers("tokenizer.ggml.token_type").size(), tokens.size());
        std::set<std::string, std::less<>> known(tokens.begin(), tokens.begin() + 259);
        ASSERT_EQ(known.size(), 259u);
        ASSERT_EQ(merges.size(), tokens.size() - 259);
        for (size_t i = 0; i < merges.size(); ++i) {
            const std::string_view left = merges[i].substr(0, merges[i].find(' '));
            const std::string_view right = merges[i].substr(left.size() + 1);
            ASSERT_TRUE(known.contains(left) && known.contains(right)) << merges[i];
            ASSERT_EQ(tokens[259 + i], std::string(left) + std::string(right));
            ASSERT_TRUE(known.emplace(tokens[259 + i]).second) << tokens[259 + i];
        }
    }
}

TEST(Gguf, RealFile) {
    const char* home = std::getenv("HOME");
    const char* cache = std::getenv("KDTREE_CACHE");
    const std::string folder =
        cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/kdtree";
    const std::string path = folder + "/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";

    const GgufFile gguf(path);
    EXPECT_EQ(gguf.version(), 3u);
    EXPECT_EQ(gguf.metadata().size(), 33u);
    ASSERT_EQ(gguf.tensors().size(), 272u);
    int64_t bytes = 0;
    std::map<DType, int> types;
    for (const FileTensor& tensor : gguf.tensors()) {
        bytes += tensor.bytes;
        ++types[tensor.type];
        check_finite(tensor, path);
    }
    EXPECT_EQ(bytes, 96'576'768);
    EXPECT_EQ(types,
              (std::map<DType, int>{{DType::q4_1, 210}, {DType::f32, 61}, {DType::q8_0, 1}}));
    const FileTensor* embedding = gguf.find_tensor("token_embd.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(embedding->type, DType::q8_0);
    EXPECT_EQ(embedding->dims, (std::vector<int64_t>{576, 49152}));
    EXPECT_EQ(embedding->data - gguf.file().data(), 1'785'664);
    EXPECT_EQ(gguf.strings("tokenizer.ggml.tokens").size(), 49152u);
    EXPECT_EQ(gguf.strings("tokenizer.ggml.merges")[0], "\xc4\xa0 t");
    EXPECT_EQ(gguf.integers("tokenizer.ggml.token_type").size(), 49152u);
    EXPECT_EQ(gguf.number("llama.rope.freq_base", 1, 1e6), 100000);
}

}  // namespace
}  // namespace kd
