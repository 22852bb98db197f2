#include "core/recent_time.h"

#include <algorithm>
#include <cmath>

namespace kd {

namespace {

constexpr double kGain = 0.1;
constexpr double kOutlier = 2.0;

}  // namespace

void RecentTime::observe(double seconds) {
    if (!(seconds > 0 && std::isfinite(seconds))) return;
    last_ = seconds;
    if (mean_ == 0) mean_ = seconds;
    mean_ += kGain * (std::clamp(seconds, mean_ / kOutlier, mean_ * kOutlier) - mean_);
}

double RecentTime::seconds() const {
    return std::min(mean_, last_);
}

}  // namespace kd
