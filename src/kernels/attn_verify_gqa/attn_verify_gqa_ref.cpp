#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attn_verify_gqa/attn_verify_gqa_path.h"

namespace kd {

namespace {

double read_value(DType type, const std::byte* row, int64_t index) {
    if (type == DType::f32) {
        float value;
        std::memcpy(&value, row + 4 * index, sizeof value);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, row + 2 * index, sizeof bits);
    return f16_to_f32(bits);
}

void attend_row(const AttnVerifyGqaParams& params, const AttnSegment& segment, int32_t row) {
    std::vector<int64_t> slots(segment.context.begin(), segment.context.end());
    for_each_path_node(segment, row, [&](int32_t, int32_t node) {
        slots.push_back(segment.slots[static_cast<size_t>(node)]);
    });
    const KvLayer layer = params.kv.layer(params.layer);
    const int32_t dim = params.head_dim;
    const int64_t batch_row = int64_t{segment.first_row} + row;
    std::vector<double> p(slots.size());
    for (int32_t head = 0; head < params.heads; ++head) {
        const float* q = params.q + batch_row * params.q_stride + int64_t{head} * dim;
        const int64_t at = int64_t{head / (params.heads / params.kv_heads)} * dim;
        double largest = -std::numeric_limits<double>::infinity();
        for (size_t j = 0; j < slots.size(); ++j) {
            const std::byte* k = layer.k + slots[j] * params.kv.row_bytes();
            double score = 0;
            for (int32_t i = 0; i < dim; ++i) {
                score += double{q[i]} * read_value(params.kv.type, k, at + i);
            }
            p[j] = score * params.scale;
            largest = std::max(largest, p[j]);
        }
        double sum = 0;
        for (double& value : p) sum += value = std::exp(value - largest);
        float* out = params.out + (batch_row * params.heads + head) * dim;
        for (int32_t i = 0; i < dim; ++i) {
            double value = 0;
            for (size_t j = 0; j < slots.size(); ++j) {
                const std::byte* v = layer.v + slots[j] * params.kv.row_bytes();
                value += p[j] * read_value(params.kv.type, v, at + i);
            }
            out[i] = static_cast<float>(value / sum);
        }
    }
}

}  // namespace

void attn_verify_gqa_ref_rows(const AttnVerifyGqaParams& params, int64_t begin, int64_t end) {
    check_attention(params);
    int64_t first = 0;
    for (const AttnSegment& segment : params.segments) {
        const int64_t last = first + segment.rows;
        for (int64_t row = std::max(begin, first); row < std::min(end, last); ++row) {
            attend_row(params, segment, static_cast<int32_t>(row - first));
        }
        first = last;
    }
}

void attn_verify_gqa_ref(const AttnVerifyGqaParams& params) {
    int64_t rows = 0;
    for (const AttnSegment& segment : params.segments) rows += segment.rows;
    attn_verify_gqa_ref_rows(params, 0, rows);
}

}  // namespace kd
