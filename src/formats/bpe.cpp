#include "formats/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "formats/seeded_hash.h"
#include "formats/utf8.h"

namespace kd {

namespace {

constexpr uint64_t kNoPair = ~uint64_t{0};

uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

std::array<char32_t, 256> byte_alphabet() {
    const auto printable = [](uint32_t byte) {
        return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    };
    std::array<char32_t, 256> alphabet{};
    char32_t next = 0x100;  // the other bytes take the code points from U+0100 on, in order
    for (uint32_t byte = 0; byte < 256; ++byte) alphabet[byte] = printable(byte) ? byte : next++;
    return alphabet;
}

bool bytes_of_alphabet(std::string_view token, std::string& bytes) {
    static const std::array<int16_t, 0x144> kByteOf = [] {
        std::array<int16_t, 0x144> byte_of{};
        byte_of.fill(-1);
        const std::array<char32_t, 256> alphabet = byte_alphabet();
        for (size_t byte = 0; byte < 256; ++byte) {
            byte_of[alphabet[byte]] = static_cast<int16_t>(byte);
        }
        return byte_of;
    }();
    std::string result;
    while (!token.empty()) {
        const Utf8Unit unit = next_utf8(token);
        if (unit.kind != Utf8Kind::valid || unit.code_point >= kByteOf.size() ||
            kByteOf[unit.code_point] < 0) {
            return false;
        }
        result.push_back(static_cast<char>(kByteOf[unit.code_point]));
        token.remove_prefix(unit.bytes);
    }
    bytes = std::move(result);
    return true;
}

MergeTable::MergeTable(size_t merges)
    : slots_(std::bit_ceil(merges * 2 + 2), Slot{kNoPair, {}}),
      shift_(64 - std::countr_zero(slots_.size())),
      multiplier_(random_word() | 1) {}

size_t MergeTable::slot_of(uint64_t pair) const {
    // A product's high bits depend on all bits of the pair.
    const uint64_t product = pair * multiplier_;
    size_t slot = (product ^ product >> 32) * multiplier_ >> shift_;
    while (slots_[slot].pair != pair && slots_[slot].pair != kNoPair) {
        slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
}

bool MergeTable::insert(int32_t left, int32_t right, Merge merge) {
    const uint64_t pair = pair_of(left, right);
    Slot& slot = slots_[slot_of(pair)];
    if (slot.pair == pair) return false;
    slot = {pair, merge};
    return true;
}

Merge MergeTable::find(int32_t left, int32_t right) const {
    return slots_[slot_of(pair_of(left, right))].merge;
}

Bpe::Bpe(const std::vector<int32_t>& byte_token, MergeTable merges)
    : byte_token_(byte_token), merges_(std::move(merges)) {
    KD_CHECK(byte_token_.size() == 256, "{} byte tokens", byte_token_.size());
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& tokens) const {
    if (piece.size() > size_t{std::numeric_limits<int32_t>::max()}) {
        KD_THROW(invalid_argument, "a piece of {} bytes without a break is too long", piece.size());
    }
    auto& symbols = scratch.symbols;
    auto& heap = scratch.heap;
    symbols.clear();
    heap.clear();
    for (const char c : piece) {
        const int32_t token = byte_token_[static_cast<uint8_t>(c)];
        if (token < 0) continue;
        const auto at = static_cast<int32_t>(symbols.size());
        symbols.push_back({.token = token, .rank = -1, .previous = at - 1, .next = at + 1});
    }
    if (symbols.empty()) return;
    symbols.back().next = -1;

    // An entry holds as long as its symbol still has the entry's rank: symbols only grow, so a pair
    // that has gone from a place never comes back to it.
    const auto rank_pair = [&](int32_t at) {
        BpeScratch::Symbol& symbol = symbols[at];
        symbol.rank =
            symbol.next < 0 ? -1 : merges_.find(symbol.token, symbols[symbol.next].token).rank;
        if (symbol.rank >= 0) {
            heap.push_back(uint64_t{static_cast<uint32_t>(symbol.rank)} << 32 | uint32_t(at));
        }
        return symbol.rank >= 0;
    };
    for (int32_t at = 0; at < static_cast<int32_t>(symbols.size()); ++at) rank_pair(at);
    std::make_heap(heap.begin(), heap.end(), std::greater<>{});
    const auto rank_again = [&](int32_t at) {
        if (rank_pair(at)) std::push_heap(heap.begin(), heap.end(), std::greater<>{});
    };

    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
        const auto at = static_cast<int32_t>(heap.back() & 0xFFFFFFFFu);
        const auto rank = static_cast<int32_t>(heap.back() >> 32);
        heap.pop_back();
        BpeScratch::Symbol& left = symbols[at];
        if (left.token < 0 || left.rank != rank) continue;
        BpeScratch::Symbol& right = symbols[left.next];
        left.token = merges_.find(left.token, right.token).result;
        left.next = right.next;
        right.token = -1;
        right.rank = -1;
        if (left.next >= 0) symbols[left.next].previous = at;
        rank_again(at);
        if (left.previous >= 0) rank_again(left.previous);
    }
    for (int32_t at = 0; at >= 0; at = symbols[at].next) tokens.push_back(symbols[at].token);
}

}  // namespace kd
