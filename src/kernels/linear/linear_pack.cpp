#include <algorithm>
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
    if (is_quantised(part.type)) {
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
