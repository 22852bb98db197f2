#include <gtest/gtest.h>

#include "kernels/attn_verify_gqa/cuda/gqa_layout.h"
#include "kernels/cases/random.h"

namespace kd::gqa {
namespace {

TEST(GqaLayout, MasksAreWhatEachKeySays) {
    CaseRandom random(5);
    for (int32_t repeat = 0; repeat < 2000; ++repeat) {
        const int32_t context = random.below(400);
        RowRange row{.first = random.below(300), .limit = context, .ancestors = {}};
        for (uint64_t& word : row.ancestors) word = uint64_t{random.bits()} << 32 | random.bits();
        if (random.below(2) == 0) {  // keys that end below the context: no ancestors
            row.limit = random.below(context + 1);
            row.ancestors[0] = row.ancestors[1] = 0;
        }
        for (int32_t key_begin = 0; key_begin < context + 200; key_begin += 32) {
            uint64_t expected = 0;
            for (int32_t i = 0; i < 64; ++i) {
                const int32_t key = key_begin + i;
                const int32_t node = key - context;
                const bool seen = node >= 0 && node < 128
                                      ? (row.ancestors[node / 64] >> (node % 64) & 1) != 0
                                      : key >= row.first && key < row.limit;
                expected |= uint64_t{seen} << i;
            }
            EXPECT_EQ(visible_keys(row, key_begin) | visible_nodes(row, key_begin - context),
                      expected)
                << "context " << context << ", keys from " << key_begin;
        }
    }
}

}  // namespace
}  // namespace kd::gqa
