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

/// Writes the parts of a block one after the other.
class BlockWriter {
  public:
    BlockWriter(CaseRandom& random, std::byte* to) : random_(random), to_(to) {}

    template <class T>
    void put(T value) {
        std::memcpy(to_, &value, sizeof value);
        to_ += sizeof value;
    }
    void put_f16(float value) { put(f32_to_f16(value)); }
    void put_random(int64_t bytes) {
        for (int64_t i = 0; i < bytes; ++i) put(static_cast<uint8_t>(random_.bits() >> 24));
    }

  private:
    CaseRandom& random_;
    std::byte* to_;
};

/// One block of weights of magnitude about `magnitude`; INT4's are -8..7, before its scales.
inline void put_random_block(CaseRandom& random, DType type, float magnitude, std::byte* to) {
    BlockWriter block(random, to);
    const auto wobble = [&] { return 0.75f + 0.25f * random.value(); };
    // d, and m = -d * levels where the type has a minimum, before the integers.
    const auto put_block = [&](float levels, bool minimum) {
        const float d = magnitude / levels * wobble();
        block.put_f16(d);
        if (minimum) block.put_f16(-d * levels);
        block.put_random(block_bytes(type) - (minimum ? 4 : 2));
    };
    switch (type) {
        case DType::f32:
            return block.put(random.value(magnitude));
        case DType::f16:
            return block.put_f16(random.value(magnitude));
        case DType::bf16:
            return block.put(f32_to_bf16(random.value(magnitude)));
        case DType::f8_e4m3: {
            // All codes but NaN: up to 448, for which the scales make up.
            const auto code = static_cast<uint8_t>(random.bits() >> 24);
            return block.put((code & 0x7f) == 0x7f ? uint8_t{0x7e} : code);
        }
        case DType::int4:
            return block.put_random(16);
        case DType::q8_0:
        case DType::iq4_nl:
            return put_block(127, false);
        case DType::q4_0:
            return put_block(7.5f, false);
        case DType::q5_0:
            return put_block(15.5f, false);
        case DType::q4_1:
            return put_block(7.5f, true);
        case DType::q5_1:
            return put_block(15.5f, true);
        case DType::q4_k:
        case DType::q5_k: {
            // Scales and minima up to 63 times these: steps of 2 / 15 (2 / 31) and offsets of 1
            // magnitude.
            const float levels = type == DType::q4_k ? 15 : 31;
            const float factor = wobble();
            block.put_f16(magnitude * 2 / (levels * 63) * factor);
            block.put_f16(magnitude / 63 * factor);
            return block.put_random(block_bytes(type) - 4);
        }
        case DType::q6_k:
            block.put_random(128 + 64 + 16);
            return block.put_f16(magnitude / (128 * 32) * wobble());
    }
}

/// Weights as a file holds them, of magnitude about `magnitude`, in `storage`; behind them the
/// scales of F8_E4M3 (f32, 128 x 128) and INT4 (bf16, 1 x 32).
inline WeightView random_weights(CaseRandom& random, DType type, int64_t rows, int64_t columns,
                                 float magnitude, std::vector<std::byte>& storage) {
    const int64_t bytes = rows * bytes_of(type, columns);
    BlockScales scales;
    if (type == DType::f8_e4m3) scales = {nullptr, DType::f32, 128, 128};
    if (type == DType::int4) scales = {nullptr, DType::bf16, 1, 32};
    const bool scaled = type == DType::f8_e4m3 || type == DType::int4;
    const int64_t count = scaled ? scales.count(rows, columns) : 0;
    storage.resize(static_cast<size_t>(bytes + bytes_of(scales.type, count)));
    std::byte* to = storage.data();
    for (int64_t at = 0; at < bytes; at += block_bytes(type)) {
        put_random_block(random, type, magnitude, to + at);
    }
    if (scaled) scales.data = to + bytes;
    for (int64_t i = 0; i < count; ++i) {
        const float most = type == DType::int4 ? 8 : 448;
        put_random_block(random, scales.type, magnitude / most,
                         to + bytes + bytes_of(scales.type, i));
    }
    return {.type = type, .data = to, .rows = rows, .columns = columns, .scales = scales};
}

}  // namespace kd
