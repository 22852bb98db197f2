#include "core/draft_gate.h"

#include <algorithm>

#include "base/check.h"

namespace kd {

namespace {

// Played with drafters as in the test: a memory of half the length keeps one of 1.19 times plain
// decoding's speed shut half of the time, since many of its rounds bring one token.
constexpr double kMemory = 31.0 / 32;
constexpr double kMemoryWhenShut = 2;  // plain rounds
// Drafts that cost next to nothing are not worth a pause: what they wait for may come any time.
constexpr double kWorth = 0.99;

}  // namespace

bool DraftGate::next() {
    if (!shut_) return true;
    if (left_ == 0) {
        left_ = pause_;
        return true;
    }
    --left_;
    return false;
}

void DraftGate::observe(double tokens, double plain_rounds) {
    KD_CHECK(tokens > 0 && plain_rounds > 0, "{} tokens in {} plain rounds", tokens, plain_rounds);
    tokens_ = kMemory * tokens_ + tokens;
    plain_rounds_ = kMemory * plain_rounds_ + plain_rounds;
    shut_ = gain() < kWorth;
    if (!shut_) {
        pause_ = std::max(pause_ / 2, kFirstPause);
        return;
    }
    const double kept = std::min(kMemoryWhenShut / plain_rounds_, 1.0);
    tokens_ *= kept;
    plain_rounds_ *= kept;
    left_ = pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
}

}  // namespace kd
