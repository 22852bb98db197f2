// Inside of LinearWeights: weights re-packed in panels of 16 outputs.
//
// A panel holds all columns of its outputs:
//   F32, F16, BF16   [columns][16 outputs], in the file's type
//   quantised        scales [blocks][16] f16 (Q4_1: [blocks][scales 16, minima 16]), padded to 64
//                    bytes, then the integers of one block of 32 columns after the other:
//     Q8_0           [8 groups of 4 columns][16 outputs][4 columns] as value + 128
//     Q4_0, Q4_1     [4 groups][16 outputs][4]: low nibbles are columns 4g.., high ones 16 + 4g..
// so 64 bytes are 16 outputs x 4 columns: what one vpdpbusd of a 512-bit vector multiplies with 4
// broadcast activations. Narrower vectors take 8 or 4 of the outputs at a time.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/linear/linear.h"

namespace kd {

inline constexpr int64_t kPanelOutputs = 16;
inline constexpr int64_t kBlockColumns = 32;

/// One part (such as Q of a stacked QKV) in the packed memory. Parts begin at a panel.
struct PanelGroup {
    DType type = DType::f32;
    int64_t first_output = 0;  // in the stacked result
    int64_t outputs = 0;
    int64_t first_panel = 0;  // over all parts
    int64_t panels = 0;
    size_t panel_bytes = 0;
    size_t offset_bytes = 0;
};

struct LinearWeights::Packed {
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };

    std::vector<WeightView> parts;
    std::vector<PanelGroup> groups;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t panels = 0;
    size_t bytes = 0;
    std::unique_ptr<std::byte[], Free> memory;

    const std::byte* panel(const PanelGroup& group, int64_t index) const {
        return memory.get() + group.offset_bytes + static_cast<size_t>(index) * group.panel_bytes;
    }
};

/// Bytes of f16 scales (and minima) of one block of a panel.
constexpr int64_t panel_scale_bytes(DType type) {
    return (type == DType::q4_1 ? 2 : 1) * kPanelOutputs * 2;
}

/// Bytes of all scales of a panel: where its integers begin.
constexpr int64_t panel_scales_bytes(DType type, int64_t columns) {
    return (columns / kBlockColumns * panel_scale_bytes(type) + 63) / 64 * 64;
}

/// Bytes of the integers of one block of a panel.
constexpr int64_t panel_block_bytes(DType type) {
    return kPanelOutputs * kBlockColumns / (type == DType::q8_0 ? 1 : 2);
}

/// linear_ref for outputs [begin, end) only.
void linear_ref_outputs(const LinearParams& params, int64_t begin, int64_t end);

}  // namespace kd
