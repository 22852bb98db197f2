// safetensors files as the package writes and judges them (tools/make_safetensors_fixtures.py), and
// files that lie: each is refused by name.
#include "formats/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "expect_refusal.h"
#include "support/safetensors_writer.h"

namespace kd {
namespace {

constexpr std::string_view kEight = "01234567";

nlohmann::json fixture() {
    std::ifstream file(KD_TEST_DATA "/formats/safetensors.json");
    return nlohmann::json::parse(file);
}

std::string bytes_of_hex(const std::string& hex) {
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) {
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return bytes;
}

std::string_view data_of(const SafetensorsEntry& entry) {
    return {reinterpret_cast<const char*>(entry.data), static_cast<size_t>(entry.bytes)};
}

/// The member of a tensor in a header.
std::string member(std::string_view name, std::string_view type, std::string_view shape,
                   uint64_t begin, uint64_t end) {
    return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, type,
                       shape, begin, end);
}

std::string object(std::string_view members) {
    return fmt::format("{{{}}}", members);
}

void expect_refused(const std::string& path, ErrorCode code,
                    const std::vector<std::string>& parts) {
    expect_refusal([&] { const SafetensorsFile file(path); }, path, code, parts);
}

void expect_bytes_refused(const std::string& bytes, const std::vector<std::string>& parts,
                          ErrorCode code = ErrorCode::corrupt) {
    const TempPath file(".safetensors");
    write_test_file(file.path(), bytes);
    expect_refused(file.path(), code, parts);
}

/// Of a header of the members in braces.
void expect_header_refused(const std::string& members, const std::vector<std::string>& parts,
                           ErrorCode code = ErrorCode::corrupt) {
    expect_bytes_refused(safetensors_bytes(object(members), kEight), parts, code);
}

/// Writes over the start of an existing file; without truncation, which is slow on some disks.
void overwrite(const std::string& path, std::string_view bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.write(bytes.data(), std::ssize(bytes)).flush());
}

TEST(Safetensors, WhatThePackageWrote) {
    const auto written = fixture().at("written");
    const TempPath path(".safetensors");
    write_test_file(path.path(), bytes_of_hex(written.at("file")));
    const SafetensorsFile file(path.path());
    EXPECT_EQ(file.metadata(), (written.at("metadata").get<std::map<std::string, std::string>>()));
    ASSERT_EQ(file.entries().size(), written.at("tensors").size());
    ASSERT_EQ(file.entries().size(), 15u);
    const SafetensorsEntry* before = nullptr;
    for (const auto& expected : written.at("tensors")) {
        const std::string name = expected.at("name");
        SCOPED_TRACE(name);
        const SafetensorsEntry* entry = file.find(name);
        ASSERT_NE(entry, nullptr);
        EXPECT_EQ(entry->name, name);
        EXPECT_EQ(name_of(entry->type), expected.at("type").get<std::string>());
        EXPECT_EQ(entry->shape, expected.at("shape").get<std::vector<int64_t>>());
        EXPECT_EQ(data_of(*entry), bytes_of_hex(expected.at("data")));
    }
    for (const SafetensorsEntry& entry : file.entries()) {
        if (before != nullptr) {
            EXPECT_EQ(before->data + before->bytes, entry.data);
        }
        before = &entry;
    }
    EXPECT_EQ(file.find("layer"), nullptr);
    EXPECT_EQ(file.find(""), nullptr);
    EXPECT_EQ(file.find("__metadata__"), nullptr);
}

TEST(Safetensors, JudgesFilesAsThePackageDoes) {
    const auto judged = fixture().at("judged");
    EXPECT_EQ(judged.size(), 35u);
    for (const auto& each : judged) {
        SCOPED_TRACE(each.at("name").get<std::string>());
        const TempPath path(".safetensors");
        write_test_file(path.path(), bytes_of_hex(each.at("file")));
        bool reads = true;
        try {
            const SafetensorsFile file(path.path());
        } catch (const Error& error) {
            reads = false;
        }
        EXPECT_EQ(reads, each.at("reads").get<bool>() && !each.contains("strict"));
    }
}

TEST(Safetensors, NamesAreUnescapedAndOutliveTheMove) {
    const TempPath path(".safetensors");
    write_test_file(
        path.path(),
        safetensors_bytes(
            object(member(R"(\u00e9\ud83d\ude00\/\b\f\n\r\t\"\\)", "U8", "[8]", 0, 8)), kEight));
    SafetensorsFile first(path.path());
    const SafetensorsFile file = std::move(first);
    ASSERT_EQ(file.entries().size(), 1u);
    EXPECT_EQ(file.entries()[0].name, "\xc3\xa9\xf0\x9f\x98\x80/\b\f\n\r\t\"\\");
    EXPECT_EQ(file.find(file.entries()[0].name), &file.entries()[0]);
}

