#include "kernels/attn_verify_mla/attn_verify_mla_ref.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cases/attn_step_ref.h"
#include "kernels/cases/attn_values.h"

namespace kd {

void attn_verify_mla_ref(const kdt_attn_shape& shape, const kdt_attn_batch& batch,
                         const kdt_attn_mla_tensors& tensors, std::span<double> out,
                         std::span<double> lse) {
    const auto format = static_cast<kdt_kv_format>(shape.kv_format);
    const int64_t slot_bytes = tensors.kv_slot_stride * (format == KDT_KV_BF16 ? 2 : 1);
    const auto* kv = static_cast<const std::byte*>(tensors.kv);
    const auto* q_latent = static_cast<const std::byte*>(tensors.q_latent);
    const auto* q_rope = static_cast<const std::byte*>(tensors.q_rope);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();

    for (int32_t node = 0; node < attn_nodes(batch); ++node) {
        const std::vector<int64_t> slots = attn_visible_slots(batch, 0, node);
        std::vector<double> p(slots.size());
        for (int32_t head = 0; head < shape.heads; ++head) {
            const std::byte* latent = q_latent + 2 * (node * tensors.q_latent_node_stride +
                                                      head * tensors.q_latent_head_stride);
            const std::byte* rope = q_rope + 2 * (node * tensors.q_rope_node_stride +
                                                  head * tensors.q_rope_head_stride);
            double largest = -kInfinity;
            for (size_t j = 0; j < slots.size(); ++j) {
                const std::byte* row = kv + slots[j] * slot_bytes;
                double score = 0;
                for (int32_t i = 0; i < 576; ++i) {
                    const std::byte* q = i < 512 ? latent + 2 * i : rope + 2 * (i - 512);
                    score += double{bf16_value(word_at(q))} *
                             mla_value(format, tensors.kv_scale, row, i);
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
            for (int32_t i = 0; i < 512; ++i) {
                double value = 0;
                for (size_t j = 0; j < slots.size(); ++j) {
                    value +=
                        p[j] * mla_value(format, tensors.kv_scale, kv + slots[j] * slot_bytes, i);
                }
                out[static_cast<size_t>(at * 512 + i)] = slots.empty() ? 0 : value / sum;
            }
        }
    }
}

}  // namespace kd
