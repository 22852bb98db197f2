#include "backends/cpu/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/address_sanitizer.h"
#include "base/error.h"

namespace kd {
namespace {

TEST(Arena, PiecesAreAlignedZeroedAndApart) {
    Arena arena;
    struct Piece {
        std::byte* memory;
        size_t bytes;
    };
    std::vector<Piece> pieces;
    // Small ones share a block, then one larger than a block, then small ones again.
    for (const size_t bytes : {size_t{1}, size_t{64}, size_t{65}, size_t{3} << 20,
                               size_t{100} << 20, size_t{7}, size_t{63} << 20}) {
        std::byte* memory = arena.take(bytes);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u) << bytes;
        EXPECT_EQ(memory[0], std::byte{0}) << bytes;
        EXPECT_EQ(memory[bytes - 1], std::byte{0}) << bytes;
        memory[0] = memory[bytes - 1] = std::byte{1};
        for (const Piece& other : pieces) {
            EXPECT_TRUE(memory + bytes <= other.memory || other.memory + other.bytes <= memory);
        }
        pieces.push_back({memory, bytes});
    }
}

TEST(Arena, NamesTheBytesItCannotGet) {
    Arena arena;
    try {
        arena.take(size_t{1} << 60);
        FAIL() << "an exabyte";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("1152921504"), std::string::npos) << error.what();
    }
    // Sizes that wrap around when they are rounded up, and that would as a signed number.
    for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2 + 1, SIZE_MAX / 2}) {
        EXPECT_THROW(arena.take(bytes), Error) << bytes;
    }
    EXPECT_NE(arena.take(1), nullptr);
}

TEST(ArenaDeathTest, AddressSanitizerSeesReadsBehindAPiece) {
    if (!kAddressSanitizer) GTEST_SKIP() << "built without AddressSanitizer";
    Arena arena;
    const std::byte* first = arena.take(65);
    const std::byte* second = arena.take(64);
    const auto read = [](const std::byte* at) { *static_cast<const volatile std::byte*>(at); };
    read(first + 64);
    read(second);
    EXPECT_DEATH(read(first + 65), "use-after-poison");
    EXPECT_DEATH(read(first + 128), "use-after-poison");
    EXPECT_DEATH(read(second - 1), "use-after-poison");
    EXPECT_DEATH(read(second + 64), "use-after-poison");
}

// The system hands the addresses out again.
TEST(Arena, LeavesNothingForbiddenBehind) {
    Arena().take(65);
    const LazyArray<char> pages(int64_t{128} << 20);
    for (int64_t i = 0; i < pages.count(); i += 64) ASSERT_EQ(pages.data()[i], 0);
}

}  // namespace
}  // namespace kd
