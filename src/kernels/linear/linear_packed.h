// Inside of LinearWeights: weights re-packed in panels of 16 outputs.
//
// A panel holds all columns of its outputs:
//   F32, F16, BF16   [columns][16 outputs], in the file's type
//   quantised        steps of one or more blocks of 32 columns: the blocks' scales, padded to 64
//                    bytes, then their integers. So a panel is read from front to back, which
//                    memory answers about twice as fast as two streams.
//   Scales of a step:
//     Q8_0, Q4_0     [2 blocks][16 outputs] f16
//     Q4_1, Q5_1     [1 block][scales 16, minima 16] f16
//     Q4_K, Q5_K     [8 blocks][scales 16, minima 16] u8, then [d 16, -dmin 16] f16
//     Q6_K           [8 blocks][scales of columns 0-15 16, of columns 16-31 16] i8, then [d 16] f16
//     INT4           [1 block][16 outputs] f32, which holds f16, bf16 and f32 ones unrounded
//   Integers:
//     Q8_0, Q6_K     [8 groups of 4 columns][16 outputs][4 columns] as value + 128, value + 32
//     Q5_1, Q5_K     the same as they are, 0..31
//     Q4_0, Q4_1, Q4_K, INT4
//                    [4 groups][16 outputs][4]: low nibbles are columns 4g.., high ones 16 + 4g..
// Q5_0 and IQ4_NL become panels of Q8_0: their weights are integers of 8 bits times an f16, too.
// F8_E4M3 becomes a panel of F32, scales multiplied in (that product is rounded to a float).
// The K-quants keep their factors apart, so nothing is rounded: d * scale takes 17 or 18 bits,
// which a float holds and an f16 would not (nor its range: 65504 * 63).
//
// Bits a weight, here and in the file: Q8_0 8.5; Q4_0 4.5; Q4_1 5; INT4 5 (4.5 with 16-bit scales);
// Q5_0 8.5 (5.5); IQ4_NL 8.5 (4.5); Q5_1 9 (6); Q4_K 4.63 (4.5; scales multiplied out would take 5
// as f16, 6 as floats); Q5_K 8.63 (5.5); Q6_K 8.63 (6.56); F8_E4M3 32 (8). A last step of one block
// (Q8_0, Q4_0: odd numbers of blocks) pads 32 bytes more.
//
// 64 bytes of integers are 16 outputs x 4 columns: what one vpdpbusd of a 512-bit vector multiplies
// with 4 broadcast activations. Narrower vectors take 8 or 4 of the outputs at a time.
#pragma once

#include <memory>
#include <vector>

#include "base/quant_blocks.h"
#include "kernels/linear/linear.h"

namespace kd {

inline constexpr int64_t kPanelOutputs = 16;
inline constexpr int64_t kBlockColumns = 32;
inline constexpr int64_t kSuperblockBlocks = kSuperblock / kBlockColumns;

/// One part (such as Q of a stacked QKV) in the packed memory. Parts begin at a panel.
struct PanelGroup {
    DType type = DType::f32;   // panel_type() of the part's
    int64_t first_output = 0;  // in the stacked result
    int64_t outputs = 0;
    int64_t first_panel = 0;  // over all parts
    int64_t panels = 0;
    size_t panel_bytes = 0;
    size_t offset_bytes = 0;
};

struct LinearWeights::Packed {
    std::vector<WeightView> parts;
    std::vector<PanelGroup> groups;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t panels = 0;
    size_t bytes = 0;
    std::unique_ptr<Arena> own;   // of weights whose stream had no arena
    std::byte* memory = nullptr;  // [bytes] in that or the stream's arena

    const std::byte* panel(const PanelGroup& group, int64_t index) const {
        return memory + group.offset_bytes + static_cast<size_t>(index) * group.panel_bytes;
    }
};

/// The type in whose form a panel holds the weights of a part.
constexpr DType panel_type(DType type) {
    switch (type) {
        case DType::q5_0:
        case DType::iq4_nl:
            return DType::q8_0;
        case DType::f8_e4m3:
            return DType::f32;
        default:
            return type;
    }
}

// What follows is of panel types.

/// Whether a panel holds a weight's integer in a byte; the other quantised types take a nibble.
constexpr bool panel_holds_bytes(DType type) {
    return type == DType::q8_0 || type == DType::q5_1 || type == DType::q5_k || type == DType::q6_k;
}

/// What was added to a weight's integer.
constexpr int32_t panel_offset(DType type) {
    switch (type) {
        case DType::q8_0:
            return 128;
        case DType::q6_k:
            return 32;
        case DType::q4_0:
        case DType::int4:
            return 8;
        default:
            return 0;
    }
}

constexpr bool panel_has_minimum(DType type) {
    return has_block_minimum(type) || type == DType::q4_k || type == DType::q5_k;
}

/// Bytes of scales (and minima) of one block of a panel.
constexpr int64_t panel_scale_bytes(DType type) {
    return (has_block_minimum(type) || type == DType::int4 ? 4 : 2) * kPanelOutputs;
}

/// Blocks of a step: a superblock's, else as many as fill lines of 64 bytes with scales.
constexpr int64_t panel_step_blocks(DType type) {
    if (block_elements(type) == kSuperblock) return kSuperblockBlocks;
    return panel_scale_bytes(type) == 64 ? 1 : 2;
}

/// Bytes of a step's scales and factors: where its integers begin.
constexpr int64_t panel_step_scales_bytes(DType type) {
    const int64_t scales = panel_step_blocks(type) * panel_scale_bytes(type);
    const bool factors = block_elements(type) == kSuperblock;
    return scales + (factors ? 64 : 0);  // Q6_K pads its 32
}

/// Bytes of the integers of one block of a panel.
constexpr int64_t panel_block_bytes(DType type) {
    return kPanelOutputs * kBlockColumns / (panel_holds_bytes(type) ? 1 : 2);
}

constexpr int64_t panel_step_bytes(DType type) {
    return panel_step_scales_bytes(type) + panel_step_blocks(type) * panel_block_bytes(type);
}

// Where in a panel things of a block begin.

constexpr int64_t panel_step_at(DType type, int64_t block) {
    return block / panel_step_blocks(type) * panel_step_bytes(type);
}

constexpr int64_t panel_scales_at(DType type, int64_t block) {
    return panel_step_at(type, block) + block % panel_step_blocks(type) * panel_scale_bytes(type);
}

/// The f16 factors of the block's superblock.
constexpr int64_t panel_factors_at(DType type, int64_t block) {
    return panel_step_at(type, block) + kSuperblockBlocks * panel_scale_bytes(type);
}

constexpr int64_t panel_integers_at(DType type, int64_t block) {
    return panel_step_at(type, block) + panel_step_scales_bytes(type) +
           block % panel_step_blocks(type) * panel_block_bytes(type);
}

/// linear_ref for outputs [begin, end) only.
void linear_ref_outputs(const LinearParams& params, int64_t begin, int64_t end);

}  // namespace kd
