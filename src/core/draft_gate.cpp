#include "core/draft_gate.h"

#include <algorithm>

#include "base/check.h"

namespace kd {

namespace {

// Simulated with drafts that hit with 0 to 0.7 at 1.05 to 1.6 plain rounds: a memory of half the
// length shuts drafters out that gain a fifth, since many of their rounds bring one token.
constexpr double kMemory = 31.0 / 32;
constexpr double kMemoryWhenShut = 2;  // plain rounds
// Drafts that cost next to nothing are not worth a pause: what they wait for may come any time.
constexpr double kWorth = 0.99;

}  // namespace

bool DraftGate::next() {
    if (left_ == 0) return true;
    --left_;
    return false;
}

void DraftGate::observe(double tokens, double plain_rounds) {
    KD_CHECK(tokens > 0 && plain_rounds > 0, "{} tokens in {} plain rounds", tokens, plain_rounds);
    tokens_ = kMemory * tokens_ + tokens;
    plain_rounds_ = kMemory * plain_rounds_ + plain_rounds;
    if (gain() >= kWorth) {
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
