#include "formats/seeded_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace kd {

namespace {

class SipState {
  public:
    explicit SipState(const std::array<uint64_t, 2>& key)
        : a_(key[0] ^ 0x736F6D6570736575u),
          b_(key[1] ^ 0x646F72616E646F6Du),
          c_(key[0] ^ 0x6C7967656E657261u),
          d_(key[1] ^ 0x7465646279746573u) {}

    void absorb(uint64_t word) {
        d_ ^= word;
        for (int round = 0; round < 2; ++round) mix();
        a_ ^= word;
    }
    uint64_t finish() {
        c_ ^= 0xFF;
        for (int round = 0; round < 4; ++round) mix();
        return a_ ^ b_ ^ c_ ^ d_;
    }

  private:
    void mix() {
        a_ += b_;
        c_ += d_;
        b_ = std::rotl(b_, 13) ^ a_;
        d_ = std::rotl(d_, 16) ^ c_;
        a_ = std::rotl(a_, 32);
        c_ += b_;
        a_ += d_;
        b_ = std::rotl(b_, 17) ^ c_;
        d_ = std::rotl(d_, 21) ^ a_;
        c_ = std::rotl(c_, 32);
    }

    uint64_t a_, b_, c_, d_;
};

}  // namespace

uint64_t random_word() {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
}

uint64_t sip_hash(std::string_view text, const std::array<uint64_t, 2>& key) {
    SipState state(key);
    size_t at = 0;
    uint64_t word = 0;
    for (; at + sizeof word <= text.size(); at += sizeof word) {
        std::memcpy(&word, text.data() + at, sizeof word);
        state.absorb(word);
    }
    word = uint64_t{text.size()} << 56;
    std::memcpy(&word, text.data() + at, text.size() - at);  // little endian: the low bytes
    state.absorb(word);
    return state.finish();
}

size_t TextHash::operator()(std::string_view text) const {
    static const std::array<uint64_t, 2> kKey = {random_word(), random_word()};
    return sip_hash(text, kKey);
}

}  // namespace kd
