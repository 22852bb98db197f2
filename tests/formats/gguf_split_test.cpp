// Models in several files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "formats/draft_tensors.h"
#include "formats/gguf.h"
#include "support/gguf_writer.h"

namespace kd {
namespace {

/// A folder with the parts of a model of three tensors in 1 + 2 + 0.
class GgufSplit : public testing::Test {
  protected:
    GgufSplit() {
        std::filesystem::create_directory(folder_.path());
        for (size_t i = 0; i < 3; ++i) {
            parts_[i].set("split.no", static_cast<uint16_t>(i));
            parts_[i].set("split.count", uint16_t{3});
            parts_[i].set("split.tensors.count", int32_t{3});
            parts_[i].set_string("general.name", "one model");
        }
        parts_[0].set_string("only.first", "here");
        parts_[0].set_array<int32_t>("numbers", {1, 2, 3});
        parts_[0].set_strings("words", {"a", "b"});
        parts_[0].set("nan", std::numeric_limits<float>::quiet_NaN());
        parts_[1].set_array<int32_t>("numbers", {1, 2, 3});
        parts_[1].set_strings("words", {"a", "b"});
        parts_[1].set("nan", std::numeric_limits<float>::quiet_NaN());
        // Parts are laid out by alignments of their own.
        parts_[1].alignment = 64;
        parts_[1].set("general.alignment", 64u);
        parts_[0].add_tensor("a", DType::f32, 0, 8, std::vector<float>(8, 1.0f));
        parts_[1].add_tensor("b", DType::f32, 0, 8, std::vector<float>(8, 2.0f));
        parts_[1].add_tensor("c", DType::q8_0, 2, 32, std::vector<float>(64, 3.0f));
    }
    ~GgufSplit() override { std::filesystem::remove_all(folder_.path()); }

    std::string path(int part, int count = 3) const {
        return fmt::format("{}/m-{:05}-of-{:05}.gguf", folder_.path(), part, count);
    }
    void write() const {
        for (size_t i = 0; i < 3; ++i) parts_[i].write(path(static_cast<int>(i) + 1));
    }
    void expect_refused(const std::string& file, ErrorCode code,
                        const std::vector<std::string>& parts,
                        ForeignTensors foreign = ForeignTensors::refuse) const {
        try {
            const GgufFile gguf(file, foreign);
            ADD_FAILURE() << "loaded; expected: " << testing::PrintToString(parts);
        } catch (const Error& error) {
            const std::string message = error.what();
            EXPECT_EQ(error.code, code) << message;
            EXPECT_EQ(message.find('\n'), std::string::npos) << message;
            for (const std::string& part : parts) {
                EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
            }
        }
    }

