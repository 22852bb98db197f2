// Random weights as a function of tensor name and index alone, so that a test in C++ and a fixture
// maker in Python (tools/counter_weights.py) hold the same model without a file between them.
//
// z = finaliser of SplitMix64 (Steele, Lea, Flood 2014) of FNV-1a-64(name) + (index + 1) * golden;
// u = (z >> 40) / 2^24. Every value is rounded to bf16, ties to even, so that it is the same number
// whichever float type it is stored in.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace kd {

/// FNV-1a, 64 bits, of the name's UTF-8 bytes.
constexpr uint64_t counter_hash(std::string_view name) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    return hash;
}

/// Uniform in [-1, 1) on a grid of 2^-23: exact in float and double.
constexpr double counter_uniform(uint64_t hash, uint64_t index) {
    uint64_t z = hash + (index + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<double>(z >> 40) * 0x1p-23 - 1;
}

/// offset + scale * uniform for index 0 .. count - 1, in double, then to float, then to bf16.
inline std::vector<float> counter_values(std::string_view name, int64_t count, double offset,
                                         double scale) {
    const uint64_t hash = counter_hash(name);
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
        const double value = offset + scale * counter_uniform(hash, i);
        values[i] = bf16_to_f32(f32_to_bf16(static_cast<float>(value)));
    }
    return values;
}

/// A matrix [rows, fan_in] row by row, of variance 1 / fan_in.
inline std::vector<float> counter_matrix(std::string_view name, int64_t rows, int64_t fan_in) {
    return counter_values(name, rows * fan_in, 0, std::sqrt(3.0 / static_cast<double>(fan_in)));
}

/// A norm's weights: 0.75 to 1.25.
inline std::vector<float> counter_norm(std::string_view name, int64_t count) {
    return counter_values(name, count, 1, 0.25);
}

/// Biases: -0.5 to 0.5.
inline std::vector<float> counter_bias(std::string_view name, int64_t count) {
    return counter_values(name, count, 0, 0.5);
}

}  // namespace kd
