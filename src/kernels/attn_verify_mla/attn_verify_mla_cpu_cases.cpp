#include "kernels/attn_verify_mla/attn_verify_mla_cpu_cases.h"

#include <cstring>

namespace kd {

std::span<const AttnVerifyMlaCpuCase> attn_verify_mla_cpu_cases() {
    using enum DType;
    static const std::vector<AttnVerifyMlaCpuCase> cases = {
        {"plain", 4, 32, 16, f32, {{70, 1, false}}, 1},
        {"tree", 4, 32, 16, f16, {{66, 8, true}}, 2},
        {"first_tokens", 3, 24, 8, f16, {{0, 1, false}, {0, 5, true}}, 3},
        {"chunk", 2, 48, 16, f32, {{30, 40, false}}, 4},
        {"batch", 8, 128, 64, f16, {{63, 4, true}, {0, 9, false}, {64, 1, true}}, 5},
    };
    return cases;
}

AttnVerifyMlaCpuInputs make_attn_verify_mla_cpu_inputs(const AttnVerifyMlaCpuCase& test) {
    const int32_t width = test.latent + test.rope;
    AttnVerifyMlaCpuInputs in;
    in.gqa = make_attn_verify_gqa_inputs({.name = test.name,
                                          .heads = test.heads,
                                          .kv_heads = 1,
                                          .head_dim = width,
                                          .cache = test.cache,
                                          .segments = test.segments,
                                          .seed = test.seed});
    AttnVerifyGqaParams& gqa = in.gqa.params;
    KvView latent = gqa.kv;
    latent.rows = KvRows::latent;
    in.cache.resize(static_cast<size_t>(latent.bytes()));
    latent.data = in.cache.data();
    for (int32_t layer = 0; layer < latent.layers; ++layer) {
        const KvLayer rows = gqa.kv.layer(layer);
        const auto bytes = static_cast<size_t>(latent.slots * latent.row_bytes());
        std::memcpy(rows.v, rows.k, bytes);
        std::memcpy(latent.layer(layer).k, rows.k, bytes);
    }
    const auto q_values = static_cast<int64_t>(test.heads) * width;
    for (int64_t row = 0; row < in.gqa.rows; ++row) {
        const float* from = gqa.q + row * gqa.q_stride;
        in.q.insert(in.q.end(), from, from + q_values);
    }
    in.params = {.heads = test.heads,
                 .latent = test.latent,
                 .rope = test.rope,
                 .scale = gqa.scale,
                 .q = in.q.data(),
                 .segments = in.gqa.segments,
                 .kv = latent,
                 .layer = gqa.layer};
    return in;
}

}  // namespace kd
