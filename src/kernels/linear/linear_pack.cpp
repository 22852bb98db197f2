#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "base/error.h"
#include "kernels/linear/linear_packed.h"

namespace kd {

namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kChunkBytes = 256 * 1024;

size_t panel_bytes_of(DType type, int64_t columns) {
    if (!is_quantised(type)) {
        return static_cast<size_t>(bytes_of(type, columns) * kPanelOutputs + 63) / 64 * 64;
    }
    return static_cast<size_t>(panel_scales_bytes(type, columns) +
                               columns / kBlockColumns * panel_block_bytes(type));
}

/// 4 consecutive bytes of one output to their place among the 16 outputs of a group.
void pack_bytes(const std::byte* from, int groups, uint32_t flip, std::byte* to) {
    for (int g = 0; g < groups; ++g) {
        uint32_t word;
        std::memcpy(&word, from + 4 * g, 4);
        word ^= flip;
        std::memcpy(to + g * 4 * kPanelOutputs, &word, 4);
    }
}

/// 32 values of 0..15 to 16 bytes: value i in a low nibble, value 16 + i in its high one.
std::array<uint8_t, 16> nibbles_of(const uint8_t* values) {
    std::array<uint8_t, 16> packed;
    for (size_t i = 0; i < 16; ++i) {
        packed[i] = static_cast<uint8_t>(values[i] | values[16 + i] << 4);
    }
    return packed;
}

void put_u16(std::byte* to, int index, int64_t output, uint32_t bits) {
    const auto value = static_cast<uint16_t>(bits);
    std::memcpy(to + 2 * (index * kPanelOutputs + output), &value, 2);
}

void put_u8(std::byte* to, int index, int64_t output, int value) {
    to[index * kPanelOutputs + output] = static_cast<std::byte>(value);
}

/// One superblock of output n. `scales`, `factors`, `integers`: where those of the superblock
/// begin.
void pack_q4_k(const std::byte* from, int64_t n, std::byte* scales, std::byte* factors,
               std::byte* integers) {
    const Q4KBlock block = read_q4_k(from);
    put_u16(factors, 0, n, block.d_bits);
    put_u16(factors, 1, n, block.dmin_bits ^ 0x8000u);
    for (size_t b = 0; b < kSuperblockBlocks; ++b) {
        put_u8(scales, 0, n, block.scale[b]);
        put_u8(scales, 1, n, block.minimum[b]);
        const std::array<uint8_t, 16> nibbles = nibbles_of(&block.q[b * kBlockColumns]);
        pack_bytes(reinterpret_cast<const std::byte*>(nibbles.data()), 4, 0, integers + 4 * n);
        scales += panel_scale_bytes(DType::q4_k);
        integers += panel_block_bytes(DType::q4_k);
    }
}

void pack_q6_k(const std::byte* from, int64_t n, std::byte* scales, std::byte* factors,
               std::byte* integers) {
    Q6KBlock block = read_q6_k(from);
    put_u16(factors, 0, n, block.d_bits);
    for (int8_t& q : block.q) q = static_cast<int8_t>(q + 32);
    for (size_t b = 0; b < kSuperblockBlocks; ++b) {
        put_u8(scales, 0, n, block.scale[2 * b]);
        put_u8(scales, 1, n, block.scale[2 * b + 1]);
        pack_bytes(reinterpret_cast<const std::byte*>(&block.q[b * kBlockColumns]), 8, 0,
                   integers + 4 * n);
        scales += panel_scale_bytes(DType::q6_k);
        integers += panel_block_bytes(DType::q6_k);
    }
}

void pack_superblocks(const WeightView& part, int64_t first, int64_t outputs, std::byte* panel) {
    const bool four_bits = part.type == DType::q4_k;
    std::byte* factors = panel + panel_factors_offset(part.type, part.columns);
    std::byte* integers = panel + panel_scales_bytes(part.type, part.columns);
    for (int64_t n = 0; n < outputs; ++n) {
        for (int64_t s = 0; s < part.columns / kSuperblock; ++s) {
            (four_bits ? pack_q4_k : pack_q6_k)(
                part.row(first + n) + s * block_bytes(part.type), n,
                panel + s * kSuperblockBlocks * panel_scale_bytes(part.type),
                factors + s * panel_factor_bytes(part.type),
                integers + s * kSuperblockBlocks * panel_block_bytes(part.type));
        }
    }
}

void pack_quantised(const WeightView& part, int64_t first, int64_t outputs, std::byte* panel) {
    const int64_t blocks = part.columns / kBlockColumns;
    const int64_t scale_bytes = panel_scale_bytes(part.type);
    const int64_t block_bytes_packed = panel_block_bytes(part.type);
    std::byte* integers = panel + panel_scales_bytes(part.type, part.columns);
    const bool bytes = part.type == DType::q8_0;
    for (int64_t n = 0; n < outputs; ++n) {
        const std::byte* from = part.row(first + n);
        for (int64_t b = 0; b < blocks; ++b) {
            std::byte* scales = panel + b * scale_bytes + 2 * n;
            std::memcpy(scales, from, 2);
            if (part.type == DType::q4_1) std::memcpy(scales + 2 * kPanelOutputs, from + 2, 2);
            from += part.type == DType::q4_1 ? 4 : 2;
            // Two's complement to value + 128: the top bit of each byte flips.
            pack_bytes(from, bytes ? 8 : 4, bytes ? 0x80808080u : 0u,
                       integers + b * block_bytes_packed + 4 * n);
            from += bytes ? 32 : 16;
        }
    }
}

template <class Word>
void pack_floats(const WeightView& part, int64_t first, int64_t outputs, std::byte* panel) {
    for (int64_t n = 0; n < outputs; ++n) {
        const std::byte* from = part.row(first + n);
        for (int64_t k = 0; k < part.columns; ++k) {
            std::memcpy(panel + (k * kPanelOutputs + n) * int64_t{sizeof(Word)},
                        from + k * int64_t{sizeof(Word)}, sizeof(Word));
        }
    }
}

void pack_panel(const WeightView& part, int64_t index, std::byte* panel, size_t panel_bytes) {
    const int64_t first = index * kPanelOutputs;
    const int64_t outputs = std::min(kPanelOutputs, part.rows - first);
    // Padding outputs must not read uninitialised memory; their results are never stored.
    if (outputs < kPanelOutputs) std::memset(panel, 0, panel_bytes);
    if (block_elements(part.type) == kSuperblock) {
        pack_superblocks(part, first, outputs, panel);
    } else if (is_quantised(part.type)) {
        pack_quantised(part, first, outputs, panel);
    } else if (part.type == DType::f32) {
        pack_floats<uint32_t>(part, first, outputs, panel);
    } else {
        pack_floats<uint16_t>(part, first, outputs, panel);
    }
}

}  // namespace

