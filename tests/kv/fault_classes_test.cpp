// Rows that turned out to be worth nothing leave the prefix index, those of others stay.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kv/kv_pool.h"

namespace kd {
namespace {

using Tokens = std::vector<int32_t>;

Tokens counted(int32_t first, int32_t count) {
    Tokens tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
}

Tokens joined(Tokens tokens, const Tokens& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
}

void leave(KvPool& pool, const Tokens& tokens) {
    PageTable table(pool);
    const auto count = static_cast<int32_t>(tokens.size());
    ASSERT_TRUE(pool.extend(table, count, count));
    pool.publish(table, tokens);
}

TEST(FaultClass, ForgottenRowsLeaveTheIndexAndTheSharedPrefixOfOthersStays) {
    for (const int32_t page_size : {1, 16}) {
        SCOPED_TRACE(page_size);
        KvPool pool({.slots = 512, .page_size = page_size});
        const Tokens shared = counted(100, 64);
        const Tokens good = joined(shared, counted(200, 32)),
                     bad = joined(shared, counted(300, 48));
        leave(pool, bad);
        pool.forget(joined(bad, {7, 8}));  // the answer's last tokens never had rows
        EXPECT_EQ(pool.cached(), 0);
        pool.check_books();

        leave(pool, bad);
        leave(pool, good);
        pool.forget(bad);
        EXPECT_EQ(pool.cached_prefix(bad), 64);
        EXPECT_EQ(pool.cached_prefix(good), 96);
        pool.forget(counted(5, 10));  // not there
        EXPECT_EQ(pool.cached(), 96);
        pool.forget(good);  // the last that went on from the shared node, which goes with it
        EXPECT_EQ(pool.cached(), 0);
        pool.check_books();
    }
}

TEST(FaultClass, ForgettingLeavesWhatATableReads) {
    KvPool pool({.slots = 256});
    const Tokens tokens = counted(100, 50);
    leave(pool, tokens);
    PageTable reader(pool);
    SlotCopies copies;
    ASSERT_EQ(pool.reuse(reader, std::span(tokens).first(20), copies), 20);
    pool.forget(tokens);
    EXPECT_EQ(pool.cached_prefix(tokens), 20);
    pool.forget(tokens);
    EXPECT_EQ(pool.cached_prefix(tokens), 20);
    pool.check_books();
    reader.clear();
    pool.forget(tokens);
    EXPECT_EQ(pool.cached(), 0);
    pool.check_books();
}

}  // namespace
}  // namespace kd
