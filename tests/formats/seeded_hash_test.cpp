#include "formats/seeded_hash.h"

#include <gtest/gtest.h>

#include <ctime>
#include <set>
#include <string>

#include "formats/bpe.h"

namespace kd {
namespace {

// The vectors of the authors' reference implementation (veorq/SipHash): bytes 0, 1, 2, ... under
// the key 0, 1, ..., 15.
TEST(SeededHash, IsSipHash) {
    const std::array<uint64_t, 2> key = {0x0706050403020100u, 0x0F0E0D0C0B0A0908u};
    std::string text;
    for (char c = 0; c < 15; ++c) text.push_back(c);
    EXPECT_EQ(sip_hash("", key), 0x726FDB47DD0E0E31u);
    EXPECT_EQ(sip_hash(text.substr(0, 1), key), 0x74F839C593DC67FDu);
    EXPECT_EQ(sip_hash(text.substr(0, 8), key), 0x93F5F5799A932462u);
    EXPECT_EQ(sip_hash(text, key), 0xA129CA6149BE45E5u);
}

TEST(SeededHash, DrawsItsKeys) {
    std::set<uint64_t> words;
    for (int i = 0; i < 16; ++i) words.insert(random_word());
    EXPECT_EQ(words.size(), 16u);
    EXPECT_EQ(TextHash()("a"), TextHash()("a"));
    EXPECT_NE(TextHash()("a"), sip_hash("a", {0, 0}));
}

double thread_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// All meet in one slot where the pair, mixed by a shift, is multiplied by the golden ratio: then an
// insertion takes as many probes as there are entries.
TEST(MergeTable, IsNotFooledByChosenPairs) {
    constexpr int32_t kPairs = 40000;
    uint64_t inverse = 1;  // of the multiplier, by Newton's iteration
    for (int i = 0; i < 6; ++i) inverse *= 2 - inverse * 0x9E3779B97F4A7C15u;
    MergeTable table(kPairs);
    const double begin = thread_seconds();
    for (int32_t i = 0; i < kPairs; ++i) {
        uint64_t pair = inverse * static_cast<uint64_t>(i);  // the product's high bits are 0
        pair ^= pair >> 29 ^ pair >> 58;
        const auto left = static_cast<int32_t>(pair >> 32);
        const auto right = static_cast<int32_t>(pair);
        EXPECT_TRUE(table.insert(left, right, {.rank = i, .result = i}));
        EXPECT_EQ(table.find(left, right).rank, i);
    }
    EXPECT_LT(thread_seconds() - begin, 0.3);
}

}  // namespace
}  // namespace kd
