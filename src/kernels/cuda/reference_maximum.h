// When a softmax that works along the keys moves the maximum that a row's probabilities are
// relative to. Loops that use these look for no tile's maximum, and rescale outputs rarely.
#pragma once

namespace kd {

/// A row's reference maximum stays until the probabilities that a thread has of it in a tile add up
/// to more than this. P is then at most this in bf16 or f16, sums are floats.
inline constexpr float kMostSum = 64.0f;
/// Reference maximum of a row that has seen nothing: finite, and any score's probability relative
/// to it is infinite.
inline constexpr float kNothingSeen = -1e30f;

}  // namespace kd
