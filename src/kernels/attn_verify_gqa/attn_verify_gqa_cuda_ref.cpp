#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_ref.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cases/attn_step_ref.h"
#include "kernels/cases/attn_values.h"

namespace kd {

void attn_verify_gqa_cuda_ref(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                              const kdt_attn_gqa_tensors& tensors, std::span<double> out,
                              std::span<double> lse) {
    const auto format = static_cast<kdt_kv_format>(shape.kv_format);
    const int64_t value_bytes = format == KDT_KV_BF16 ? 2 : 1;
    const int64_t slot_bytes = tensors.kv_slot_stride * value_bytes;
    const int32_t dim = shape.head_dim;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();

    for (int32_t node = 0; node < attn_nodes(batch); ++node) {
        const std::vector<int64_t> slots = attn_visible_slots(batch, shape.sliding_window, node);
        std::vector<double> p(slots.size());
        for (int32_t head = 0; head < shape.heads; ++head) {
            const int64_t kv_head = head / (shape.heads / shape.kv_heads);
            const int64_t in_row = kv_head * tensors.kv_head_stride * value_bytes;
            const auto* k = static_cast<const std::byte*>(tensors.k) + in_row;
            const auto* v = static_cast<const std::byte*>(tensors.v) + in_row;
            const auto* q = static_cast<const std::byte*>(tensors.q) +
                            2 * (node * tensors.q_node_stride + head * tensors.q_head_stride);
            double largest = -kInfinity;
            for (size_t j = 0; j < slots.size(); ++j) {
                double score = 0;
                for (int32_t i = 0; i < dim; ++i) {
                    score += double{bf16_value(word_at(q + 2 * i))} *
                             gqa_value(format, tensors.k_scale, k + slots[j] * slot_bytes, i);
                }
                score *= tensors.scale;
                if (tensors.logit_cap > 0) {
                    score = tensors.logit_cap * std::tanh(score / tensors.logit_cap);
                }
                p[j] = score;
                largest = std::max(largest, score);
            }
            double sum = 0;
            for (double& value : p) sum += value = std::exp(value - largest);
            const int64_t at = int64_t{node} * shape.heads + head;
            lse[static_cast<size_t>(at)] = slots.empty() ? -kInfinity : largest + std::log(sum);
            for (int32_t i = 0; i < dim; ++i) {
                double value = 0;
                for (size_t j = 0; j < slots.size(); ++j) {
                    value +=
                        p[j] * gqa_value(format, tensors.v_scale, v + slots[j] * slot_bytes, i);
                }
                out[static_cast<size_t>(at * dim + i)] = slots.empty() ? 0 : value / sum;
            }
        }
    }
}

}  // namespace kd
