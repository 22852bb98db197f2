#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>

namespace kd {
namespace {

// Known answers for philox4x32-10 as published with Random123 (its kat_vectors file).
TEST(Philox, KnownAnswers) {
    EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
              (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(
        philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
        (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(
        philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
        (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, IsInTheUnitIntervalAndEven) {
    std::array<int, 16> bins = {};
    double sum = 0.0;
    constexpr int kDraws = 160000;
    for (uint64_t position = 0; position < kDraws; ++position) {
        const double draw = uniform(99, RngStream::test, position);
        ASSERT_GE(draw, 0.0);
        ASSERT_LT(draw, 1.0);
        ++bins[static_cast<size_t>(draw * 16.0)];
        sum += draw;
    }
    // Standard deviations: a bin 97, the mean 0.00072. Fixed seed; six of them.
    for (const int count : bins) EXPECT_NEAR(count, kDraws / 16, 6 * 97);
    EXPECT_NEAR(sum / kDraws, 0.5, 6 * 0.00072);
}

TEST(Uniform, EveryArgumentMatters) {
    // Also beyond 32 bits of seed and position.
    std::set<double> draws;
    for (const uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull}) {
        for (const RngStream stream : {RngStream::sample, RngStream::oracle, RngStream::test}) {
            for (const uint64_t position : {0ull, 1ull, 1ull << 32, (1ull << 32) + 1}) {
                for (const uint32_t index : {0u, 1u, 2u}) {
                    draws.insert(uniform(seed, stream, position, index));
                }
            }
        }
    }
    EXPECT_EQ(draws.size(), 4u * 3 * 4 * 3);
    // A value of the past: the text of a seed must not change with the version.
    static_assert(uniform(0, RngStream::sample, 0) ==
                  static_cast<double>((uint64_t{0x6627e8d5} << 21) | (0xe169c58du >> 11)) *
                      0x1p-53);
}

}  // namespace
}  // namespace kd
