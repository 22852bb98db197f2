// Reproducible inputs of the op cases: plain arrays from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/weight.h"

namespace kd {

class CaseRandom {
  public:
    explicit CaseRandom(uint32_t seed) : engine_(seed) {}

    uint32_t bits() { return static_cast<uint32_t>(engine_()); }
    /// Uniform in [0, limit).
    int32_t below(int32_t limit) {
        return static_cast<int32_t>(bits() % static_cast<uint32_t>(limit));
    }
    /// Uniform in [-magnitude, magnitude).
    float value(float magnitude = 1) {
        return magnitude * (static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f);
    }
    std::vector<float> values(int64_t count, float magnitude = 1) {
        std::vector<float> result(static_cast<size_t>(count));
        for (float& v : result) v = value(magnitude);
        return result;
    }

  private:
    std::mt19937 engine_;
};

/// Weights as a file holds them, of magnitude about `magnitude`, in `storage`.
inline WeightView random_weights(CaseRandom& random, DType type, int64_t rows, int64_t columns,
                                 float magnitude, std::vector<std::byte>& storage) {
    storage.resize(static_cast<size_t>(rows * bytes_of(type, columns)));
    std::byte* to = storage.data();
    auto put16 = [&to](uint16_t bits) {
        std::memcpy(to, &bits, sizeof bits);
        to += sizeof bits;
    };
    auto put8 = [&] { *to++ = static_cast<std::byte>(random.bits() >> 24); };
    for (int64_t i = 0; i < rows * columns; i += block_elements(type)) {
        if (type == DType::f32) {
            const float v = random.value(magnitude);
            std::memcpy(to, &v, sizeof v);
            to += sizeof v;
        } else if (type == DType::f16) {
            put16(f32_to_f16(random.value(magnitude)));
        } else if (type == DType::bf16) {
            put16(f32_to_bf16(random.value(magnitude)));
        } else if (type == DType::q4_k) {
            // Scales and minima up to 63 times these: steps of 2 / 15 and offsets of 1 magnitude.
            const float wobble = 0.75f + 0.25f * random.value();
            put16(f32_to_f16(magnitude * 2 / (15 * 63) * wobble));
            put16(f32_to_f16(magnitude / 63 * wobble));
            for (int k = 0; k < 12 + 128; ++k) put8();
        } else if (type == DType::q6_k) {
            for (int k = 0; k < 128 + 64 + 16; ++k) put8();
            put16(f32_to_f16(magnitude / (128 * 32) * (0.75f + 0.25f * random.value())));
        } else {
            const float levels = type == DType::q8_0 ? 127.0f : 7.5f;
            const float scale = magnitude / levels * (0.75f + 0.25f * random.value());
            put16(f32_to_f16(scale));
            if (type == DType::q4_1) put16(f32_to_f16(-scale * levels));
            for (int k = 0; k < (type == DType::q8_0 ? 32 : 16); ++k) put8();
        }
    }
    return {.type = type, .data = storage.data(), .rows = rows, .columns = columns};
}

}  // namespace kd