LinearWeights::LinearWeights(std::span<const WeightView> parts, Stream& stream)
    : packed_(std::make_unique<Packed>()) {
    if (parts.empty()) KD_THROW(invalid_argument, "linear weights without a matrix");
    Packed& packed = *packed_;
    packed.parts.assign(parts.begin(), parts.end());
    packed.columns = parts[0].columns;
    for (const WeightView& part : parts) {
        if (part.columns != packed.columns || part.columns < 1 || part.rows < 1) {
            KD_THROW(invalid_argument, "matrix [{}, {}] cannot be stacked on {} columns", part.rows,
                     part.columns, packed.columns);
        }
        if (is_quantised(part.type) != is_quantised(parts[0].type)) {
            KD_THROW(unsupported, "{} and {} weights in one linear layer", name_of(parts[0].type),
                     name_of(part.type));
        }
        if (part.columns % block_elements(part.type) != 0) {
            KD_THROW(unsupported, "{} matrix of {} columns, not whole blocks of {}",
                     name_of(part.type), part.columns, block_elements(part.type));
        }
        const PanelGroup group{.type = part.type,
                               .first_output = packed.rows,
                               .outputs = part.rows,
                               .first_panel = packed.panels,
                               .panels = (part.rows + kPanelOutputs - 1) / kPanelOutputs,
                               .panel_bytes = panel_bytes_of(part.type, part.columns),
                               .offset_bytes = packed.bytes};
        packed.groups.push_back(group);
        packed.rows += part.rows;
        packed.panels += group.panels;
        packed.bytes += group.panel_bytes * static_cast<size_t>(group.panels);
    }
    packed.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, packed.bytes)));
    if (!packed.memory) {
        KD_THROW(out_of_resources, "{} bytes for packed weights", packed.bytes);
    }
    for (size_t i = 0; i < packed.groups.size(); ++i) {
        const PanelGroup& group = packed.groups[i];
        const int64_t grain =
            std::max<int64_t>(1, kChunkBytes / static_cast<int64_t>(group.panel_bytes));
        std::byte* memory = packed.memory.get() + group.offset_bytes;
        stream.threads->parallel_for(group.panels, grain, [&](int64_t begin, int64_t end) {
            for (int64_t p = begin; p < end; ++p) {
                pack_panel(packed.parts[i], p, memory + static_cast<size_t>(p) * group.panel_bytes,
                           group.panel_bytes);
            }
        });
    }
}

LinearWeights::~LinearWeights() = default;
LinearWeights::LinearWeights(LinearWeights&&) noexcept = default;
LinearWeights& LinearWeights::operator=(LinearWeights&&) noexcept = default;

int64_t LinearWeights::rows() const {
    return packed_->rows;
}
int64_t LinearWeights::columns() const {
    return packed_->columns;
}
std::span<const WeightView> LinearWeights::parts() const {
    return packed_->parts;
}
bool LinearWeights::wants_quantised_rows() const {
    return is_quantised(packed_->parts[0].type);
}
size_t LinearWeights::packed_bytes() const {
    return packed_->bytes;
}

}  // namespace kd
