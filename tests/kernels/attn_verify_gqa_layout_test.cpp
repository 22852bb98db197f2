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
            const int32_t end = row.limit + 16 * random.below(3);
            for (int32_t quad = 0; quad < 4; ++quad) {
                uint32_t expected = 0;
                for (int32_t bit = 0; bit < 16; ++bit) {
                    const int32_t key = key_begin + bit / 2 * 8 + 2 * quad + bit % 2;
                    const int32_t node = key - context;
                    const bool seen = node >= 0 && node < 128
                                          ? (row.ancestors[node / 64] >> (node % 64) & 1) != 0
                                          : key >= row.first && key < row.limit;
                    expected |= uint32_t{seen} << bit;
                }
                EXPECT_EQ(visible_columns(row, key_begin, end, quad) |
                              columns_of(visible_nodes(row, key_begin - context), quad),
                          expected)
                    << "context " << context << ", keys from " << key_begin << ", quad " << quad;
            }
            EXPECT_EQ(visible_columns(row, key_begin, key_begin, 0), 0u) << "all beyond the end";
        }
    }
}

}  // namespace
}  // namespace kd::gqa
