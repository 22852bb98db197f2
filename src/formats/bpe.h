// Byte-pair merges over the tokens of single bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kd {

/// GPT-2's printable alphabet: the code point that stands for each byte in a vocabulary.
std::array<char32_t, 256> byte_alphabet();

/// Replaces the alphabet's code points in `token` by their bytes. False, with `bytes` untouched, if
/// the token is not well-formed UTF-8 or has a code point outside the alphabet.
bool bytes_of_alphabet(std::string_view token, std::string& bytes);

struct Merge {
    int32_t rank = -1;    // lower merges first; -1: none
    int32_t result = -1;  // the token that replaces the pair
};

/// (left, right) -> Merge; open addressing, sized once.
class MergeTable {
  public:
    explicit MergeTable(size_t merges);
    /// False if the pair is there already. At most `merges` insertions.
    bool insert(int32_t left, int32_t right, Merge merge);
    /// rank -1 if the pair does not merge.
    Merge find(int32_t left, int32_t right) const;

  private:
    struct Slot {
        uint64_t pair;
        Merge merge;
    };
    size_t slot_of(uint64_t pair) const;

    std::vector<Slot> slots_;
    int shift_;
    uint64_t multiplier_;  // odd; drawn for each table, so that no file can make its pairs collide
};

/// What encode needs and keeps between pieces; one per thread.
struct BpeScratch {
    struct Symbol {
        int32_t token;  // -1: merged into its left neighbour
        int32_t rank;   // of the merge with the next symbol; -1: none
        int32_t previous;
        int32_t next;  // -1: the last
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | symbol, smallest first
};

class Bpe {
  public:
    /// byte_token[b], b below 256: the token of byte b, or -1: such bytes are dropped.
    Bpe(const std::vector<int32_t>& byte_token, MergeTable merges);

    /// Appends the tokens of one piece: the pair of lowest rank merges first, the leftmost of
    /// equals, until none is left. O(n log n) in the bytes of the piece (below 2^31).
    void encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& tokens) const;

  private:
    std::vector<int32_t> byte_token_;
    MergeTable merges_;
};

}  // namespace kd
