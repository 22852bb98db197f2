// Medians and intervals of paired measurements.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kd {

/// Of at least one value; the mean of the two middle ones where they are even in number.
double median(std::vector<double> values);

/// a[i] / b[i]; as many of both.
std::vector<double> ratios(std::span<const double> a, std::span<const double> b);

/// A figure and its 95 % confidence interval.
struct Interval {
    double value = 0;
    double low = 0;
    double high = 0;
};

/// `statistic` of all samples, given by their numbers 0..samples-1, and the 2.5th and 97.5th
/// percentile of its values over 2,000 resamples with replacement (percentile bootstrap; the same
/// resamples in every call). samples >= 1; of one sample the interval is the value.
Interval bootstrap(int32_t samples,
                   const std::function<double(std::span<const int32_t>)>& statistic);

/// Median of values[i] with its interval.
Interval median_interval(std::span<const double> values);

}  // namespace kd
