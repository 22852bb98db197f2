#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/mla_append/mla_append.h"

namespace kd {

namespace {

void rotate(const MlaAppendParams& params, const float* from, const float* angles, float* to) {
    const int32_t pairs = params.rope / 2;
    const bool adjacent = params.pairing == RopePairing::adjacent;
    for (int32_t i = 0; i < pairs; ++i) {
        const int32_t first = adjacent ? 2 * i : i;
        const int32_t second = adjacent ? 2 * i + 1 : i + pairs;
        const double a = from[first];
        const double b = from[second];
        const double c = angles[2 * i];
        const double s = angles[2 * i + 1];
        to[first] = static_cast<float>(a * c - b * s);
        to[second] = static_cast<float>(a * s + b * c);
    }
}

void write_row(DType type, const std::vector<float>& from, std::byte* to) {
    for (size_t i = 0; i < from.size(); ++i) {
        const uint16_t half = f32_to_f16(from[i]);
        if (type == DType::f16) std::memcpy(to + 2 * i, &half, sizeof half);
        if (type == DType::f32) std::memcpy(to + 4 * i, &from[i], sizeof(float));
    }
}

}  // namespace

void mla_append_ref(const MlaAppendParams& params) {
    const int32_t latent_row = params.latent + params.rope;
    const KvView& cache = params.cache;
    KD_CHECK(params.rope % 2 == 0 && params.q_stride >= params.rope, "{} of {} elements rotate",
             params.rope, params.q_stride);
    KD_CHECK(cache.rows == KvRows::latent && cache.row_elements() == latent_row,
             "cache rows of {}, latent rows of {}", cache.row_elements(), latent_row);
    KD_CHECK(cache.type == DType::f16 || cache.type == DType::f32, "latent cache of {}",
             name_of(cache.type));
    std::vector<float> values(static_cast<size_t>(latent_row));
    for (int64_t row = 0; row < params.rows; ++row) {
        const float* angles = params.angles + row * params.rope;
        for (int64_t h = row * params.heads; h < (row + 1) * params.heads; ++h) {
            rotate(params, params.q + (h + 1) * params.q_stride - params.rope, angles,
                   params.q_latent + h * latent_row + params.latent);
        }
        const int64_t slot = params.slots[static_cast<size_t>(row)];
        KD_CHECK(slot >= 0 && slot < cache.slots, "slot {} of {}", slot, cache.slots);
        const float* kv = params.kv + row * latent_row;
        std::memcpy(values.data(), kv, static_cast<size_t>(params.latent) * sizeof(float));
        rotate(params, kv + params.latent, angles, values.data() + params.latent);
        write_row(cache.type, values, cache.layer(params.layer).k + slot * cache.row_bytes());
    }
}

}  // namespace kd
