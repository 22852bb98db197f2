#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/linear/linear_packed.h"

namespace kd {

namespace {

constexpr int64_t kChunkBytes = 256 * 1024;

/// `type`: of the panel.
size_t panel_bytes_of(DType type, int64_t columns) {
    if (!is_quantised(type)) {
        return static_cast<size_t>(bytes_of(type, columns) * kPanelOutputs + 63) / 64 * 64;
    }
    return static_cast<size_t>(panel_integers_at(type, columns / kBlockColumns - 1) +
                               panel_block_bytes(type));
}

void put_u16(std::byte* to, int index, int64_t output, uint32_t bits) {
    const auto value = static_cast<uint16_t>(bits);
    std::memcpy(to + 2 * (index * kPanelOutputs + output), &value, 2);
}

void put_u8(std::byte* to, int index, int64_t output, int value) {
    to[index * kPanelOutputs + output] = static_cast<std::byte>(value);
}

/// The integers of a block of one output: each 4 to their place among the 16 outputs of a group.
template <class Integer>
void put_integers(DType panel, const Integer* q, int64_t output, std::byte* integers) {
    std::array<uint8_t, 32> bytes;
    for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(q[i] + panel_offset(panel));
    if (!panel_holds_bytes(panel)) {
        for (size_t i = 0; i < 16; ++i) {
            bytes[i] = static_cast<uint8_t>(bytes[i] | bytes[i + 16] << 4);
        }
    }
    const int64_t groups = panel_block_bytes(panel) / (4 * kPanelOutputs);
    for (int64_t g = 0; g < groups; ++g) {
        std::memcpy(integers + 4 * (g * kPanelOutputs + output), &bytes[static_cast<size_t>(4 * g)],
                    4);
    }
}

/// One superblock of output n, whose step of the panel begins at `step`.
void pack_affine(DType type, const std::byte* from, int64_t n, std::byte* step) {
    const AffineSuperblock block = read_affine_superblock(type, from);
    std::byte* factors = step + panel_factors_at(type, 0);
    put_u16(factors, 0, n, block.d_bits);
    put_u16(factors, 1, n, block.dmin_bits ^ 0x8000u);
    for (int64_t b = 0; b < kSuperblockBlocks; ++b) {
        const auto index = static_cast<size_t>(b);
        put_u8(step + panel_scales_at(type, b), 0, n, block.scale[index]);
        put_u8(step + panel_scales_at(type, b), 1, n, block.minimum[index]);
        put_integers(type, &block.q[index * kBlockColumns], n, step + panel_integers_at(type, b));
    }
}

void pack_q6_k(const std::byte* from, int64_t n, std::byte* step) {
    constexpr DType kType = DType::q6_k;
    const Q6KBlock block = read_q6_k(from);
    put_u16(step + panel_factors_at(kType, 0), 0, n, block.d_bits);
    for (int64_t b = 0; b < kSuperblockBlocks; ++b) {
        const auto index = static_cast<size_t>(b);
        put_u8(step + panel_scales_at(kType, b), 0, n, block.scale[2 * index]);
        put_u8(step + panel_scales_at(kType, b), 1, n, block.scale[2 * index + 1]);
        put_integers(kType, &block.q[index * kBlockColumns], n, step + panel_integers_at(kType, b));
    }
}

void pack_superblocks(const WeightView& part, int64_t first, int64_t outputs, std::byte* panel) {
    const DType type = part.type;
    for (int64_t n = 0; n < outputs; ++n) {
        for (int64_t s = 0; s < part.columns / kSuperblock; ++s) {
            const std::byte* from = part.row(first + n) + s * block_bytes(type);
            std::byte* step = panel + s * panel_step_bytes(type);
            if (type == DType::q6_k) {
                pack_q6_k(from, n, step);
            } else {
                pack_affine(type, from, n, step);
            }
        }
    }
}

/// Whether a panel has the file's integers, in the file's order.
bool keeps_integers(DType type) {
    return type == DType::q8_0 || type == DType::q4_0 || type == DType::q4_1;
}

/// Those types: copied 4 bytes at a time, which packs 17 (4 bits) and 1.3 times (8 bits) as fast as
/// pack_blocks.
void pack_kept_blocks(const WeightView& part, int64_t first, int64_t outputs, std::byte* panel) {
    const DType type = part.type;
    const int64_t header = has_block_minimum(type) ? 4 : 2;
    const int64_t groups = panel_block_bytes(type) / (4 * kPanelOutputs);
    // Two's complement to value + 128: the top bit of each byte flips.
    const uint32_t flip = type == DType::q8_0 ? 0x80808080u : 0u;
    for (int64_t n = 0; n < outputs; ++n) {
        const std::byte* from = part.row(first + n);
        for (int64_t b = 0; b < part.columns / kBlockColumns; ++b) {
            std::byte* scales = panel + panel_scales_at(type, b) + 2 * n;
            std::memcpy(scales, from, 2);
            if (header == 4) std::memcpy(scales + 2 * kPanelOutputs, from + 2, 2);
            std::byte* to = panel + panel_integers_at(type, b) + 4 * n;
            for (int64_t g = 0; g < groups; ++g) {
                uint32_t word;
                std::memcpy(&word, from + header + 4 * g, 4);
                word ^= flip;
                std::memcpy(to + g * 4 * kPanelOutputs, &word, 4);
            }
            from += block_bytes(type);
        }
    }
}

void pack_blocks(const WeightView& part, int64_t first, int64_t outputs, std::byte* panel) {
    const DType type = panel_type(part.type);
    for (int64_t n = 0; n < outputs; ++n) {
        for (int64_t b = 0; b < part.columns / kBlockColumns; ++b) {
            const QuantBlock block =
                read_quant_block(part.type, part.row(first + n) + b * block_bytes(part.type));
            std::byte* scales = panel + panel_scales_at(type, b);
            if (type == DType::int4) {
                const float scale = part.scales.at(first + n, b * kBlockColumns, part.columns);
                std::memcpy(scales + 4 * n, &scale, 4);
            } else {
                put_u16(scales, 0, n, block.d_bits);
                if (has_block_minimum(type)) put_u16(scales, 1, n, block.m_bits);
            }
            put_integers(type, block.q.data(), n, panel + panel_integers_at(type, b));
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

/// F32 panels of what has to be dequantised.
void pack_dequantised(const WeightView& part, int64_t first, int64_t outputs, std::byte* panel) {
    std::vector<float> row(static_cast<size_t>(part.columns));
    for (int64_t n = 0; n < outputs; ++n) {
        dequantise_row(part, first + n, row.data());
        for (int64_t k = 0; k < part.columns; ++k) {
            std::memcpy(panel + 4 * (k * kPanelOutputs + n), &row[static_cast<size_t>(k)], 4);
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
    } else if (keeps_integers(part.type)) {
        pack_kept_blocks(part, first, outputs, panel);
    } else if (is_quantised(part.type)) {
        pack_blocks(part, first, outputs, panel);
    } else if (part.type == DType::f32) {
        pack_floats<uint32_t>(part, first, outputs, panel);
    } else if (part.type == DType::f8_e4m3) {
        pack_dequantised(part, first, outputs, panel);
    } else {
        pack_floats<uint16_t>(part, first, outputs, panel);
    }
}

/// Whether `part` can be stacked on `first`.
void check_part(const WeightView& part, const WeightView& first) {
    if (part.columns != first.columns || part.columns < 1 || part.rows < 1) {
        KD_THROW(invalid_argument, "matrix [{}, {}] cannot be stacked on {} columns", part.rows,
                 part.columns, first.columns);
    }
    if (is_quantised(part.type) != is_quantised(first.type)) {
        KD_THROW(unsupported, "{} and {} weights in one linear layer", name_of(first.type),
                 name_of(part.type));
    }
    if (part.columns % block_elements(part.type) != 0) {
        KD_THROW(unsupported, "{} matrix of {} columns, not whole blocks of {}", name_of(part.type),
                 part.columns, block_elements(part.type));
    }
    const BlockScales& scales = part.scales;
    if (scales.data == nullptr) return;
    const bool takes_scales = part.type == DType::int4 || part.type == DType::f8_e4m3;
    if (!takes_scales || block_elements(scales.type) != 1 || scales.block_rows < 1 ||
        scales.block_columns < 1 || scales.block_columns % block_elements(part.type) != 0) {
        KD_THROW(unsupported, "{} matrix with {} scales for every {} x {}", name_of(part.type),
                 name_of(scales.type), scales.block_rows, scales.block_columns);
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
        check_part(part, parts[0]);
        const DType type = panel_type(part.type);
        const PanelGroup group{.type = type,
                               .first_output = packed.rows,
                               .outputs = part.rows,
                               .first_panel = packed.panels,
                               .panels = (part.rows + kPanelOutputs - 1) / kPanelOutputs,
                               .panel_bytes = panel_bytes_of(type, part.columns),
                               .offset_bytes = packed.bytes};
        packed.groups.push_back(group);
        packed.rows += part.rows;
        packed.panels += group.panels;
        packed.bytes += group.panel_bytes * static_cast<size_t>(group.panels);
    }
    if (stream.weights == nullptr) packed.own = std::make_unique<Arena>();
    packed.memory = (packed.own ? packed.own.get() : stream.weights)->take(packed.bytes);
    for (size_t i = 0; i < packed.groups.size(); ++i) {
        const PanelGroup& group = packed.groups[i];
        const int64_t grain =
            std::max<int64_t>(1, kChunkBytes / static_cast<int64_t>(group.panel_bytes));
        std::byte* memory = packed.memory + group.offset_bytes;
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
