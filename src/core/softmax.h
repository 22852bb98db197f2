// The pieces of a softmax over the vocabulary that sampling and log-probabilities share, so that
// both see the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace kd {

/// Tokens per block: the mass of a block is summed in token order, the blocks in block order, so
/// that every device gets the same sums.
inline constexpr int32_t kVocabularyBlock = 1024;

/// A ternary of floats that stays free of branches: the compiler will not compute the unused side
/// of a floating-point one speculatively, and a loop with a branch does not vectorise.
inline float select(bool condition, float yes, float no) {
    const uint32_t mask = condition ? ~0u : 0u;
    return std::bit_cast<float>((std::bit_cast<uint32_t>(yes) & mask) |
                                (std::bit_cast<uint32_t>(no) & ~mask));
}

/// exp(x) for x <= 0 from float additions and multiplications alone: it vectorises, and every
/// machine and device gets the same bits. exp(0) is exactly 1; within 2e-7 of the truth (tested);
/// 0 for NaN and below -87, where float runs out of normal numbers.
inline float exp_of_negative(float x) {
    constexpr float kShift = 0x1.8p23f;  // added, it leaves the nearest integer in the low bits
    constexpr float kLog2E = 0x1.715476p0f;
    constexpr float kLn2High = 0x1.62e4p-1f;  // short: its product with the integer is exact
    constexpr float kLn2Low = 0x1.7f7d1cp-20f;
    const float shifted = x * kLog2E + kShift;
    const float integer = shifted - kShift;
    const float r = (x - integer * kLn2High) - integer * kLn2Low;  // |r| <= ln(2) / 2
    float series = 1.0f / 5040.0f;
    series = series * r + 1.0f / 720.0f;
    series = series * r + 1.0f / 120.0f;
    series = series * r + 1.0f / 24.0f;
    series = series * r + 1.0f / 6.0f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    const uint32_t exponent =
        std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift) + 127u;
    const float power = std::bit_cast<float>(exponent << 23);
    return select(x >= -87.0f, series * power, 0.0f);
}

/// The largest logit, NaN left out. Throws kd::Error when no logit is finite.
float largest_logit(std::span<const float> logits);

/// How many of them are NaN.
int64_t count_nan(std::span<const float> logits);

/// Throws kd::Error for a row of the model with a NaN: what it computed there is worth nothing, the
/// values beside it included.
void expect_numbers(std::span<const float> logits);

/// The sum of a block's weights in token order.
double block_mass(std::span<const float> weight, int64_t block);

/// How many blocks `tokens` fill.
constexpr int64_t vocabulary_blocks(int64_t tokens) {
    return (tokens + kVocabularyBlock - 1) / kVocabularyBlock;
}

}  // namespace kd
