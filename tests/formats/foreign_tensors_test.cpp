// Files with tensors of types that are not computed with here, opened to be looked at.
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/gguf_writer.h"

namespace kd {
namespace {

constexpr uint32_t kQ3K = 11;  // 110 bytes for 256 elements
constexpr uint32_t kQ42 = 4;   // given up by ggml

GgufWriter mixed() {
    GgufWriter writer;
    writer.add_tensor({"three", {256, 2}, kQ3K, std::string(220, '\1'), {}});
    writer.add_tensor("norm", DType::f32, 0, 32, std::vector<float>(32));
    writer.add_tensor({"gone", {7, 3}, kQ42, std::string(16, '\1'), {}});
    return writer;
}

void expect_corrupt(const GgufWriter& writer, const std::string& part) {
    const TempPath file;
    writer.write(file.path());
    try {
        const GgufFile gguf(file.path(), ForeignTensors::list);
        ADD_FAILURE() << part << ": nothing was thrown";
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::corrupt);
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

TEST(ForeignTensors, AreListedWithWhatIsKnown) {
    const TempPath path;
    mixed().write(path.path());
    const GgufFile gguf(path.path(), ForeignTensors::list);
    ASSERT_EQ(gguf.tensors().size(), 1u);
    EXPECT_NE(gguf.find_tensor("norm"), nullptr);
    EXPECT_EQ(gguf.find_tensor("three"), nullptr);
    ASSERT_EQ(gguf.foreign_tensors().size(), 2u);
    const ForeignTensor& three = gguf.foreign_tensors()[0];
    EXPECT_EQ(three.name, "three");
    EXPECT_EQ(three.type, "Q3_K");
    EXPECT_EQ(three.dims, (std::vector<int64_t>{256, 2}));
    EXPECT_EQ(three.bytes, 220);
    EXPECT_EQ(gguf.file().data()[three.file_offset], std::byte{1});
    const ForeignTensor& gone = gguf.foreign_tensors()[1];
    EXPECT_EQ(gone.type, "Q4_2");
    EXPECT_FALSE(gone.bytes.has_value());
}

TEST(ForeignTensors, AreRefusedUnlessAskedFor) {
    const TempPath path;
    mixed().write(path.path());
    EXPECT_THROW(const GgufFile gguf(path.path()), Error);
}

TEST(ForeignTensors, ObeyTheContainer) {
    GgufWriter twice = mixed();
    twice.add_tensor({"norm", {256}, kQ3K, std::string(110, '\0'), {}});
    expect_corrupt(twice, "tensor 'norm': occurs twice");
    GgufWriter beyond = mixed();
    beyond.add_tensor({"far", {1 << 20}, kQ3K, "", {}});
    expect_corrupt(beyond, "tensor 'far'");
    GgufWriter overlap = mixed();
    overlap.add_tensor({"over", {256}, kQ3K, std::string(110, '\0'), 0});
    expect_corrupt(overlap, "overlaps");
    GgufWriter ragged = mixed();
    ragged.add_tensor({"ragged", {100}, kQ3K, std::string(110, '\0'), {}});
    expect_corrupt(ragged, "block of 256");
    GgufWriter outside = mixed();
    outside.add_tensor({"outside", {7}, kQ42, "", uint64_t{1} << 40});
    expect_corrupt(outside, "tensor 'outside'");
}

}  // namespace
}  // namespace kd
