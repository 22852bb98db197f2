#include "support/statistics.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/check.h"

namespace kd {

namespace {

constexpr int kResamples = 2000;
constexpr double kTail = 0.025;

}  // namespace

double median(std::vector<double> values) {
    KD_CHECK(!values.empty(), "the median of nothing");
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<double> ratios(std::span<const double> a, std::span<const double> b) {
    KD_CHECK(a.size() == b.size(), "{} values by {}", a.size(), b.size());
    std::vector<double> out;
    for (size_t i = 0; i < a.size(); ++i) out.push_back(a[i] / b[i]);
    return out;
}

Interval bootstrap(int32_t samples,
                   const std::function<double(std::span<const int32_t>)>& statistic) {
    KD_CHECK(samples >= 1, "{} samples", samples);
    std::vector<int32_t> chosen(static_cast<size_t>(samples));
    std::iota(chosen.begin(), chosen.end(), 0);
    const double value = statistic(chosen);
    std::mt19937 random(1);
    std::vector<double> resampled;
    for (int i = 0; i < kResamples; ++i) {
        // Not std::uniform_int_distribution, whose numbers differ between libraries.
        for (int32_t& each : chosen) {
            each =
                static_cast<int32_t>((uint64_t{random()} * static_cast<uint64_t>(samples)) >> 32);
        }
        resampled.push_back(statistic(chosen));
    }
    std::sort(resampled.begin(), resampled.end());
    const auto at = [&](double share) {
        return resampled[static_cast<size_t>(share * (kResamples - 1) + 0.5)];
    };
    return {.value = value, .low = at(kTail), .high = at(1 - kTail)};
}

Interval median_interval(std::span<const double> values) {
    return bootstrap(static_cast<int32_t>(values.size()), [&](std::span<const int32_t> chosen) {
        std::vector<double> these;
        for (const int32_t i : chosen) these.push_back(values[static_cast<size_t>(i)]);
        return median(std::move(these));
    });
}

}  // namespace kd