TEST(Safetensors, EveryTypeOfWholeBytes) {
    const std::pair<std::string, size_t> types[] = {
        {"BOOL", 8}, {"U8", 8},  {"I8", 8},  {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
        {"I16", 4},  {"U16", 4}, {"F16", 4}, {"BF16", 4},    {"I32", 2},     {"U32", 2},
        {"F32", 2},  {"I64", 1}, {"U64", 1}, {"F64", 1},     {"C64", 1}};
    for (const auto& [type, count] : types) {
        const TempPath path(".safetensors");
        write_test_file(
            path.path(),
            safetensors_bytes(object(member("w", type, fmt::format("[{}]", count), 0, 8)), kEight));
        const SafetensorsFile file(path.path());
        EXPECT_EQ(name_of(file.entries()[0].type), type);
        EXPECT_EQ(data_of(file.entries()[0]), kEight);
    }
}

TEST(HostileSafetensors, EveryTruncationIsRefused) {
    const std::string bytes = bytes_of_hex(fixture().at("written").at("file"));
    const TempPath file(".safetensors");
    write_test_file(file.path(), bytes);
    ASSERT_NO_THROW(SafetensorsFile(file.path()));
    for (size_t length = bytes.size(); length-- > 0;) {
        ASSERT_EQ(::truncate(file.path().c_str(), static_cast<off_t>(length)), 0);
        EXPECT_THROW(SafetensorsFile(file.path()), Error) << length;
    }
}

TEST(HostileSafetensors, RandomMutationsAreSurvived) {
    constexpr uint64_t kSeed = 20261130;
    RecordProperty("seed", std::to_string(kSeed));
    const std::string bytes = bytes_of_hex(fixture().at("written").at("file"));
    const TempPath path(".safetensors");
    write_test_file(path.path(), bytes);
    const std::string_view pieces[] = {"{",  "}",  "[", "]", ",", ":",
                                       "\"", "\\", "9", "-", ".", "\xff"};
    int loaded = 0;
    for (uint64_t round = 0; round < 2000; ++round) {
        uint32_t index = 0;
        const auto draw = [&](size_t below) {
            return static_cast<size_t>(uniform(kSeed, RngStream::test, round, index++) *
                                       static_cast<double>(below));
        };
        std::string changed = bytes;
        const std::string_view piece = pieces[draw(std::size(pieces))];
        changed.replace(draw(changed.size() - piece.size()), piece.size(), piece);
        overwrite(path.path(), changed);
        try {
            const SafetensorsFile file(path.path());
            ++loaded;  // changed in the data or in a name
        } catch (const Error& error) {
            EXPECT_TRUE(std::string_view(error.what()).starts_with(path.path()));
            EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
        }
    }
    EXPECT_GT(loaded, 20);
    EXPECT_LT(loaded, 1000);
}

TEST(HostileSafetensors, HeaderLengths) {
    const std::string header = object(member("w", "U8", "[8]", 0, 8));
    const auto with_length = [&](uint64_t length) {
        return raw_bytes(length).append(header).append(kEight);
    };
    for (const uint64_t length :
         {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 40, uint64_t{header.size() + 9}}) {
        expect_bytes_refused(with_length(length), {"header length", fmt::format("{}", length)});
    }
    expect_bytes_refused(with_length(header.size() - 1), {"header", "the end"});
    expect_bytes_refused(with_length(0), {"header", "starts with ''"});
    expect_bytes_refused("1234567", {"header length", "ends after 7"});
    // Sparse: nothing of it is written.
    const TempPath big(".safetensors");
    write_test_file(big.path(), raw_bytes(uint64_t{100'000'001}));
    ASSERT_EQ(::truncate(big.path().c_str(), 100'001'000), 0);
    expect_refused(big.path(), ErrorCode::corrupt, {"header length", "100000001 is more than"});
}

TEST(HostileSafetensors, NotAFileToMap) {
    const TempPath path(".safetensors");
    expect_refused(path.path(), ErrorCode::not_found, {"no such file"});
    ASSERT_EQ(::mkfifo(path.path().c_str(), 0600), 0);
    expect_refused(path.path(), ErrorCode::invalid_argument, {"not a regular file"});
    expect_refused(testing::TempDir(), ErrorCode::invalid_argument, {"directory"});
    expect_bytes_refused("", {"is empty"});
    if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
    const TempPath secret(".safetensors");
    write_test_file(secret.path(), safetensors_bytes("{}"));
    ASSERT_EQ(::chmod(secret.path().c_str(), 0), 0);
    expect_refused(secret.path(), ErrorCode::io, {"cannot be opened"});
}

TEST(HostileSafetensors, Json) {
    expect_bytes_refused(safetensors_bytes("[]"), {"header", "starts with '['"});
    expect_header_refused(R"("w":[])", {"tensor 'w'", "'[', not '{'", "byte 5 of the header"});
    expect_header_refused(R"("w":{"dtype":3})", {"tensor 'w'", "dtype", "'3'"});
    expect_header_refused(R"("w":{"shape":{}})", {"tensor 'w'", "shape", "'{', not '['"});
    expect_header_refused(R"("w":{"shape":[[1]]})", {"tensor 'w'", "shape", "whole number"});
    expect_header_refused(R"("w" {})", {"header", "'{', not ':'"});
    expect_header_refused(R"("\x":{})", {"header", "unknown escape"});
    expect_header_refused(R"("\u12g4":{})", {"header", "four hexadecimal digits"});
    expect_header_refused(R"("\ude00":{})", {"header", "surrogate"});
    expect_header_refused(R"("\ud83d\u0041":{})", {"header", "surrogate"});
    expect_header_refused("\"\xc3\":{}", {"header", "not UTF-8"});
    expect_header_refused("\"a\1\":{}", {"header", "control character"});
    expect_header_refused("\"a\\n\1\":{}", {"header", "control character"});
    expect_header_refused(member("w", "U8", "[8]", 0, 8) + ",", {"header", "not '\"'"});
    expect_bytes_refused(safetensors_bytes("{} {}"), {"header", "more than white space"});
    expect_bytes_refused(safetensors_bytes("{\"abc"), {"header", "the end inside a string"});
    expect_bytes_refused(safetensors_bytes("{\"a\\"), {"header", "the end inside a string"});
}

TEST(HostileSafetensors, JsonBombs) {
    const std::string deep(1 << 20, '[');
    expect_header_refused("\"w\":" + deep, {"tensor 'w'"});
    expect_header_refused("\"w\":{\"shape\":" + deep, {"tensor 'w'", "shape"});
    std::string objects;
    for (int i = 0; i < 100000; ++i) objects += "\"a\":{";
    expect_header_refused(objects, {"tensor 'a'", "unknown field 'a'"});
    expect_header_refused(fmt::format("\"{}\":1", std::string(1 << 20, 'n')),
                          {"tensor 'nnn", "...'"});
    std::string dims = "1";
    for (int i = 0; i < 100000; ++i) dims += ",1";
    expect_header_refused(member("w", "U8", "[" + dims + "]", 0, 8), {"'w'", "64 dimensions"});
    expect_header_refused(member("w", "U8", fmt::format("[{}]", std::string(1 << 20, '9')), 0, 8),
                          {"'w'", "shape", "beyond 2^63 - 1"});
    expect_header_refused(member("w", "U8", fmt::format("[{}]", std::string(1 << 20, '0')), 0, 8),
                          {"'w'", "shape", "leading 0"});
}

TEST(HostileSafetensors, Numbers) {
    const std::pair<std::string, std::string> bad[] = {
        {"-1", "whole number"},    {"1.0", "whole one"},
        {"1e3", "whole one"},      {"1E3", "whole one"},
        {"08", "leading 0"},       {"true", "whole number"},
        {"\"8\"", "whole number"}, {"9223372036854775808", "9223372036854775808 is beyond"},
        {"+8", "whole number"},    {"99999999999999999999", "beyond 2^63 - 1"}};
    for (const auto& [number, reason] : bad) {
        expect_header_refused(member("w", "U8", "[" + number + "]", 0, 8),
                              {"'w'", "shape", reason});
        expect_header_refused(
            fmt::format(R"("w":{{"dtype":"U8","shape":[8],"data_offsets":[0,{}]}})", number),
            {"'w'", "data_offsets", reason});
    }
}

TEST(HostileSafetensors, Tensors) {
    const std::string whole = member("w", "U8", "[8]", 0, 8);
    expect_header_refused(whole + "," + whole, {"tensor 'w'", "occurs twice"});
    expect_header_refused(R"("w":{"dtype":"U8","dtype":"U8"})", {"'w'", "dtype: occurs twice"});
    expect_header_refused(R"("w":{"shape":[],"shape":[]})", {"'w'", "shape: occurs twice"});
    expect_header_refused(R"("w":{"data_offsets":[0,8],"data_offsets":[0,8]})",
                          {"'w'", "data_offsets: occurs twice"});
    expect_header_refused(R"("w":{})", {"'w'", "dtype: missing"});
    expect_header_refused(R"("w":{"dtype":"U8"})", {"'w'", "shape: missing"});
    expect_header_refused(R"("w":{"dtype":"U8","shape":[8]})", {"'w'", "data_offsets: missing"});
    expect_header_refused(R"("w":{"colour":"red"})", {"'w'", "unknown field 'colour'"});
    for (const std::string type : {"F4", "F6_E2M3", "f32", "", "F32 ", "\\n"}) {
        expect_header_refused(member("w", type, "[8]", 0, 8), {"'w'", "dtype", "not supported"},
                              ErrorCode::unsupported);
    }
    expect_header_refused(R"("w":{"data_offsets":[0]})", {"'w'", "data_offsets: 1, not 2"});
    expect_header_refused(R"("w":{"data_offsets":[]})", {"'w'", "data_offsets: 0, not 2"});
    expect_header_refused(R"("w":{"data_offsets":[0,8,9]})", {"'w'", "data_offsets: more than 2"});
}

TEST(HostileSafetensors, Places) {
    expect_header_refused(member("w", "U8", "[8]", 8, 0), {"'w'", "[8, 0]"});
    expect_header_refused(member("w", "U8", "[9]", 0, 9), {"'w'", "[0, 9]", "8 bytes of data"});
    expect_header_refused(member("w", "U8", "[8]", 0, uint64_t{1} << 62), {"'w'", "not inside"});
    expect_header_refused(member("w", "F32", "[8]", 0, 8), {"'w'", "8 bytes", "F32 make 32"});
    expect_header_refused(member("w", "U8", "[0]", 0, 8), {"'w'", "make 0"});
    expect_header_refused(member("w", "F32", "[4611686018427387904]", 0, 8),
                          {"'w'", "shape: 4611686018427387904", "2^63"});
    expect_header_refused(member("w", "U8", "[4294967296,4294967296,0]", 0, 0),
                          {"'w'", "shape: 4294967296", "2^63"});
    for (const std::string shape :
         {"[0,1099511627776,1099511627776,1]", "[1099511627776,0,1099511627776]",
          "[0,4294967296,4294967296]"}) {
        expect_header_refused(member("w", "U8", shape, 0, 0), {"'w'", "shape", "2^63"});
    }
    const std::string low = member("low", "U8", "[3]", 0, 3);
    expect_header_refused(member("high", "U8", "[4]", 4, 8) + "," + low,
                          {"tensor 'high'", "1 bytes of data before it"});
    expect_header_refused(member("high", "U8", "[6]", 2, 8) + "," + low,
                          {"tensor 'high'", "overlaps", "'low'"});
    expect_header_refused(
        member("inside", "U8", "[0]", 2, 2) + "," + member("w", "U8", "[8]", 0, 8),
        {"tensor 'inside'", "overlaps", "'w'"});
    expect_header_refused(low, {"data", "last 5 bytes"});
    expect_header_refused("", {"data", "last 8 bytes"});
}

TEST(HostileSafetensors, Metadata) {
    const std::string whole = fmt::format(",{}", member("w", "U8", "[8]", 0, 8));
    expect_header_refused(R"("__metadata__":{"k":1})" + whole, {"header", "__metadata__", "'1'"});
    expect_header_refused(R"("__metadata__":{"k":{}})" + whole, {"header", "__metadata__", "'{'"});
    expect_header_refused(R"("__metadata__":[])" + whole, {"header", "__metadata__", "'['"});
    expect_header_refused(R"("__metadata__":{"k":"1","k":"2"})" + whole,
                          {"__metadata__: 'k' occurs twice"});
    expect_header_refused(R"("__metadata__":{},"__metadata__":{})" + whole,
                          {"__metadata__: occurs twice"});
}

/// The names of a model of 61 layers with 384 experts would be as many.
TEST(Safetensors, ManyTensors) {
    constexpr int kTensors = 60000;
    std::string header = "{";
    for (int i = 0; i < kTensors; ++i) {
        if (i > 0) header += ',';
        header +=
            member(fmt::format("model.layers.{}.mlp.experts.{}.gate_proj.weight", i / 1000, i),
                   "U8", "[2]", static_cast<uint64_t>(2 * i), static_cast<uint64_t>(2 * i + 2));
    }
    const TempPath path(".safetensors");
    write_test_file(path.path(), safetensors_bytes(header + "}", std::string(2 * kTensors, 'x')));
    const SafetensorsFile file(path.path());
    ASSERT_EQ(file.entries().size(), 60000u);
    for (const SafetensorsEntry& entry : file.entries()) ASSERT_EQ(file.find(entry.name), &entry);
}

}  // namespace
}  // namespace kd
