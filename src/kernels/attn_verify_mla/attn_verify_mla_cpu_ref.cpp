#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attn_verify_gqa/attn_verify_gqa_path.h"
#include "kernels/attn_verify_mla/attn_verify_mla_cpu_rows.h"

namespace kd {

namespace {

int64_t rows_of(const AttnVerifyMlaCpuParams& params) {
    int64_t rows = 0;
    for (const AttnSegment& segment : params.segments) rows += segment.rows;
    return rows;
}

void attend(const AttnVerifyMlaCpuParams& params, const AttnSegment& segment, int32_t row,
            int32_t head) {
    std::vector<int64_t> slots(segment.context.begin(), segment.context.end());
    for_each_path_node(segment, row, [&](int32_t, int32_t node) {
        slots.push_back(segment.slots[static_cast<size_t>(node)]);
    });
    const int32_t width = params.latent + params.rope;
    const int64_t at = (int64_t{segment.first_row} + row) * params.heads + head;
    const float* q = params.q + at * width;
    const KvLayer layer = params.kv.layer(params.layer);
    std::vector<float> key(static_cast<size_t>(width));
    const auto read_key = [&](int64_t slot) {
        KD_CHECK(slot >= 0 && slot < params.kv.slots, "slot {} of {}", slot, params.kv.slots);
        dequantise(params.kv.type, layer.k + slot * params.kv.row_bytes(), width, key.data());
    };
    std::vector<double> p;
    for (const int64_t slot : slots) {
        read_key(slot);
        double score = 0;
        for (int32_t i = 0; i < width; ++i) score += double{q[i]} * key[static_cast<size_t>(i)];
        p.push_back(score * params.scale);
    }
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& value : p) sum += value = std::exp(value - largest);
    std::vector<double> weighted(static_cast<size_t>(params.latent), 0.0);
    for (size_t j = 0; j < slots.size(); ++j) {
        read_key(slots[j]);
        for (size_t i = 0; i < weighted.size(); ++i) weighted[i] += p[j] * key[i];
    }
    float* out = params.out + at * params.latent;
    for (size_t i = 0; i < weighted.size(); ++i) out[i] = static_cast<float>(weighted[i] / sum);
}

}  // namespace

void check_attention(const AttnVerifyMlaCpuParams& params) {
    KD_CHECK(params.heads > 0 && params.latent > 0 && params.rope >= 0, "{} heads of {} + {}",
             params.heads, params.latent, params.rope);
    KD_CHECK(
        params.kv.rows == KvRows::latent && params.kv.row_elements() == params.latent + params.rope,
        "cache rows of {}, attention over {} + {}", params.kv.row_elements(), params.latent,
        params.rope);
    KD_CHECK(params.kv.type == DType::f16 || params.kv.type == DType::f32, "latent cache of {}",
             name_of(params.kv.type));
    for (const AttnSegment& segment : params.segments) check_segment(segment);
}

void attn_verify_mla_cpu_pairs(const AttnVerifyMlaCpuParams& params, int64_t begin, int64_t end) {
    int64_t first = 0;
    for (const AttnSegment& segment : params.segments) {
        const int64_t pairs = int64_t{segment.rows} * params.heads;
        for (int64_t pair = std::max(begin, first); pair < std::min(end, first + pairs); ++pair) {
            attend(params, segment, static_cast<int32_t>((pair - first) / params.heads),
                   static_cast<int32_t>((pair - first) % params.heads));
        }
        first += pairs;
    }
}

void attn_verify_mla_cpu_ref(const AttnVerifyMlaCpuParams& params) {
    check_attention(params);
    attn_verify_mla_cpu_pairs(params, 0, rows_of(params) * params.heads);
}

}  // namespace kd