    TempPath folder_{""};
    GgufWriter parts_[3];
};

/// Resident bytes of this process's mapping of a file.
int64_t resident_kb(const std::string& path) {
    std::ifstream maps("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(maps, line);) {
        if (line.find('/') != line.npos) inside = line.ends_with(path);
        if (inside && line.starts_with("Rss:")) return std::stoll(line.substr(4));
    }
    ADD_FAILURE() << path << " is not mapped";
    return -1;
}

TEST_F(GgufSplit, ADraftersPartsAreAllReleased) {
    write();
    const DraftTensors tensors(path(2));
    for (const DraftTensor& tensor : tensors.tensors()) {
        EXPECT_NE(tensor.data[0], tensor.data[3]) << tensor.name;  // reads it
    }
    for (int part = 1; part <= 3; ++part) EXPECT_GT(resident_kb(path(part)), 0) << part;
    tensors.release();
    for (int part = 1; part <= 3; ++part) EXPECT_EQ(resident_kb(path(part)), 0) << part;
}

TEST_F(GgufSplit, AnyPartOpensTheWholeModel) {
    write();
    for (const int given : {1, 2, 3}) {
        const GgufFile gguf(path(given));
        ASSERT_EQ(gguf.files().size(), 3u);
        EXPECT_EQ(gguf.file().path(), path(1));
        EXPECT_EQ(gguf.string("only.first"), "here");
        EXPECT_EQ(gguf.integer("split.no", 0, 9), 0);
        ASSERT_EQ(gguf.tensors().size(), 3u);
        EXPECT_EQ(gguf.bytes(),
                  parts_[0].bytes().size() + parts_[1].bytes().size() + parts_[2].bytes().size());
        const int32_t expected[] = {0, 1, 1};
        for (size_t i = 0; i < 3; ++i) {
            const FileTensor& tensor = gguf.tensors()[i];
            EXPECT_EQ(tensor.name, std::string(1, static_cast<char>('a' + i)));
            EXPECT_EQ(gguf.find_tensor(tensor.name), &tensor);
            EXPECT_EQ(tensor.part, expected[i]);
            EXPECT_EQ(gguf.path_of(tensor), path(expected[i] + 1));
            EXPECT_EQ(tensor.data,
                      gguf.files()[static_cast<size_t>(tensor.part)]->data() + tensor.file_offset);
        }
        gguf.release();
        float value;
        std::memcpy(&value, gguf.find_tensor("b")->data, sizeof value);
        EXPECT_EQ(value, 2.0f);
    }
}

TEST_F(GgufSplit, ForeignTensorsOfAllParts) {
    parts_[2].add_tensor({"q", {256}, 10, std::string(84, '\1'), {}});
    parts_[0].add_tensor({"p", {256}, 10, std::string(84, '\1'), {}});
    for (GgufWriter& part : parts_) part.change("split.tensors.count", int32_t{5});
    write();
    const GgufFile gguf(path(2), ForeignTensors::list);
    ASSERT_EQ(gguf.foreign_tensors().size(), 2u);
    EXPECT_EQ(gguf.foreign_tensors()[0].part, 0);
    EXPECT_EQ(gguf.foreign_tensors()[1].part, 2);
    EXPECT_EQ(gguf.files()[2]->data()[gguf.foreign_tensors()[1].file_offset], std::byte{1});
    expect_refused(path(1), ErrorCode::unsupported, {path(1), "'p'", "Q2_K"});
}

TEST_F(GgufSplit, MissingPartsAreNamed) {
    write();
    for (const int missing : {1, 2, 3}) {
        ASSERT_EQ(std::rename(path(missing).c_str(), path(9).c_str()), 0);
        expect_refused(path(missing == 2 ? 1 : 2), ErrorCode::not_found,
                       {path(missing), "no such file", fmt::format("part {} of 3", missing)});
        ASSERT_EQ(std::rename(path(9).c_str(), path(missing).c_str()), 0);
    }
    ASSERT_EQ(::truncate(path(2).c_str(), 100), 0);
    expect_refused(path(1), ErrorCode::corrupt, {path(2)});
}

TEST_F(GgufSplit, NamesThatDoNotFit) {
    const std::string other = folder_.path() + "/model.gguf";
    parts_[0].write(other);
    expect_refused(other, ErrorCode::corrupt, {other, "'split.no'", "-00001-of-00003.gguf"});
    parts_[0].write(path(1, 4));
    expect_refused(path(1, 4), ErrorCode::corrupt, {"'split.no'", "-00001-of-00003.gguf"});
    write();
    std::filesystem::copy_file(path(1), path(2), std::filesystem::copy_options::overwrite_existing);
    expect_refused(path(1), ErrorCode::corrupt, {path(2), "'split.no': 0, not 1", "part 2 of 3"});
    expect_refused(path(2), ErrorCode::corrupt, {path(2), "'split.no': is 0 of 3"});
}

TEST_F(GgufSplit, Counts) {
    parts_[1].change("split.count", uint16_t{4});
    write();
    expect_refused(path(1), ErrorCode::corrupt, {path(2), "'split.count': 4, not 3"});
    for (const int32_t total : {2, 4}) {
        for (GgufWriter& part : parts_) part.change("split.tensors.count", total);
        parts_[1].change("split.count", uint16_t{3});
        write();
        expect_refused(
            path(3), ErrorCode::corrupt,
            {path(1), fmt::format("'split.tensors.count': {}", total), "have 3 tensors"});
    }
    for (GgufWriter& part : parts_) part.change("split.tensors.count", int32_t{-1});
    write();
    expect_refused(path(1), ErrorCode::corrupt, {path(1), "'split.tensors.count'", "-1"});
    parts_[0].change("split.no", uint16_t{3});
    write();
    expect_refused(path(1), ErrorCode::corrupt, {path(1), "'split.no'", "3 is not in [0, 2]"});
}

TEST_F(GgufSplit, PartsOfAnotherModel) {
    const GgufWriter good = parts_[2];
    parts_[2] = {};
    parts_[2].set("split.no", uint16_t{2});
    parts_[2].set("split.count", uint16_t{3});
    parts_[2].set_string("general.name", "another");
    write();
    expect_refused(path(1), ErrorCode::corrupt,
                   {path(3), "'general.name'", "another model", path(1)});
    const auto expect_other = [&](const std::string& key, const auto& set) {
        parts_[2] = good;
        set(parts_[2]);
        write();
        expect_refused(path(1), ErrorCode::corrupt, {path(3), "'" + key + "'", "another model"});
    };
    expect_other("numbers", [](auto& w) { w.template set_array<int32_t>("numbers", {1, 2, 4}); });
    expect_other("numbers", [](auto& w) { w.template set_array<uint32_t>("numbers", {1, 2, 3}); });
    expect_other("numbers", [](auto& w) { w.template set_array<int32_t>("numbers", {1, 2}); });
    expect_other("words", [](auto& w) { w.set_strings("words", {"a", "c"}); });
    expect_other("words", [](auto& w) { w.set_string("words", "a"); });
    expect_other("nan", [](auto& w) { w.set("nan", 1.0f); });
    expect_other("only.first", [](auto& w) { w.set("only.first", true); });
}

TEST_F(GgufSplit, TensorsThatOccurTwice) {
    parts_[2].add_tensor("a", DType::f32, 0, 8, std::vector<float>(8, 1.0f));
    write();
    expect_refused(path(2), ErrorCode::corrupt, {path(3), "tensor 'a'", "part before"});
    parts_[2] = {};
    parts_[2].set("split.no", uint16_t{2});
    parts_[2].set("split.count", uint16_t{3});
    parts_[2].add_tensor({"b", {256}, 10, std::string(84, '\1'), {}});
    write();
    expect_refused(path(1), ErrorCode::corrupt, {path(3), "tensor 'b'", "part before"},
                   ForeignTensors::list);
}

TEST_F(GgufSplit, OnePartNeedsNoName) {
    const TempPath file;
    GgufWriter writer;
    writer.set("split.no", uint16_t{0});
    writer.set("split.count", uint16_t{1});
    writer.write(file.path());
    EXPECT_EQ(GgufFile(file.path()).files().size(), 1u);
}

}  // namespace
}  // namespace kd
