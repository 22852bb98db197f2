// Whether to draft at all: a draft has to be paid before the budget can see that it is not worth
// verifying.
#pragma once

#include <cstdint>

namespace kd {

/// Learns from drafted rounds how fast they are beside plain ones. While they are slower it is shut
/// and lets a probe through after kFirstPause rounds, then after twice as many each time a probe
/// loses, up to kLongestPause. A shut gate remembers little, so that a probe or two that win open
/// it.
class DraftGate {
  public:
    static constexpr int32_t kFirstPause = 8;
    static constexpr int32_t kLongestPause = 64;

    /// Asked once a round that could draft: whether it shall. A probe that is not observed was
    /// none: the pause begins anew.
    bool next();
    /// A drafted round: tokens that each session emitted on average, and the round's time by that
    /// of a plain round, both above 0.
    void observe(double tokens, double plain_rounds);
    /// Speed of drafted rounds lately by plain decoding's.
    double gain() const { return tokens_ / plain_rounds_; }

  private:
    // What rounds brought and took, each round forgotten by and by. At first four good ones.
    double tokens_ = 5;
    double plain_rounds_ = 4;
    bool shut_ = false;
    int32_t pause_ = kFirstPause;  // when it shuts
    int32_t left_ = 0;             // while it is shut: rounds until the next probe
};

}  // namespace kd
