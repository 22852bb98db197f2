// Weights that are not numbers, in tensors that GGUF does not have and in scales beside a matrix.
#include "formats/file_tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/error.h"

namespace kd {
namespace {

/// What check_finite says of it; "" if nothing.
std::string refusal_of(const FileTensor& tensor) {
    try {
        check_finite(tensor, "model.safetensors");
    } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::corrupt);
        return error.what();
    }
    return "";
}

TEST(CheckFinite, TheNaNCodesOfF8) {
    std::vector<std::byte> codes;
    for (int code = 0; code < 256; ++code) {
        if ((code & 0x7f) != 0x7f) codes.push_back(static_cast<std::byte>(code));
    }
    codes.resize(9000);  // more than one run that is checked at once
    FileTensor tensor{.name = "w",
                      .type = DType::f8_e4m3,
                      .dims = {3000, 3},
                      .data = codes.data(),
                      .bytes = 9000};
    EXPECT_EQ(refusal_of(tensor), "");
    for (const int nan : {0x7f, 0xff}) {
        for (const size_t at : {size_t{0}, size_t{4096}, size_t{8999}}) {
            const std::byte before = codes[at];
            codes[at] = static_cast<std::byte>(nan);
            EXPECT_EQ(refusal_of(tensor),
                      fmt::format("model.safetensors: tensor 'w': weight {} is not finite", at));
            codes[at] = before;
        }
    }
}

TEST(CheckFinite, ScalesBesideAMatrix) {
    const std::vector<std::byte> codes(5 * 32, std::byte{0x7f});  // INT4 has no NaN
    const float infinity = std::numeric_limits<float>::infinity();
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
        std::vector<std::byte> scales(static_cast<size_t>(bytes_of(type, 10)) + 1);
        // At an odd address, as safetensors may have it.
        FileTensor tensor{.name = "w",
                          .type = DType::int4,
                          .dims = {64, 5},
                          .data = codes.data(),
                          .bytes = 5 * 32,
                          .scales = {&scales[1], type, 1, 32}};
        EXPECT_EQ(refusal_of(tensor), "");
        for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
            const uint16_t half = type == DType::f16 ? f32_to_f16(bad) : f32_to_bf16(bad);
            const void* bits = type == DType::f32 ? static_cast<const void*>(&bad) : &half;
            const size_t bytes = static_cast<size_t>(block_bytes(type));
            std::memcpy(&scales[1 + 9 * bytes], bits, bytes);
            EXPECT_EQ(refusal_of(tensor), "model.safetensors: tensor 'w': scale 9 is not finite");
            // Beyond the last scale of the matrix nothing is looked at.
            tensor.dims = {64, 4};
            tensor.bytes = 4 * 32;
            EXPECT_EQ(refusal_of(tensor), "");
            tensor.dims = {64, 5};
            tensor.bytes = 5 * 32;
            std::memset(&scales[1 + 9 * bytes], 0, bytes);
        }
    }
}

}  // namespace
}  // namespace kd
