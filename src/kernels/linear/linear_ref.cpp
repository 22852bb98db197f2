#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "kernels/linear/linear_packed.h"

namespace kd {

namespace {

/// A block of 32 quantised weights: w = scale * q + minimum. Q6_K has a scale for each half: q is
/// the integer times it there (at most 4096).
struct WeightBlock {
    double scale = 0;
    double minimum = 0;
    std::array<int32_t, 32> q;
};

WeightBlock read_block(DType type, const std::byte* at) {
    const QuantBlock from = read_quant_block(type, at);
    WeightBlock block;
    block.scale = f16_to_f32(from.d_bits);
    block.minimum = f16_to_f32(from.m_bits);
    for (size_t i = 0; i < 32; ++i) block.q[i] = from.q[i];
    return block;
}

void append_affine(DType type, const std::byte* at, std::vector<WeightBlock>& blocks) {
    const AffineSuperblock from = read_affine_superblock(type, at);
    for (size_t b = 0; b < 8; ++b) {
        WeightBlock& block = blocks.emplace_back();
        block.scale = double{f16_to_f32(from.d_bits)} * from.scale[b];
        block.minimum = -double{f16_to_f32(from.dmin_bits)} * from.minimum[b];
        for (size_t i = 0; i < 32; ++i) block.q[i] = from.q[32 * b + i];
    }
}

void append_q6_k(const std::byte* at, std::vector<WeightBlock>& blocks) {
    const Q6KBlock from = read_q6_k(at);
    for (size_t b = 0; b < 8; ++b) {
        WeightBlock& block = blocks.emplace_back();
        block.scale = f16_to_f32(from.d_bits);
        for (size_t i = 32 * b; i < 32 * b + 32; ++i) {
            block.q[i % 32] = from.scale[i / 16] * from.q[i];
        }
    }
}

std::vector<WeightBlock> read_blocks(const WeightView& part, int64_t output) {
    std::vector<WeightBlock> blocks;
    const std::byte* row = part.row(output);
    for (int64_t at = 0; at < part.row_bytes(); at += block_bytes(part.type)) {
        if (part.type == DType::q6_k) {
            append_q6_k(row + at, blocks);
        } else if (block_elements(part.type) == kSuperblock) {
            append_affine(part.type, row + at, blocks);
        } else {
            blocks.push_back(read_block(part.type, row + at));
        }
    }
    // What lies beside the matrix; its blocks are whole blocks of 32 columns.
    for (size_t b = 0; b < blocks.size(); ++b) {
        blocks[b].scale *= part.scales.at(output, static_cast<int64_t>(b) * 32, part.columns);
    }
    return blocks;
}

double dot_quantised(const std::vector<WeightBlock>& weights, const QuantRows& x, int64_t row) {
    double sum = 0;
    const auto blocks = static_cast<int64_t>(weights.size());
    for (int64_t b = 0; b < blocks; ++b) {
        const WeightBlock& w = weights[static_cast<size_t>(b)];
        const QuantTile& tile = x.tile(row, b);
        const int64_t r = row % kQuantTileRows;
        const int8_t* q = tile.q[r];
        int32_t products = 0;
        int32_t activations = 0;
        for (size_t i = 0; i < 32; ++i) {
            products += w.q[i] * q[i];
            activations += q[i];
        }
        const double scale = tile.scale[r];
        sum += scale * (w.scale * products + w.minimum * activations);
    }
    return sum;
}

double dot_float(const std::vector<float>& w, const LinearParams& params, int64_t row) {
    double sum = 0;
    const auto columns = static_cast<int64_t>(w.size());
    for (int64_t k = 0; k < columns; ++k) {
        double x = 0;
        if (params.x != nullptr) {
            x = params.x[row * columns + k];
        } else {
            const QuantTile& tile = params.quantised->tile(row, k / 32);
            const int64_t r = row % kQuantTileRows;
            x = double{tile.scale[r]} * tile.q[r][k % 32];
        }
        sum += double{w[static_cast<size_t>(k)]} * x;
    }
    return sum;
}

}  // namespace

void linear_ref_outputs(const LinearParams& params, int64_t begin, int64_t end) {
    KD_CHECK((params.x == nullptr) != (params.quantised == nullptr), "one kind of rows");
    const int64_t outputs = params.weights->rows();
    std::vector<float> w(static_cast<size_t>(params.weights->columns()));
    int64_t first = 0;
    for (const WeightView& part : params.weights->parts()) {
        for (int64_t n = std::max(begin, first); n < std::min(end, first + part.rows); ++n) {
            const bool integers = params.quantised != nullptr && is_quantised(part.type);
            std::vector<WeightBlock> blocks;
            if (integers) {
                blocks = read_blocks(part, n - first);
            } else {
                dequantise_row(part, n - first, w.data());
            }
            for (int64_t row = 0; row < params.rows; ++row) {
                double y = integers ? dot_quantised(blocks, *params.quantised, row)
                                    : dot_float(w, params, row);
                if (params.bias != nullptr) y += params.bias[n];
                if (params.residual != nullptr) y += params.residual[row * outputs + n];
                params.y[row * outputs + n] = static_cast<float>(y);
            }
        }
        first += part.rows;
    }
}

void linear_ref(const LinearParams& params) {
    linear_ref_outputs(params, 0, params.weights->rows());
}

}  // namespace kd
