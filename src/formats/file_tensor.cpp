#include "formats/file_tensor.h"

#include <algorithm>
#include <concepts>
#include <cstring>

#include "base/error.h"
#include "base/quant_blocks.h"
#include "formats/mapped_file.h"

namespace kd {

namespace {

constexpr uint16_t kF16NotFinite = 0x7c00;  // all bits of the exponent

/// Index of the first of `count` floats, `stride` bytes apart, of whose bits all of `not_finite`
/// are set (infinite or NaN); -1 if there is none.
template <std::unsigned_integral Bits>
int64_t first_not_finite(const std::byte* data, int64_t count, int64_t stride, Bits not_finite) {
    constexpr int64_t kChunk = 4096;  // counted without a branch, so that the loop vectorises
    const auto is_finite = [=](int64_t i) {
        Bits bits;
        std::memcpy(&bits, data + i * stride, sizeof bits);
        return (bits & not_finite) != not_finite;
    };
    for (int64_t begin = 0; begin < count; begin += kChunk) {
        const int64_t end = std::min(begin + kChunk, count);
        int64_t finite = 0;
        for (int64_t i = begin; i < end; ++i) finite += is_finite(i) ? 1 : 0;
        if (finite == end - begin) continue;
        for (int64_t i = begin; i < end; ++i) {
            if (!is_finite(i)) return i;
        }
    }
    return -1;
}

/// The same of `count` elements of a float type.
int64_t first_not_finite(DType type, const std::byte* data, int64_t count) {
    switch (type) {
        case DType::f16:
            return first_not_finite(data, count, 2, kF16NotFinite);
        case DType::bf16:
            return first_not_finite(data, count, 2, uint16_t{0x7f80});
        case DType::f8_e4m3:
            return first_not_finite(data, count, 1, uint8_t{0x7f});
        default:
            return first_not_finite(data, count, 4, uint32_t{0x7f800000});
    }
}

/// Index of the first block whose f16 scale or minimum is not finite; -1 if there is none.
int64_t first_block_not_finite(DType type, const std::byte* data, int64_t count) {
    if (type == DType::int4) return -1;
    const int64_t stride = block_bytes(type);
    if (type == DType::q6_k) data += 208;
    const int64_t bad = first_not_finite(data, count, stride, kF16NotFinite);
    const bool minimum = has_block_minimum(type) || type == DType::q4_k || type == DType::q5_k;
    if (bad >= 0 || !minimum) return bad;
    return first_not_finite(data + 2, count, stride, kF16NotFinite);
}

}  // namespace

void check_finite(const FileTensor& tensor, const std::string& path) {
    const int64_t count = tensor.bytes / block_bytes(tensor.type);
    const bool blocks = is_quantised(tensor.type);
    int64_t bad = blocks ? first_block_not_finite(tensor.type, tensor.data, count)
                         : first_not_finite(tensor.type, tensor.data, count);
    std::string_view what = blocks ? "the scale of block" : "weight";
    const BlockScales& scales = tensor.scales;
    if (bad < 0 && scales.data != nullptr) {
        what = "scale";
        bad = first_not_finite(scales.type, scales.data,
                               scales.count(tensor.rows(), tensor.columns()));
    }
    if (bad >= 0) {
        KD_THROW(corrupt, "{}: tensor '{}': {} {} is not finite", path, printable(tensor.name),
                 what, bad);
    }
}

}  // namespace kd
